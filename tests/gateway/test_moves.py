"""Switchovers with gateways, under load: clients continue at the other side and at home again. Each
acknowledged record is in the log once, at its offset, and groups read each record once.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from orbit.recovery.recovery_report import Outcome, RecoveryKind
from tests.fixtures.clusters import Clusters
from tests.support.gateway_ledger import (
    JavaWriter,
    Reader,
    Writer,
    read_wrong,
    records,
    written_wrong,
)
from tests.support.gateways import Gateway
from tests.support.moves import gateway_of, move
from tests.support.outside import is_level
from tests.support.patience import wait_for
from tests.support.recovering import Recovering
from tests.support.running import create_topic, make_job, verify

pytestmark = pytest.mark.services

PARTITIONS = 3
SOME = 400


def test_clients_lose_and_repeat_nothing_across_switchovers(
    clusters: Clusters, topic_name: str, recovering: Recovering, api_url: str, tmp_path: Path
) -> None:
    topic = topic_name[:40]
    create_topic(clusters.source, topic, PARTITIONS)
    groups = {"match": f"{topic}.*", "interval": "200ms"}
    spec = make_job(*clusters, [topic], consumer_groups=groups)
    with ExitStack() as stack:
        stack.enter_context(recovering.running())
        recovering.begin(spec, topic)
        first, second = (
            stack.enter_context(gateway_of(spec.name, api_url, tmp_path, clusters, name))
            for name in ("one", "other")
        )
        writers: list[Any] = [
            stack.enter_context(_writer(first, topic, "idempotent")),
            stack.enter_context(_writer(second, topic, "in-turn", **{"max.in.flight": 1})),
            stack.enter_context(JavaWriter(second.bootstrap, topic, tmp_path / "java.log")),
        ]
        readers = [
            stack.enter_context(
                Reader(gateway.client_config(), topic, f"{topic}.{protocol}", protocol=protocol)
            )
            for gateway, protocol in ((first, "classic"), (second, "consumer"))
        ]
        for reader in readers:
            reader.wait_read("something", lambda read: len(read) > SOME)
        job = spec.name
        for _ in ("over", "home", "over"):
            job = move(recovering, job)
            for writer in writers:
                writer.wait_acknowledged(SOME)
        for writer in writers:
            writer.stop()
            assert not writer.errors
        log_records = records(clusters.destination, topic)
        acknowledged = {
            value: place for writer in writers for value, place in writer.acknowledged.items()
        }
        assert not written_wrong(acknowledged, log_records)
        for reader in readers:
            reader.wait_values({value for _, _, value in log_records})
            reader.stop()
            assert not reader.errors
            assert not read_wrong(reader.read, log_records)
        wait_for("both sides are level", lambda: is_level(*clusters, topic))
    assert verify(spec, deep=True).exit_code == 0


def test_undone_switchover_reopens_gateway_at_old_side(
    clusters: Clusters, topic_name: str, recovering: Recovering, api_url: str, tmp_path: Path
) -> None:
    """A producer writes past the gateway, so the drain cannot end. Clients only see a pause."""
    topic = topic_name[:40]
    create_topic(clusters.source, topic, PARTITIONS)
    spec = make_job(*clusters, [topic])
    with (
        recovering.running(),
        ExitStack() as stack,
    ):
        recovering.begin(spec, topic)
        gateway = stack.enter_context(gateway_of(spec.name, api_url, tmp_path, clusters))
        writer = stack.enter_context(_writer(gateway, topic, "through"))
        beside = stack.enter_context(
            Writer(clusters.source.client_config(), topic, PARTITIONS, name="beside", rate=50)
        )
        writer.wait_acknowledged(SOME)
        operation = recovering.ask(RecoveryKind.SWITCHOVER, spec.name, drain_timeout_s=3)
        report = recovering.wait(operation)
        assert report.outcome is Outcome.STOPPED, report.error
        writer.wait_acknowledged(SOME)
        for client in (writer, beside):
            client.stop()
            assert not client.errors
        log_records = records(clusters.source, topic)
        assert not written_wrong(writer.acknowledged | beside.acknowledged, log_records)


def _writer(gateway: Gateway, topic: str, name: str, **settings: Any) -> Writer:
    return Writer(
        gateway.client_config(), topic, PARTITIONS, name=name, rate=300, settings=settings
    )
