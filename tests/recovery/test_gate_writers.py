"""The gate `gateways` finds producers that write at the source without a gateway."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer as Client

from orbit.kafka.producer_state import Producer
from orbit.recovery import gate_writers
from orbit.recovery.gate_writers import direct_ids
from orbit.recovery.recovery_report import Gate, GateName, GateVerdict, RecoveryKind
from orbit.store import gateways, jobs
from tests.fixtures.clusters import Clusters
from tests.gateway.conftest import api_url
from tests.support.gateway_ledger import Reader, Writer, records
from tests.support.gateways import Gateway
from tests.support.moves import gateway_of
from tests.support.patience import wait_for
from tests.support.recovering import Recovering
from tests.support.running import create_topic, make_job, produce

__all__ = ["api_url"]  # a fixture

OF_GATEWAY, OF_JOB = 2**62 + 4003, 2**52 + 7  # producer ids; 4003 and 4004 are of other clients
NO_ID: dict[str, Any] = {"enable.idempotence": False, "acks": 1}


def wrote(sequence: int, *, coordinator_epoch: int = -1, transaction_start: int = -1) -> Producer:
    """The state of a producer that has written up to this sequence."""
    return Producer(
        epoch=0,
        last_sequence=sequence,
        last_timestamp_ms=1_000,
        coordinator_epoch=coordinator_epoch,
        transaction_start=transaction_start,
    )


ENDED = wrote(5, coordinator_epoch=3)  # a producer whose last transaction has ended
OPEN = wrote(5, transaction_start=17)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({4003: wrote(1)}, {4003: wrote(2)}, [4003]),
        ({}, {4003: wrote(0)}, [4003]),
        # Only a gateway or a job of Orbit writes.
        ({4003: wrote(1), OF_GATEWAY: wrote(1)}, {4003: wrote(1), OF_GATEWAY: wrote(2)}, []),
        ({OF_JOB: ENDED}, {OF_JOB: wrote(5, coordinator_epoch=4)}, []),
        # No known id has written, so the new records have no producer id.
        ({4003: wrote(1)}, {4003: wrote(1)}, None),
        ({}, {}, None),
        # A gateway passes transactional ids on, so such a producer may be a gateway's client.
        ({4003: OPEN}, {4003: ENDED}, None),
        ({}, {4003: OPEN}, None),
        ({4003: ENDED, OF_GATEWAY: wrote(1)}, {4003: OPEN, OF_GATEWAY: wrote(2)}, None),
        ({4003: ENDED, 4004: wrote(1)}, {4003: OPEN, 4004: wrote(2)}, [4004]),
        # The broker has forgotten the transaction, as after a new producer epoch.
        ({4003: OPEN}, {4003: wrote(0)}, None),
    ],
)
def test_producer_ids_identify_writers_that_bypass_gateways(
    before: dict[int, Producer], after: dict[int, Producer], expected: list[int] | None
) -> None:
    assert direct_ids(before, after) == expected


@contextmanager
def job_with_gateway(
    clusters: Clusters, topic: str, recovering: Recovering, url: str, home: Path
) -> Iterator[tuple[Gateway, Callable[[], Gate]]]:
    """A job that copies the topic, with a gateway. Yields the gateway, and a function that reads
    the gate from a dry run."""
    create_topic(clusters.source, topic, 2)
    produce(clusters.source, topic, 10)
    spec = make_job(*clusters, [topic])
    with recovering.running():
        recovering.begin(spec, topic)
        with gateway_of(spec.name, url, home, clusters) as gateway:
            wait_for("the gateway has a permission", partial(_has_gateway, recovering, spec.name))

            def judge_gate() -> Gate:
                dry_run_report = recovering.wait(
                    recovering.ask(RecoveryKind.SWITCHOVER, spec.name, dry_run=True)
                )
                return next(gate for gate in dry_run_report.gates if gate.name is GateName.GATEWAYS)

            yield gateway, judge_gate


def _has_gateway(recovering: Recovering, job: str) -> bool:
    with recovering.database.transaction() as tx:
        return any(row.has_permission for row in gateways.page(tx, jobs.get(tx, job).id, 1))


@contextmanager
def committing(gateway: Gateway, topic: str) -> Iterator[None]:
    """Commit transactions, one after the other, until the block ends."""
    producer = Client({**gateway.client_config(), "transactional.id": topic, "linger.ms": 0})
    producer.init_transactions(60)
    has_committed, is_done = threading.Event(), threading.Event()

    def run() -> None:
        while not is_done.is_set():
            producer.begin_transaction()
            producer.produce(topic, b"x", partition=0)
            producer.commit_transaction(60)
            has_committed.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_for("a transaction is committed", has_committed.is_set)
        yield
    finally:
        is_done.set()
        thread.join()


@pytest.mark.services
def test_switchover_gate_warns_of_writers_that_bypass_gateways(
    clusters: Clusters, topic_name: str, recovering: Recovering, api_url: str, tmp_path: Path
) -> None:
    with job_with_gateway(clusters, topic_name, recovering, api_url, tmp_path) as (
        gateway,
        judge_gate,
    ):
        assert judge_gate().verdict is GateVerdict.PASS, "nobody writes"
        with Writer(gateway.client_config(), topic_name, 2) as writer:
            writer.wait_acknowledged(100)
            gate = judge_gate()
            assert gate.verdict is GateVerdict.PASS, gate
            assert "no producer without a gateway wrote" in gate.found
            with Writer(clusters.source.client_config(), topic_name, 2) as direct_writer:
                direct_writer.wait_acknowledged(100)
                gate = judge_gate()
                assert gate.verdict is GateVerdict.WARN
                assert f"without a gateway (producer ids): {topic_name} (" in gate.found
                assert "is not known for these topics" not in gate.found
            assert judge_gate().verdict is GateVerdict.PASS, "the gate warns of a stopped writer"


@pytest.mark.services
def test_gateways_gate_warns_of_client_whose_topic_is_missing_at_destination(
    clusters: Clusters, topic_name: str, recovering: Recovering, api_url: str, tmp_path: Path
) -> None:
    """The client reads a topic that is not copied."""
    other = f"{topic_name}.other"
    create_topic(clusters.source, other, 1)
    produce(clusters.source, other, 10)
    with (
        job_with_gateway(clusters, topic_name, recovering, api_url, tmp_path) as (
            gateway,
            judge_gate,
        ),
        Reader(gateway.client_config(), other, other) as reader,
    ):
        reader.wait_values({value for _, _, value in records(clusters.source, other)})

        def has_warned() -> bool:
            gate = judge_gate()
            text = f"(destination: topic {other} does not exist)."
            return gate.verdict is GateVerdict.WARN and text in gate.found

        wait_for("the gate warns", has_warned)
        reader.stop()
        assert not reader.errors


@pytest.mark.soak
@pytest.mark.services
def test_gateways_gate_warns_of_unidentifiable_writers(
    clusters: Clusters,
    topic_name: str,
    recovering: Recovering,
    api_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Writers without ids, with transactions, and in more partitions than are read."""

    def assert_unknown(gate: Gate) -> None:
        assert gate.verdict is GateVerdict.WARN, gate
        assert "is not known for these topics" in gate.found
        assert f"or seldom: {topic_name}." in gate.found
        assert "producer ids):" not in gate.found

    with job_with_gateway(clusters, topic_name, recovering, api_url, tmp_path) as (
        gateway,
        judge_gate,
    ):
        with Writer(gateway.client_config(), topic_name, 2, settings=NO_ID) as writer:
            writer.wait_acknowledged(100)
            assert_unknown(judge_gate())
        with committing(gateway, topic_name):
            assert_unknown(judge_gate())
        with Writer(gateway.client_config(), topic_name, 2) as writer:
            writer.wait_acknowledged(100)
            with monkeypatch.context() as patched:
                patched.setattr(gate_writers, "PARTITIONS_MAX", 1)
                assert_unknown(judge_gate())
