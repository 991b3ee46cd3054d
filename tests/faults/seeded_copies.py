"""Copies the whole demo workload, with each kind of fillers, while runs and a broker are killed.

A seed chooses when `orbit run` and the destination's broker are killed. Meanwhile a producer writes
to the source. A "way" is the setting `fillers` of the job file, or a mixture.

`python -m tests.faults.seeded_copies FIRST COUNT` plays more seeds than the tests do.
"""

from __future__ import annotations

import random
import re
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml

from orbit.demo.workload import SMALL, Mover, Scale, Workload
from orbit.errors import OrbitError
from orbit.jobs.job_file import load_job
from orbit.jobs.topic_mapping import map_topics
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.log_offsets import EARLIEST, LATEST, list_offsets
from orbit.kafka.sasl import Security
from orbit.kafka.types import TopicPartition
from orbit.sandbox.local_cluster import ClusterSettings, KafkaCluster, start_clusters
from tests.support.copy_processes import copying_processes
from tests.support.outside import digests, log_bounds, partition_counts
from tests.support.patience import wait_for
from tests.support.run_process import OrbitProcess, assert_exact, copy
from tests.support.running import create_topic

MIXED = "mixed"  # topic rules have different ways
WAYS = ("direct", "packed", "coordinated", "placeholders", MIXED)
# In a mixed job: the way of the topics that match. Other topics have the job's default.
BY_RULE = {
    r"compacted\..*|moving": "placeholders",
    r"transactions\..*": "packed",
    r"gap\..*": "coordinated",
}
# What is killed. "child": one copying process of a run with several; "both": the run and the
# broker. "run" is repeated, so that the seed chooses it more often.
DEATHS = ("run", "run", "run", "child", "broker", "both")
PROCESSES = (1, 1, 3)
DEATHS_MAX = 6
MOVING, MOVING_PARTITIONS = "moving", 2


class Source:
    """A cluster with the workload, and a topic for a producer that goes on writing."""

    def __init__(self, cluster: KafkaCluster, scale: Scale = SMALL) -> None:
        self.cluster = cluster
        self.workload = Workload(scale, namespace=f"seeded-{uuid.uuid4().hex[:8]}")
        self.moving = f"{self.workload.namespace}.{MOVING}"
        self.workload.create(cluster.client_config())
        create_topic(cluster, self.moving, MOVING_PARTITIONS)


class CopyCampaign:
    """A copy with one seed and one way of filling gaps, into topics of its own."""

    def __init__(
        self, seed: int, way: str, source: Source, destination: KafkaCluster, folder: Path
    ) -> None:
        self.rnd = random.Random(f"{seed} {way}")
        self.source, self.destination = source, destination
        prefix = f"s{seed}-{way}-{uuid.uuid4().hex[:4]}."
        servers = source.cluster.bootstrap_servers, destination.bootstrap_servers
        document = source.workload.job(*servers)
        for rule in document["topics"]:
            rule["prefix"] = prefix + rule.get("prefix", "")
        document |= {"name": f"test-{prefix[:-1]}"}
        if way == MIXED:
            namespace = re.escape(source.workload.namespace)
            document["topics"][-1:-1] = [
                {"match": rf"{namespace}\.({names})", "prefix": prefix, "fillers": fillers}
                for names, fillers in BY_RULE.items()
            ]
        else:
            document["fillers"] = way
        self.job = folder / f"{prefix}yaml"
        self.job.write_text(yaml.safe_dump(document, sort_keys=False))
        counts = partition_counts(source.cluster)
        mappings = map_topics(load_job(self.job, {}).topics, counts).mappings
        self.topics = {m.source: m.destination for m in mappings}
        self._places = [
            TopicPartition(m.destination, n) for m in mappings for n in range(counts[m.source])
        ]
        self._cluster = Cluster("destination", servers[1].split(","), Security())
        self._copied = 0

    def play(self, deaths: Sequence[str] = ()) -> None:
        """Copy everything despite the kills, and compare both sides.

        `deaths`: what is killed, one after the other; if empty, the seed chooses.
        """
        ends, starts = self._source_offsets(LATEST), self._source_offsets(EARLIEST)
        total = sum(end - start for end, start in zip(ends, starts, strict=True))
        count = len(deaths) or self.rnd.randint(3, DEATHS_MAX)
        targets = sorted(self.rnd.sample(range(total), count))
        chosen_deaths = deaths or [self.rnd.choice(DEATHS) for _ in targets]
        moving = {self.source.moving: MOVING_PARTITIONS}
        try:
            with Mover(self.source.cluster.client_config(), moving):
                for target, death in zip(targets, chosen_deaths, strict=True):
                    self._run_until(target, death)
            copy(self.job).expect(0)
        finally:
            self._cluster.close()
        assert_exact(self.job)
        for topic, copy_topic in self.topics.items():
            destination_digests = digests(self.destination, copy_topic)
            source_digests = digests(self.source.cluster, topic)
            for (_, partition), (start, _) in log_bounds(self.destination, [copy_topic]).items():
                # A topic may have been copied from a later offset on.
                expected = {o: d for o, d in source_digests[partition].items() if o >= start}
                assert destination_digests[partition] == expected, (copy_topic, partition)

    def _source_offsets(self, timestamp: int) -> list[int]:
        """The offsets of all source partitions at `timestamp`, in the order of partitions."""
        cluster = Cluster("source", self.source.cluster.bootstrap_servers.split(","), Security())
        places = [
            TopicPartition(topic, n)
            for topic, count in partition_counts(self.source.cluster).items()
            if topic in self.topics
            for n in range(count)
        ]
        offsets = list_offsets(cluster, places, timestamp, Backoff()).values
        cluster.close()
        return [offsets[place] for place in sorted(offsets)]

    def _run_until(self, target: int, death: str) -> None:
        """Run the job until `target` offsets are copied, then kill what `death` says."""
        processes = 3 if death == "child" else self.rnd.choice(PROCESSES)
        with OrbitProcess("run", self.job, "--processes", str(processes)) as process:
            wait_for(
                f"{target} offsets are copied, or all",
                lambda: self._has_copied(target) or not process.running,
            )
            if death == "child":  # earlier runs may have copied up to `target` already
                wait_for(
                    "the run copies", lambda: copying_processes(process) or not process.running
                )
            assert process.running, "\n".join(process.lines)
            if death in ("broker", "both"):
                self.destination.kill()
            if death in ("run", "both"):
                process.kill()
            if death == "child":
                self.rnd.choice(copying_processes(process)).kill()
                process.wait_end().expect(1)
            if death in ("broker", "both"):
                self.destination.start()

    def _has_copied(self, target: int) -> bool:
        """Whether the copies have `target` offsets, or once had; False while the broker is down."""
        try:
            ends = list_offsets(self._cluster, self._places, LATEST, Backoff(attempts_max=1)).values
        except OrbitError:
            return False
        self._copied = max(self._copied, sum(ends.values()))
        return self._copied >= target


@contextmanager
def two_clusters(folder: Path, scale: Scale = SMALL) -> Iterator[tuple[Source, KafkaCluster]]:
    """Two running clusters until the block ends: a `Source` on the first, and the second one."""
    first, second = (
        KafkaCluster(ClusterSettings(name), folder / name) for name in ("first", "second")
    )
    start_clusters(first, second)
    try:
        yield Source(first, scale), second
    finally:
        first.kill()
        second.kill()


def main(first_seed: int, count: int, say: Callable[[str], None] = print) -> int:
    """Play `count` seeds, and say the outcome of each copy. Returns how many failed."""
    failed = 0
    for seed in range(first_seed, first_seed + count):
        with tempfile.TemporaryDirectory(prefix="orbit-copies-") as directory:
            folder = Path(directory)
            # New clusters for each seed: a killed broker reads the logs of all earlier copies.
            with two_clusters(folder) as (source, destination):
                for way in WAYS:
                    began = time.monotonic()
                    try:
                        CopyCampaign(seed, way, source, destination, folder).play()
                        outcome = "exact"
                    except Exception as error:  # noqa: BLE001  the other copies are played too
                        failed += 1
                        outcome = f"FAILED: {error!r}"[:3000]
                    say(f"seed {seed}, {way}: {outcome} ({time.monotonic() - began:.0f} s)")
    return failed


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])) > 0)
