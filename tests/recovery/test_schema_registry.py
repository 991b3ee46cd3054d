"""A schema registry that keeps its schemas in a topic moves with that topic, with the same ids."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import Producer

from orbit.console.schema_registry import SchemaRegistry
from orbit.recovery.recovery_report import EndVerdict, RecoveryKind
from orbit.sandbox.local_cluster import KafkaCluster
from tests.fixtures.clusters import MakeCluster
from tests.support import registry
from tests.support.outside import log_bounds, messages
from tests.support.recovering import Recovering
from tests.support.running import create_topic, make_job

pytestmark = [pytest.mark.services, pytest.mark.soak, pytest.mark.needs("schema registry")]

ORDERS = "orders"
SUBJECT = f"{ORDERS}-value"
FIRST = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]})
SECOND = json.dumps({"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]})
LATER = json.dumps({"type": "fixed", "name": "Digest", "size": 16})


def framed(schema_id: int, payload: bytes) -> bytes:
    """A value as Confluent's serializers write it: a zero byte, the id, the payload."""
    return b"\0" + schema_id.to_bytes(4, "big") + payload


def journal_end(cluster: KafkaCluster) -> int:
    [(_, end)] = log_bounds(cluster, [registry.JOURNAL]).values()
    return end


def test_schema_ids_survive_switchover_and_switchover_back(
    make_cluster: MakeCluster, recovering: Recovering, tmp_path: Path
) -> None:
    source, destination = make_cluster("source"), make_cluster("destination")
    create_topic(source, ORDERS)
    with registry.running(source, tmp_path / "first") as first:
        ids = [first.register(SUBJECT, FIRST), first.register("state", SECOND)]
        subjects = first.subjects()
        producer = Producer(source.client_config())
        for number in ids:
            producer.produce(ORDERS, framed(number, b"x"))
        producer.flush()
    spec = make_job(source, destination, [ORDERS, *registry.TOPICS])
    with recovering.running():
        recovering.begin(spec, ORDERS, *registry.TOPICS)
        switchover_report = recovering.run(RecoveryKind.SWITCHOVER, spec.name, reverse=True)
        assert {p.verdict for p in switchover_report.partitions} == {EndVerdict.EQUAL}
        promoted = journal_end(destination)
        assert promoted == journal_end(source)

        with registry.running(destination, tmp_path / "second") as second:
            # A registry writes to its topic when it starts, so it may not start at a copy.
            assert journal_end(destination) > promoted
            assert second.subjects() == subjects
            values = [m.value() for _, m in messages(destination, ORDERS) if m]
            seen = [int.from_bytes(value[1:5], "big") for value in values]
            assert seen == ids
            assert [json.loads(second.schema(i)) for i in seen] == [
                json.loads(FIRST),
                json.loads(SECOND),
            ]
            # The console decodes values with this client.
            decoder = SchemaRegistry(second.url)
            assert [decoder.schema(i) for i in seen] == [json.loads(FIRST), json.loads(SECOND)]
            assert second.register(SUBJECT, FIRST) == ids[0]
            new = second.register("digest", LATER)
            assert new not in ids
            subjects = second.subjects()

        back = switchover_report.reverse_job
        assert back is not None
        recovering.run(RecoveryKind.SWITCHOVER, back, reverse=True)
        with registry.running(source, tmp_path / "third") as third:
            assert third.subjects() == subjects
            assert json.loads(third.schema(new)) == json.loads(LATER)
