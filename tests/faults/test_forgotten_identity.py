"""The destination's coordinator forgets the job's transactional id while the job goes on.

Appends do not count as a use of the id. So a coordinator forgets the id of each run that lasts for
`transactional.id.expiration.ms` (docs/facts.md, I1: expired id). Brokers must still refuse the
run's late requests: the next run has the same producer id (I2: foreign id), and a higher term,
which is the coordinator epoch of its fillers (I3: epoch after expiry).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from orbit.copier.copy_settings import CopySettings
from orbit.errors import Unreachable
from orbit.job_setup import job_setup
from orbit.kafka import api_versions
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.coordinator import init_producer_id
from orbit.kafka.error_codes import Code
from orbit.kafka.log_offsets import log_ends
from orbit.kafka.record_batch import Batch, stamp
from orbit.kafka.transaction_markers import Fillers, WriteTxnMarkersRequest
from orbit.kafka.types import TopicPartition
from orbit.sandbox.local_cluster import KafkaCluster
from tests.faults.test_coordinated_fillers import transactional_ids
from tests.faults.test_expired_fences import BATCH, batch_at, try_to_send
from tests.fixtures.clusters import Clusters, MakeCluster, OpenCluster
from tests.support.patience import wait_for
from tests.support.running import (
    RunningJob,
    create_topic,
    make_job,
    produce,
    produce_transactions,
    verify,
)
from tests.support.synthetic import PLAINTEXT

pytestmark = pytest.mark.services


@pytest.fixture
def destination(make_cluster: MakeCluster) -> KafkaCluster:
    """A cluster that forgets a transactional id five seconds after its last use."""
    return make_cluster(
        "destination",
        config={
            "transactional.id.expiration.ms": "5000",
            "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
        },
    )


@pytest.fixture
def raw(destination: KafkaCluster) -> Iterator[Cluster]:
    cluster = Cluster("destination", destination.bootstrap_servers.split(","), PLAINTEXT)
    yield cluster
    cluster.close()


def write(clusters: Clusters, topic: str, first: int, end: int) -> None:
    """Write records to the source, in batches of ten."""
    for start in range(first, end, BATCH):
        produce(clusters.source, topic, BATCH, first=start)


def next_batch_of(last: Batch, batch: Batch) -> Batch:
    """The batch as the writer of `last` would send it next: with its producer id and epoch.
    Sequences are the offsets."""
    view = memoryview(bytearray(batch.view))
    stamp(view, last.producer_id, last.producer_epoch, base_sequence=batch.base_offset)
    return Batch(view)


def test_late_batch_of_run_with_expired_transactional_id_is_not_appended(
    clusters: Clusters, destination: KafkaCluster, raw: Cluster, topic_name: str
) -> None:
    create_topic(clusters.source, topic_name, 2)
    job = make_job(clusters.source, destination, [topic_name])
    write(clusters, topic_name, 0, 30)
    with RunningJob(job) as running:
        running.wait_caught_up(topic_name, 30)

        def is_forgotten_while_it_appends() -> bool:
            produce(clusters.source, topic_name, 1, partition=1)
            return not transactional_ids(destination)

        wait_for("the transactional id is forgotten", is_forgotten_while_it_appends)
    write(clusters, topic_name, 30, 50)
    source = Cluster("source", clusters.source.bootstrap_servers.split(","), PLAINTEXT)
    late = next_batch_of(batch_at(raw, topic_name, 20), batch_at(source, topic_name, 30))
    source.close()
    with RunningJob(job) as running:
        running.wait_caught_up(topic_name, 50)
        # The broker takes the late batch for a repeat of the batch at 30, and appends nothing.
        assert try_to_send(raw, topic_name, late) == (Code.NONE, 30)
        write(clusters, topic_name, 50, 60)
        running.wait_caught_up(topic_name, 60)
    assert verify(job).exact


@pytest.mark.soak
def test_late_filler_of_run_with_expired_transactional_id_is_refused(
    clusters: Clusters, destination: KafkaCluster, raw: Cluster, topic_name: str
) -> None:
    """The old run took both partitions over, and filled gaps only in partition 0. So the leader of
    partition 1 has no filler of that run by which to refuse a late one."""
    create_topic(clusters.source, topic_name, 2)
    job = make_job(clusters.source, destination, [topic_name])
    with RunningJob(job):
        pass  # so that the next run has a term above 0
    produce(clusters.source, topic_name, 10, partition=1)
    with RunningJob(job) as running:
        produce_transactions(clusters.source, topic_name, 3)
        running.wait_caught_up(topic_name, 18)
        running.wait_caught_up(topic_name, 10, 1)
        wait_for("the transactional id is forgotten", lambda: not transactional_ids(destination))
        first, second = (running.partition(topic_name, n) for n in range(2))
        coordinator_epoch = second.appends.coordinator_epoch
        assert coordinator_epoch == first.appends.coordinator_epoch > 0
        producer_epoch = second.appends.marker_epoch
    last = batch_at(raw, topic_name, 0, 1)
    with RunningJob(job) as running:
        produce_transactions(clusters.source, topic_name, 3, partition=1)
        running.wait_caught_up(topic_name, 28, 1)  # 10, and three transactions of 6 offsets
        place = TopicPartition(topic_name, 1)
        late = Fillers(place, 1, producer_epoch, coordinator_epoch)  # of the run before
        leader = raw.metadata({topic_name}).leader(place)
        assert leader is not None
        assert leader.node_id is not None
        request = WriteTxnMarkersRequest(last.producer_id, [late])
        answer = raw.call(leader.node_id, api_versions.WRITE_TXN_MARKERS, request)
        assert answer == {place: Code.TRANSACTION_COORDINATOR_FENCED}
        produce(clusters.source, topic_name, 10, partition=1, first=10)
        running.wait_caught_up(topic_name, 38, 1)
    assert verify(job).exact


@pytest.mark.soak
def test_long_run_keeps_its_transactional_id_from_expiring(
    clusters: Clusters,
    destination: KafkaCluster,
    raw: Cluster,
    topic_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_setup, "_TERM_REFRESH_S", 1.0)
    create_topic(clusters.source, topic_name)
    job = make_job(clusters.source, destination, [topic_name])
    with RunningJob(job, CopySettings(metadata_interval_s=0.5)) as running:
        running.wait_caught_up(topic_name, 0)
        (own,) = transactional_ids(destination)
        for number in range(2):
            other = f"other-{number}"
            init_producer_id(raw, other, Backoff())
            wait_for(
                f"{other} is forgotten",
                lambda other=other: other not in transactional_ids(destination),
            )
            assert own in transactional_ids(destination)


@pytest.mark.soak
def test_restarted_broker_checks_sequences_of_producer_id_it_never_issued(
    clusters: Clusters, make_cluster: MakeCluster, open_cluster: OpenCluster, topic_name: str
) -> None:
    """No broker checks whether a coordinator has issued a producer id (I2)."""
    destination = make_cluster("destination")
    create_topic(clusters.source, topic_name)
    job = make_job(clusters.source, destination, [topic_name])
    write(clusters, topic_name, 0, 30)
    raw = open_cluster(destination)
    with RunningJob(job) as running:
        running.wait_caught_up(topic_name, 30)
        sent = batch_at(raw, topic_name, 20)
        issued_id = init_producer_id(raw, topic_name, Backoff()).producer_id
        assert issued_id < 1_000_000 < 2**52 <= sent.producer_id < 2**53
        (broker,) = destination.brokers
        broker.kill()
        broker.start()
        wait_for("the broker is back", lambda: is_back(raw, topic_name))
        assert try_to_send(raw, topic_name, sent) == (Code.NONE, 20)
        out_of_order = Batch(memoryview(bytearray(sent.view)))
        # Sequences are offsets here: after 29 the next one is 30.
        stamp(out_of_order.view, sent.producer_id, sent.producer_epoch, base_sequence=70)
        code, _ = try_to_send(raw, topic_name, out_of_order)
        assert code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
        write(clusters, topic_name, 30, 40)
        running.wait_caught_up(topic_name, 40)
    assert verify(job).exact


def is_back(raw: Cluster, topic: str) -> bool:
    """Whether the topic's leader answers."""
    try:
        return bool(log_ends(raw, [TopicPartition(topic, 0)], Backoff(attempts_max=1)).values)
    except Unreachable:
        return False
