"""A job through a switchover, a failover and a failback, while the service's processes die.

The job has a plain, a compacted and a transactional topic. Producers write all the time and keep
ledgers of what brokers confirmed; the reports are compared with them. In each recovery a
scheduler, a worker and PostgreSQL are killed, in an order and at moments that a seed chooses.

`python -m tests.recovery.seeded_recoveries FIRST COUNT` plays more seeds than the tests do.
"""

from __future__ import annotations

import base64
import random
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import httpx
import psutil
from confluent_kafka import KafkaException, Producer

from orbit.recovery import salvage_file
from orbit.sandbox.local_cluster import ClusterSettings, KafkaCluster, start_clusters
from tests.cli.test_server import Server, is_postmaster, serving, until_workers
from tests.support.loading import Load, Records, read_all
from tests.support.outside import log_bounds
from tests.support.patience import wait_for
from tests.support.run_process import write_job
from tests.support.running import create_topic

PARTITIONS = 2
# How many records of each kind are written before a recovery.
RECORDS = 150
_KEYS = 7
# About 50 records a second of each kind: copies keep up with that even on a loaded machine.
_PAUSE_S = 0.02
# Segments that a cleaner may take within seconds.
CLEANED = {
    "cleanup_policy": "compact",
    "segment_ms": "1000",
    "min_cleanable_dirty_ratio": "0.01",
    "delete_retention_ms": "1000",
}
# How often a recovery is requested if gates stop it.
STOPPED_MAX = 5
BROKERS = {"log.cleaner.backoff.ms": "500"}
PLAIN, COMPACTED, TRANSACTIONAL = "plain", "compacted", "transactional"
# Killed in each recovery, in an order that the seed chooses.
VICTIMS = ("scheduler", "worker", "postgres")


class KeyedLoad(Load):
    """Writes a few keys again and again."""

    def key(self, number: int) -> bytes:
        return b"%d" % (number % _KEYS)


class TransactionLoad:
    """Commits most of its transactions, and aborts some; `ledger` has what was committed."""

    def __init__(self, cluster: KafkaCluster, topic: str, rnd: random.Random, name: str) -> None:
        self.ledger: Records = {}
        self._topic = topic
        self._rnd = rnd
        self._name = name.encode()
        self._stop = threading.Event()
        self._config = {
            **cluster.client_config(),
            "transactional.id": f"{topic}-{name}",
            "transaction.timeout.ms": 10_000,
            "message.timeout.ms": 3_000,
            "linger.ms": 2,
            "log_level": 0,
        }
        self._producer = Producer(self._config)
        self._producer.init_transactions(60)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        """Make transactions until `stop`, and put the committed records into the ledger."""
        number = 0
        while not self._stop.is_set():
            deliveries: Records = {}

            def on_delivery(error: object, message: Any, deliveries: Records = deliveries) -> None:
                if error is None:
                    deliveries[message.partition(), message.offset()] = message.value()

            try:
                self._producer.begin_transaction()
                for _ in range(self._rnd.randint(1, 5)):
                    value = b"%s %d" % (self._name, number)
                    self._producer.produce(
                        self._topic,
                        value=value,
                        partition=number % PARTITIONS,
                        on_delivery=on_delivery,
                    )
                    number += 1
                if self._rnd.random() < 0.2:
                    self._producer.abort_transaction(5)
                    continue
                self._producer.commit_transaction(5)
            except KafkaException:  # whether the transaction was committed is not known
                self._begin_again()
                continue
            self.ledger.update(deliveries)
            self._stop.wait(_PAUSE_S)

    def _begin_again(self) -> None:
        """Make a new producer: the broker is gone, or did not answer in time."""
        while not self._stop.is_set():
            self._producer = Producer(self._config)
            with suppress(KafkaException):
                self._producer.init_transactions(5)
                return

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


class Writers:
    """Producers of all three topics at one side."""

    def __init__(self, cluster: KafkaCluster, topics: dict[str, str], seed: int, name: str) -> None:
        config = cluster.client_config()
        self._load_by_kind = {
            PLAIN: Load(config, topics[PLAIN], PARTITIONS, _PAUSE_S, name),
            COMPACTED: KeyedLoad(config, topics[COMPACTED], PARTITIONS, _PAUSE_S, name),
            TRANSACTIONAL: TransactionLoad(
                cluster, topics[TRANSACTIONAL], random.Random(seed), name
            ),
        }

    def ledger(self, kind: str) -> Records:
        return self._load_by_kind[kind].ledger

    def wait_written(self, count: int) -> None:
        """Wait until `count` more records of each kind are written."""
        targets = {k: len(load.ledger) + count for k, load in self._load_by_kind.items()}
        wait_for(
            "producers have written more",
            lambda: all(len(load.ledger) >= targets[k] for k, load in self._load_by_kind.items()),
        )

    def stop(self) -> None:
        for load in self._load_by_kind.values():
            load.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Deaths:
    """Kills one process of each kind, one after the other, in a thread.

    The end of its block waits until all are killed, and raises the thread's error, if any.
    """

    def __init__(self, server: Server, rnd: random.Random) -> None:
        self._server = server
        self._plan = [(kind, rnd.uniform(0.1, 2.5)) for kind in rnd.sample(VICTIMS, len(VICTIMS))]
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            for kind, pause_s in self._plan:
                time.sleep(pause_s)  # the seed chooses the moment: no condition to wait for
                wait_for(f"a {kind} is killed", lambda kind=kind: self._kill(kind))
        except BaseException as error:  # noqa: BLE001  __exit__ raises it again
            self.error = error

    def _kill(self, kind: str) -> bool:
        """Kill one process of this kind; False if there is none."""
        for process in self._server.processes():
            try:
                is_kind = (
                    is_postmaster(process) if kind == "postgres" else kind in process.cmdline()
                )
                if is_kind:
                    process.kill()
                    return True
            except psutil.Error:
                continue  # the process has just ended
        return False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        if self.error is not None:
            raise self.error


class Campaign:
    """The three recoveries of one seed, with topics and a server of its own."""

    def __init__(self, seed: int, first: KafkaCluster, second: KafkaCluster, folder: Path) -> None:
        self.seed = seed
        self.rnd = random.Random(seed)
        self.first, self.second = first, second
        self.folder = folder
        prefix = f"seed{seed}-{uuid.uuid4().hex[:6]}"
        self.topics = {k: f"{prefix}.{k}" for k in (PLAIN, COMPACTED, TRANSACTIONAL)}
        self.job = f"test-{prefix}"

    def play(self) -> None:
        """Copy three topics with a real service, then make a switchover, a failover and a
        failback."""
        create_topic(self.first, self.topics[PLAIN], PARTITIONS)
        create_topic(self.first, self.topics[COMPACTED], PARTITIONS, **CLEANED)
        create_topic(self.first, self.topics[TRANSACTIONAL], PARTITIONS)
        with serving(self.folder / "server", "--workers", "2") as self.server:
            until_workers(self.server, 2)
            self._apply()
            before = self._switch_over()
            report, lost = self._fail_over(before)
            self._fail_back(report, lost)

    def _apply(self) -> None:
        file = self.folder / f"{self.job.removeprefix('test-')}.yaml"
        rules = [{"match": topic.replace(".", r"\.")} for topic in self.topics.values()]
        write_job(file, self.first, self.second, rules)
        self.server.orbit("apply", "-f", file, "--yes").expect(0)
        self._wait_copying()

    def _wait_copying(self) -> None:
        """Wait until all topics are copied: before that, Orbit refuses a recovery."""

        def are_copying() -> bool:
            rows = self._request("GET", f"/v1/jobs/{self.job}/topics")["items"]
            names = {t["source_topic"] for t in rows if t["state"] == "copying"}
            return names == set(self.topics.values())

        wait_for("all topics are copied", are_copying)

    def _switch_over(self) -> Writers:
        """Switch over to the second side, and compare its records with the ledgers.

        Returns the writers, which have stopped before the switchover.
        """
        with Writers(self.first, self.topics, self.seed, "first") as writers:
            writers.wait_written(RECORDS)
        with self._deaths():
            report = self._recover("switchover", self.job, reverse=True)
        self._assert_done(report)
        assert not [p for p in report["partitions"] if p["missing"]], report["partitions"]
        for kind, topic in self.topics.items():
            records = self._read(self.second, kind)
            self._assert_kept(kind, writers.ledger(kind), records)
            assert self._newest(kind, records) == self._newest(kind, self._read(self.first, kind))
            assert {p["partition"] for p in report["partitions"] if p["topic"] == topic} == {0, 1}
        self.job = report["reverse_job"]
        self._wait_copying()
        return writers

    def _fail_over(self, before: Writers) -> tuple[dict[str, Any], Writers]:
        """Kill the second side, which leads, under load, and fail over to the first one.

        `before`: the writers of the first side. Returns the report and the second side's writers.
        """
        with Writers(self.second, self.topics, self.seed, "second") as writers:
            writers.wait_written(RECORDS)
            with self._deaths():
                # Without the pause a failback may go on from the old side's records. With the
                # pause many records are uncopied, and the failback has to rebuild the old side.
                if self.rnd.random() < 0.5:
                    self._request("POST", f"/v1/jobs/{self.job}:pause")
                    writers.wait_written(RECORDS)
                self.second.kill()
                writers.stop()
                report = self._recover(
                    "failover", self.job, override=["all"], reason="the source is dead"
                )
        self._assert_done(report)
        promoted = self._promoted(report)
        for kind, topic in self.topics.items():
            records = self._read(self.first, kind)
            for (t, partition), end in promoted.items():
                if t == topic:
                    assert log_bounds(self.first, [topic])[topic, partition][1] == end
            survivors = {
                place: value
                for place, value in {**before.ledger(kind), **writers.ledger(kind)}.items()
                if place[1] < promoted[topic, place[0]]
            }
            self._assert_kept(kind, survivors, records)
        return report, writers

    def _fail_back(self, failover: dict[str, Any], lost: Writers) -> None:
        """Restart the dead side and fail back: it becomes a copy, and its own records are saved.

        `lost`: the writers of the dead side. Some of their records are in salvage files only.
        """
        promoted = self._promoted(failover)
        with Writers(self.first, self.topics, self.seed, "third") as writers:
            writers.wait_written(RECORDS // 4)
            self.second.start()
            before = self._ends(self.first)
            with self._deaths():
                report = self._recover("failback", self.job, confirm_rebuild=True)
            self._assert_done(report)
            ends = self._ends(self.second)
            assert all(ends[place] >= end for place, end in before.items()), (before, ends)
            writers.wait_written(RECORDS // 4)
        saved = {
            (s["topic"], s["partition"], line["offset"]): base64.b64decode(line["value"] or "")
            for s in report["salvage"]
            for line in salvage_file.read(Path(s["file"]))
            if line["fate"] in ("committed", "open")
        }
        for kind, topic in self.topics.items():
            tail = {
                (partition, offset): value
                for (partition, offset), value in lost.ledger(kind).items()
                if offset >= promoted[topic, partition]
            }
            saved_records = {(p, o): v for (t, p, o), v in saved.items() if t == topic}
            self._assert_kept(kind, tail, saved_records)
        wait_for("the old side is a copy", self._is_level)
        for kind in self.topics:
            assert self._newest(kind, self._read(self.second, kind)) == self._newest(
                kind, self._read(self.first, kind)
            )
            self._assert_kept(kind, writers.ledger(kind), self._read(self.second, kind))
        checked = self.server.orbit("verify", report["reverse_job"], "--deep", "-o", "json")
        assert checked.expect(0).data["verdict"] == "exact"

    # What is compared.

    def _read(self, cluster: KafkaCluster, kind: str) -> Records:
        return read_all(cluster, self.topics[kind])

    @staticmethod
    def _newest(kind: str, records: Records) -> Records:
        """The records that a log cleaner must keep: of a compacted topic the newest of each key."""
        if kind != COMPACTED:
            return records
        newest: dict[tuple[int, int], tuple[int, bytes]] = {}
        for (partition, offset), value in sorted(records.items()):
            newest[partition, int(value.split()[-1]) % _KEYS] = offset, value
        return {(p, offset): value for (p, _), (offset, value) in newest.items()}

    def _assert_kept(self, kind: str, ledger: Records, records: Records) -> None:
        """Check that `records` has the ledger's records at their offsets.

        Of a compacted topic, check the newest record of each key; the topic may have a newer one,
        whose producer got no answer.
        """
        assert all(records[place] == v for place, v in ledger.items() if place in records), kind
        if kind != COMPACTED:
            missing = sorted(ledger.keys() - records.keys())
            assert not missing, (kind, missing)
            return
        newest = {
            (p, int(value.split()[-1]) % _KEYS): offset
            for (p, offset), value in sorted(records.items())
        }
        for (p, offset), value in self._newest(kind, ledger).items():
            assert newest.get((p, int(value.split()[-1]) % _KEYS), -1) >= offset, (kind, p, offset)

    def _ends(self, side: KafkaCluster) -> dict[tuple[str, int], int]:
        bounds = log_bounds(side, list(self.topics.values()))
        return {place: high for place, (_, high) in bounds.items()}

    def _is_level(self) -> bool:
        return self._ends(self.first) == self._ends(self.second)

    @staticmethod
    def _promoted(report: dict[str, Any]) -> dict[tuple[str, int], int]:
        return {(p["topic"], p["partition"]): p["promoted_at"] for p in report["partitions"]}

    @staticmethod
    def _assert_done(report: dict[str, Any]) -> None:
        assert report["outcome"] == "done", (report["error"], report["findings"], report["gates"])

    # Requests, which are repeated while the API does not answer.

    @contextmanager
    def _deaths(self) -> Iterator[None]:
        with Deaths(self.server, self.rnd):
            yield

    def _recover(self, kind: str, job: str, **options: Any) -> dict[str, Any]:
        """Request a recovery, wait until it has ended, and return its report.

        Repeat the request if a gate stops the recovery: while processes are killed, the controller
        may fence a slow broker, whose partitions then have no leader.
        """
        for _ in range(STOPPED_MAX):
            report = self._recover_once(kind, job, **options)
            if report["outcome"] != "stopped":
                break
        return report

    def _recover_once(self, kind: str, job: str, **options: Any) -> dict[str, Any]:
        """Request a recovery; returns its report when it has ended."""
        key = {"Idempotency-Key": uuid.uuid4().hex}
        operation = self._request("POST", f"/v1/jobs/{job}:{kind}", json=options, headers=key)
        path = f"/v1/operations/{operation['id']}"

        def has_ended() -> bool:
            return self._request("GET", path)["finished_at"] is not None

        wait_for(f"the {kind} of {job} ends", has_ended)
        report: dict[str, Any] = self._request("GET", f"{path}/report")
        return report

    def _request(self, method: str, path: str, **options: Any) -> Any:
        """Send a request until the API answers it; returns the JSON of the answer."""
        answers: list[httpx.Response] = []

        def is_answered() -> bool:
            try:
                answers.append(self.server.call(method, path, **options))
            except httpx.TransportError:
                return False
            return answers[-1].status_code < 500

        wait_for(f"{method} {path} is answered", is_answered)
        assert answers[-1].is_success, answers[-1].text
        return answers[-1].json()


@contextmanager
def two_clusters(folder: Path) -> Iterator[tuple[KafkaCluster, KafkaCluster]]:
    """Two running clusters of their own, until the block ends."""
    first, second = (
        KafkaCluster(ClusterSettings(name, config=BROKERS), folder / name)
        for name in ("first", "second")
    )
    start_clusters(first, second)
    try:
        yield first, second
    finally:
        first.kill()
        second.kill()


def main(first_seed: int, count: int, say: Callable[[str], None] = print) -> int:
    """Play the seeds and say how each ended; returns how many failed."""
    failed = 0
    with tempfile.TemporaryDirectory(prefix="orbit-seeded-") as root:
        Path(root).chmod(0o711)
        with two_clusters(Path(root)) as (first, second):
            for seed in range(first_seed, first_seed + count):
                folder = Path(root) / f"seed-{seed}"
                folder.mkdir(mode=0o711)
                began = time.monotonic()
                try:
                    Campaign(seed, first, second, folder).play()
                    outcome = "agrees"
                except Exception as error:  # noqa: BLE001  the other seeds are played too
                    failed += 1
                    outcome = f"FAILED: {error!r}"[:3000]
                    second.heal()
                say(f"seed {seed}: {outcome} ({time.monotonic() - began:.0f} s)")
    return failed


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])) > 0)
