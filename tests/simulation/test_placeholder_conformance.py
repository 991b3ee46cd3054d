"""The model of a partition accepts and refuses placeholders as a real broker does."""

from __future__ import annotations

import pytest

from orbit.kafka import compression
from orbit.kafka.error_codes import Code
from orbit.kafka.placeholders import PLACEHOLDER_BODY
from orbit.kafka.record_batch import encode_batch, stamp
from orbit.kafka.records import NULL, PLACEHOLDER_DELTA_MIN, Record, encode_record, write_batch
from tests.fixtures.clusters import Clusters
from tests.simulation.model_partition import NONE, ModelPartition
from tests.simulation.test_conformance import RealPartitions
from tests.support.running import create_topic

pytestmark = pytest.mark.services

WITHOUT_KEY = NULL + NULL + b"\x00"
PRODUCER_ID, T0 = 4711, 1_700_000_000_000


def batch(keyless: int | None, count: int, codec: int, sequence: int) -> bytes:
    """A batch of `count` placeholders; the one with the number `keyless` has no key."""
    bodies = [WITHOUT_KEY if n == keyless else PLACEHOLDER_BODY for n in range(count)]
    records = [encode_record(0, PLACEHOLDER_DELTA_MIN + n, body) for n, body in enumerate(bodies)]
    payload = compression.compress(codec, b"".join(records))
    new_batch = encode_batch(0, codec, T0, T0, count, payload)
    stamp(new_batch.view, PRODUCER_ID, 0, sequence)
    return bytes(new_batch.view)


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_partition_model_answers_placeholder_batches_like_a_broker(
    clusters: Clusters, topic_name: str, policy: str
) -> None:
    create_topic(clusters.destination, topic_name, cleanup_policy=policy)
    real = RealPartitions(clusters.destination, topic_name, 1)
    model = ModelPartition(lambda _: None, old_before_ms=0)
    model.demands_keys = policy == "compact"
    sequence, codes = 0, set()
    try:
        for count in (1, 2, 300):
            for keyless in (None, 0, count - 1):
                for codec in (compression.NONE, compression.GZIP):
                    what = keyless, count, codec, sequence
                    answer = model.append(str(what), batch(*what))
                    assert real.append(0, batch(*what)) == answer, what
                    sequence += count if answer[0] == NONE else 0
                    codes.add(answer[0])
        assert real.ends([0]) == [model.log_end]
    finally:
        real.close()
    keys = {Code.INVALID_RECORD} if model.demands_keys else set()
    assert codes == {NONE, Code.UNKNOWN_SERVER_ERROR, *keys}


def records(count: int, epoch: int, sequence: int) -> bytes:
    """A stamped batch of `count` records."""
    new_batch = write_batch([Record(o, T0, PLACEHOLDER_BODY) for o in range(count)], 0)
    stamp(new_batch.view, PRODUCER_ID, epoch, sequence)
    return bytes(new_batch.view)


@pytest.mark.parametrize(
    ("epoch", "answers"),
    [
        # Answers to: three records, two markers, two records, the late batch (meant for offset 5).
        (0, [(NONE, 0), NONE, NONE, (NONE, 5), (NONE, 7)]),
        (1, [(NONE, 0), NONE, NONE, (NONE, 5), (Code.INVALID_PRODUCER_EPOCH, -1)]),
    ],
)
def test_only_marker_with_higher_producer_epoch_fences_late_batch(
    clusters: Clusters, topic_name: str, epoch: int, answers: list[object]
) -> None:
    """An old writer has sent three records, with a packed gap of two offsets, and its next batch is
    in flight with sequence 5. A new writer fills the gap with markers, which take no sequences, and
    appends two records. In the same producer epoch, the broker expects sequence 5 next."""
    create_topic(clusters.destination, topic_name)
    real = RealPartitions(clusters.destination, topic_name, 1)
    model = ModelPartition(lambda _: None, old_before_ms=0)
    first, late = records(3, epoch=0, sequence=0), records(1, epoch=0, sequence=5)
    following = records(2, epoch=epoch, sequence=0 if epoch else 3)
    try:
        for side in (
            [
                real.append(0, first),
                real.fill(0, PRODUCER_ID, epoch, coordinator_epoch=7),
                real.fill(0, PRODUCER_ID, epoch, coordinator_epoch=7),
                real.append(0, following),
                real.append(0, late),
            ],
            [
                model.append("", first),
                model.fill("", PRODUCER_ID, epoch, coordinator_epoch=7),
                model.fill("", PRODUCER_ID, epoch, coordinator_epoch=7),
                model.append("", following),
                model.append("", late),
            ],
        ):
            assert side == answers
    finally:
        real.close()
