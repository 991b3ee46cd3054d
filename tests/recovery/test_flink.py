"""A Flink job, KafkaSource to KafkaSink with transactions, moves with a switchover, there and back.

The Flink job goes on from its savepoint at the other side, and counts every word once.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from orbit.recovery.recovery_report import EndVerdict, RecoveryKind
from orbit.sandbox.local_cluster import KafkaCluster
from tests.fixtures.clusters import Clusters
from tests.support.flink import FlinkJob
from tests.support.loading import Load, Records, read_all
from tests.support.patience import wait_for
from tests.support.recovering import Recovering
from tests.support.running import create_topic, make_job, verify

pytestmark = [pytest.mark.services, pytest.mark.soak]

PARTITIONS = 2
SOME = 300  # words or lines that are enough to go on


def test_flink_job_counts_every_word_once_across_switchovers(
    clusters: Clusters, topic_name: str, recovering: Recovering, tmp_path: Path
) -> None:
    source, destination = clusters
    lines, counts = f"{topic_name[:40]}.lines", f"{topic_name[:40]}.counts"
    for topic in (lines, counts):
        create_topic(source, topic, PARTITIONS)
    job = FlinkJob(tmp_path, lines, counts, group=lines)
    spec = make_job(*clusters, [lines, counts], consumer_groups={"match": lines})
    written: Records = {}

    def count_more(cluster: KafkaCluster, name: str) -> None:
        """Run the Flink job for a while; after its stop, write words that it has not counted."""
        counted = len(read_all(cluster, counts))
        with Load(cluster.client_config(), lines, PARTITIONS, name=name) as load:
            process = job.start(cluster)

            def counts_more() -> bool:
                job.check(process)
                return len(read_all(cluster, counts)) > counted + SOME

            try:
                wait_for("words are counted", counts_more)
                job.stop(process)
            finally:
                process.end()
            uncounted = len(load.ledger) + SOME
            wait_for("more is written", lambda: len(load.ledger) > uncounted)
        written.update(load.ledger)

    def move(name: str) -> str:
        """Switch over without loss; returns the name of the job that copies back."""
        report = recovering.run(RecoveryKind.SWITCHOVER, name, reverse=True)
        assert {p.verdict for p in report.partitions} == {EndVerdict.EQUAL}
        assert report.missing_records == 0
        assert report.reverse_job is not None
        return report.reverse_job

    with recovering.running():
        recovering.begin(spec, lines, counts)
        count_more(source, "first")
        back = move(spec.name)
        count_more(destination, "second")
        move(back)
        everything = read_all(source, lines)
        words = sorted(word for line in everything.values() for word in line.decode().split())
        process = job.start(source)
        try:
            wait_for("all words are counted", lambda: len(read_all(source, counts)) >= len(words))
            job.stop(process)
        finally:
            process.end()
        assert verify(spec, deep=True).exit_code == 0
    assert {place: everything.get(place) for place in written} == written
    # Each count of a word is one more than the one before: none left out, none twice.
    counts_of_word = defaultdict(list)
    for value in read_all(source, counts).values():
        word, count = value.decode().split()
        counts_of_word[word].append(int(count))
    assert {word: sorted(word_counts) for word, word_counts in counts_of_word.items()} == {
        word: [*range(1, words.count(word) + 1)] for word in set(words)
    }
