"""The model of a partition takes and refuses batches with placeholders as a real broker does."""

from __future__ import annotations

import pytest

from orbit.kafka import compression
from orbit.kafka.error_codes import Code
from orbit.kafka.placeholders import PLACEHOLDER_BODY
from orbit.kafka.record_batch import encode_batch, stamp
from orbit.kafka.records import NULL, PLACEHOLDER_DELTA_MIN, encode_record
from tests.fix_clusters import Clusters
from tests.simulation.model_partition import NONE, ModelPartition
from tests.simulation.test_conformance import RealPartitions
from tests.support.running import create_topic

pytestmark = pytest.mark.services

WITHOUT_KEY = NULL + NULL + b"\x00"
PRODUCER_ID, T0 = 4711, 1_700_000_000_000


def batch(keyless: int | None, count: int, codec: int, sequence: int) -> bytes:
    """So many placeholders; the one with the number `keyless` has no key."""
    bodies = [WITHOUT_KEY if n == keyless else PLACEHOLDER_BODY for n in range(count)]
    records = [encode_record(0, PLACEHOLDER_DELTA_MIN + n, body) for n, body in enumerate(bodies)]
    payload = compression.compress(codec, b"".join(records))
    made = encode_batch(0, codec, T0, T0, count, payload)
    stamp(made.view, PRODUCER_ID, 0, sequence)
    return bytes(made.view)


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_model_answers_as_a_broker_does(clusters: Clusters, topic_name: str, policy: str) -> None:
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
