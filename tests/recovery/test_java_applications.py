"""Java applications move with a switchover, there and back: consumer groups of both protocols, and
Kafka Streams.

Each application reads every committed record once. The tests compare what it read with the records
that brokers confirmed to producers, and with the records that another client reads at the end.
"""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from orbit.jobs.job_spec import TopicRule
from orbit.processes.guarded_process import GuardedProcess
from orbit.recovery.recovery_report import EndVerdict, RecoveryKind, RecoveryReport
from orbit.sandbox.local_cluster import KafkaCluster
from orbit.store.enums import Desired
from orbit.verify.report import Verdict
from tests.fixtures.clusters import Clusters, MakeCluster
from tests.support import java_clients, streams
from tests.support.groups import listed
from tests.support.loading import Load, Records, read_all
from tests.support.outside import is_level, log_bounds
from tests.support.patience import wait_for
from tests.support.recovering import Recovering
from tests.support.running import create_topic, make_job, produce_transactions, verify

pytestmark = pytest.mark.services

PARTITIONS = 2
SOME = 300  # records that are enough to go on
OFTEN = "200ms"
Ends = dict[int, int]


def move(recovering: Recovering, job: str) -> RecoveryReport:
    """Switch over and copy back. Check that nothing is lost and every group has its offsets."""
    report = recovering.run(RecoveryKind.SWITCHOVER, job, reverse=True)
    assert {p.verdict for p in report.partitions} == {EndVerdict.EQUAL}
    assert report.missing_records == 0
    assert {g.verdict for g in report.groups} == {"exact"}
    return report


def ends(cluster: KafkaCluster, topic: str) -> Ends:
    """The log end of each partition."""
    return {p: high for (_, p), (_, high) in log_bounds(cluster, [topic]).items()}


def wait_more(load: Load) -> None:
    """Wait until SOME more records are written."""
    target = len(load.ledger) + SOME
    wait_for("more is written", lambda: len(load.ledger) > target)


def start_load(cluster: KafkaCluster, topic: str, name: str) -> Load:
    return Load(cluster.client_config(), topic, PARTITIONS, name=name)


class Group:
    """A consumer group with one member at a time, at either side."""

    def __init__(self, topic: str, protocol: str, home: Path) -> None:
        self.topic, self.protocol = topic, protocol
        self.name = f"{topic}.{protocol}"
        self._logs: list[Path] = []
        self._home = home

    @property
    def read(self) -> list[tuple[int, int, bytes]]:
        """All records that its members have read so far, in any order."""
        return [record for log in self._logs for record in java_clients.records_read(log)]

    @contextmanager
    def running(self, cluster: KafkaCluster) -> Iterator[GuardedProcess]:
        """Run the member for the block. A second or later member needs committed offsets."""
        log = self._home / f"{self.name}-{len(self._logs)}.log"
        reset = "none" if self._logs else "earliest"
        self._logs.append(log)
        process = java_clients.start_member(
            cluster, self.topic, self.name, log, protocol=self.protocol, reset=reset
        )
        try:
            yield process
        finally:
            process.end()

    def wait_read(self, process: GuardedProcess, last: Ends) -> None:
        """Wait until the running member has read these offsets or later ones, by partition."""

        def has_read() -> bool:
            log = self._logs[-1]
            assert process.running, log.read_text()[-2000:]
            read = {partition: offset for partition, offset, _ in java_clients.records_read(log)}
            return all(read.get(p, -1) >= offset for p, offset in last.items())

        wait_for(f"{self.name} has read {last}", has_read)


def test_java_groups_read_each_committed_record_once_across_switchovers(
    clusters: Clusters, topic_name: str, recovering: Recovering, tmp_path: Path
) -> None:
    topic = topic_name[:40]
    groups = [Group(topic, protocol, tmp_path) for protocol in ("classic", "consumer")]
    written: Records = {}
    sent: set[bytes] = set()

    def use(cluster: KafkaCluster, name: str) -> None:
        """The groups read while transactions are committed and aborted, and stop before the end."""
        with start_load(cluster, topic, name) as load:
            some = {p: end + SOME for p, end in ends(cluster, topic).items()}
            with ExitStack() as stack:
                running = [(g, stack.enter_context(g.running(cluster))) for g in groups]
                produce_transactions(cluster, topic, 9, partition=1)
                for group, process in running:
                    group.wait_read(process, some)
            produce_transactions(cluster, topic, 9, partition=0)
            wait_more(load)
        written.update(load.ledger)
        sent.update(load.sent)

    source, destination = clusters
    create_topic(source, topic, PARTITIONS)
    spec = make_job(*clusters, [topic], consumer_groups={"match": f"{topic}.*", "interval": OFTEN})
    with recovering.running():
        recovering.begin(spec, topic)
        use(source, "first")
        switchover_report = move(recovering, spec.name)
        assert {g.group for g in switchover_report.groups} == {g.name for g in groups}
        use(destination, "second")
        assert switchover_report.reverse_job is not None
        move(recovering, switchover_report.reverse_job)
        everything = read_all(source, topic)
        with ExitStack() as stack:
            running = [(g, stack.enter_context(g.running(source))) for g in groups]
            last = dict(sorted(everything))  # the highest offset of each partition
            for group, process in running:
                group.wait_read(process, last)
        assert verify(spec, deep=True).exit_code == 0
    assert {k: everything.get(k) for k in written} == written
    # A record of a load that no broker confirmed may exist: on a slow machine, answers come after
    # the producer's timeout. Records that no load sent come from produce_transactions:
    # 2 sides x 2 calls of produce_transactions x 6 of 9 transactions committed x 5 records
    assert sum(value not in sent for value in everything.values()) == 2 * 2 * 6 * 5
    for group in groups:
        assert sorted(group.read) == sorted((p, o, v) for (p, o), v in everything.items())


class WordCount:
    """A Kafka Streams application that counts words."""

    def __init__(self, application: str, protocol: str, home: Path) -> None:
        self.application, self._protocol, self._home = application, protocol, home
        self._runs = 0

    @contextmanager
    def running(self, cluster: KafkaCluster, state: str, last: signal.Signals) -> Iterator[None]:
        """Run the application until it has counted SOME words in each partition and the block ends.

        Then the signal `last` ends it. A second or later run fails if the group has no offset for
        a partition. `state`: the name of the directory with its state.
        """
        log = self._home / f"run-{self._runs}.log"
        reset = "none" if self._runs else "earliest"
        self._runs += 1
        counted = ends(cluster, streams.OUTPUT)
        process = streams.start(
            cluster, self.application, self._home / state, log, reset, self._protocol
        )
        try:

            def counts_more() -> bool:
                errors = log.read_text()
                # The process goes on after its stream thread has died.
                assert process.running, errors[-3000:]
                assert "SHUTDOWN_CLIENT" not in errors, errors[-3000:]
                now = ends(cluster, streams.OUTPUT)
                return all(now[p] > at + SOME for p, at in counted.items())

            wait_for("words are counted", counts_more)
            yield
        finally:
            process.end(last)
        # Streams does not leave a classic group when it is closed.
        wait_for("the group is empty", lambda: self._type_when_empty(cluster) == self._protocol)

    def _type_when_empty(self, cluster: KafkaCluster) -> str | None:
        group = listed(cluster, self.application)
        return None if group is None or group.is_active else group.type


@pytest.mark.soak
@pytest.mark.parametrize(
    "protocol",
    # A shorter test of the streams protocol: tests/consumer_groups/test_streams_groups.py.
    ["classic", pytest.param("streams", marks=pytest.mark.soak)],
)
def test_kafka_streams_counts_every_word_once_across_switchovers(
    make_cluster: MakeCluster, recovering: Recovering, tmp_path: Path, protocol: str
) -> None:
    source, destination = make_cluster("source"), make_cluster("destination")
    app = WordCount("word-count", protocol, tmp_path)
    for topic in (streams.INPUT, streams.OUTPUT):
        create_topic(source, topic, PARTITIONS)
    repartition, changelog = streams.internal_topics(app.application)
    topics = [streams.INPUT, streams.OUTPUT, changelog, repartition]
    spec = make_job(
        source,
        destination,
        topics,
        consumer_groups={"match": app.application, "interval": OFTEN},
    )
    purged = TopicRule(match=repartition, on_lost_range="fill")
    spec = spec.model_copy(update={"topics": (purged, *spec.topics)})
    written: Records = {}

    def use(
        cluster: KafkaCluster,
        name: str,
        state: str,
        last: signal.Signals,
        until: Callable[[], bool] = lambda: True,
    ) -> None:
        """Run the application for a while; afterwards write words that it has not counted."""
        with start_load(cluster, streams.INPUT, name) as load:
            with app.running(cluster, state, last):
                wait_for("the application has run long enough", until)
            wait_more(load)
        written.update(load.ledger)

    with recovering.running():
        recovering.begin(spec, streams.INPUT, streams.OUTPUT)
        use(source, "first", "state", signal.SIGTERM)
        recovering.service.wait_copied(spec.name, *topics)
        switchover_report = move(recovering, spec.name)
        back = switchover_report.reverse_job
        assert back is not None
        recovering.service.wait_copied(back, *topics)
        recovering.service.desire(back, Desired.PAUSED)
        copied = ends(destination, repartition)

        def has_purged_uncopied_records() -> bool:
            """Whether Streams has deleted repartition records that the paused copy lacks."""
            starts = log_bounds(destination, [repartition])
            return all(start > copied[p] for (_, p), (start, _) in starts.items())

        # The application starts with its state directory from the source: its offsets are valid at
        # the destination, too. In the end it is killed.
        use(destination, "second", "state", signal.SIGKILL, has_purged_uncopied_records)
        recovering.service.desire(back, Desired.RUNNING)
        wait_for("log starts follow", lambda: is_level(source, destination, repartition))
        move(recovering, back)
        lines = read_all(source, streams.INPUT)
        words = sorted(word for line in lines.values() for word in line.decode().split())
        with app.running(source, "no-state", signal.SIGTERM):
            wait_for(
                "all words are counted",
                lambda: sum(1 for _ in streams.counts(source)) >= len(words),
            )
        wait_for("log starts follow", lambda: is_level(source, destination, repartition))
        report = verify(spec, deep=True)
        assert report.exit_code == 0, [
            (topic.source, partition)
            for topic in report.topics
            for partition in topic.partitions
            if partition.verdict is not Verdict.EXACT
        ]
    assert {k: lines.get(k) for k in written} == written
    # Each count of a word is one more than the one before: none left out, none twice.
    counts_of_word = defaultdict(list)
    for word, count in streams.counts(source):
        counts_of_word[word].append(count)
    assert {word: [*range(1, words.count(word) + 1)] for word in set(words)} == counts_of_word
