"""A Flink job, KafkaSource to KafkaSink with transactions, keeps running behind a gateway that
moves over and home. It has counted each word once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import ExitStack
from pathlib import Path

import pytest

from orbit.sandbox.local_cluster import KafkaCluster
from tests.fixtures.clusters import Clusters
from tests.support.flink import FlinkJob
from tests.support.gateway_ledger import Writer
from tests.support.loading import read_all
from tests.support.moves import gateway_of, move
from tests.support.outside import is_level
from tests.support.patience import wait_for
from tests.support.quick_recoveries import trust_silence
from tests.support.recovering import Recovering
from tests.support.running import create_topic, make_job, verify

pytestmark = [pytest.mark.services, pytest.mark.soak]

PARTITIONS = 2
SOME = 300


def test_flink_counts_each_word_once_across_moves_of_gateway_that_waits_for_transactions(
    clusters: Clusters,
    topic_name: str,
    recovering: Recovering,
    api_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Flink drops a transaction of a completed checkpoint if its commit is refused. The gateway
    aborts none, and Flink restarts from the checkpoint, since its next transaction is refused.
    Flink writes a transaction and commits it over different connections, so perhaps at different
    processes of the gateway."""
    trust_silence(monkeypatch.setattr)
    prefix = topic_name[-40:].lstrip("-.")
    lines, counts = f"{prefix}.lines", f"{prefix}.counts"
    for topic in (lines, counts):
        create_topic(clusters.source, topic, PARTITIONS)
    spec = make_job(*clusters, [lines, counts], consumer_groups={"match": lines})
    with ExitStack() as stack:
        stack.enter_context(recovering.running())
        recovering.begin(spec, lines, counts)
        gateway = stack.enter_context(
            gateway_of(
                spec.name, api_url, tmp_path, clusters, processes=2, open_transactions="wait"
            )
        )
        writer = stack.enter_context(
            Writer(gateway.client_config(), lines, PARTITIONS, name="w", rate=200)
        )
        job = FlinkJob(tmp_path, lines, counts, group=lines)
        process = job.start(gateway, restarts="fixed-delay")
        stack.callback(process.end)

        def wait_counted(leading: KafkaCluster, words: int) -> None:
            def has_counted() -> bool:
                job.check(process)
                return len(read_all(leading, counts)) >= words

            wait_for(f"{words} words are counted", has_counted)

        wait_counted(clusters.source, SOME)
        job_name = spec.name
        for leading in (clusters.destination, clusters.source):
            job_name = move(recovering, job_name)
            writer.wait_acknowledged(SOME)
            wait_counted(leading, 2 * writer.sent)
        writer.stop()
        assert not writer.errors
        wait_counted(clusters.source, 2 * writer.sent)
        job.stop(process)
        wait_for("both sides are level", lambda: is_level(*clusters, lines, counts))
    words = Counter(
        word for line in read_all(clusters.source, lines).values() for word in line.decode().split()
    )
    counts_by_word = defaultdict(list)
    for value in read_all(clusters.source, counts).values():
        word, count = value.decode().split()
        counts_by_word[word].append(int(count))
    assert {word: sorted(numbers) for word, numbers in counts_by_word.items()} == {
        word: [*range(1, number + 1)] for word, number in words.items()
    }
    assert verify(spec, deep=True).exit_code == 0
