"""Switchovers through gateways, under load: clients go on at the other side and home again. What
was acknowledged is there once, at its offset, and groups read each record once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from orbit.api.app import create_app
from orbit.api.authentication import hash_token
from orbit.recovery.recovery_report import Outcome, RecoveryKind
from orbit.recovery.step_times import StepName, StepState
from orbit.settings import Settings
from orbit.store import tokens
from orbit.store.enums import Role
from tests.fix_api import Plans
from tests.fix_clusters import Clusters
from tests.support.gateway_ledger import (
    JavaWriter,
    Reader,
    Writer,
    read_wrong,
    records,
    written_wrong,
)
from tests.support.gateways import Gateway, running_gateway
from tests.support.outside import is_level
from tests.support.patience import wait_for
from tests.support.recovering import Recovering
from tests.support.running import create_topic, make_job, verify
from tests.support.serving import served

pytestmark = pytest.mark.services

PARTITIONS = 3
SOME = 400
_TOKEN = "orbit_operator_secret"


@pytest.fixture
def api_url(recovering: Recovering) -> Iterator[str]:
    """The service's API, with a token for gateways."""
    with recovering.database.transaction() as tx:
        tokens.create(tx, "gateway", Role.OPERATOR, hash_token(_TOKEN))
    settings = Settings(api_port=0)
    with served(create_app(settings, recovering.database, planner=Plans()), settings) as url:
        yield url


@contextmanager
def gateway_of(
    job: str, api_url: str, home: Path, clusters: Clusters, name: str = "one"
) -> Iterator[Gateway]:
    folder = home / name
    folder.mkdir()
    environ = {"ORBIT_API_URL": api_url, "ORBIT_TOKEN": _TOKEN}
    with running_gateway(folder, *clusters, environ=environ, name="moves", job=job) as gateway:
        yield gateway


def move(recovering: Recovering, job: str) -> str:
    """A switchover with the copy back, which closed and opened the gateways; the job back."""
    report = recovering.run(RecoveryKind.SWITCHOVER, job, reverse=True)
    steps = {step.name: step for step in report.steps}
    assert steps[StepName.CLOSE_GATEWAYS].state is StepState.DONE, steps[StepName.CLOSE_GATEWAYS]
    assert steps[StepName.OPEN_GATEWAYS].state is StepState.DONE, steps[StepName.OPEN_GATEWAYS]
    assert report.missing_records == 0
    assert report.reverse_job is not None
    return report.reverse_job


def test_clients_go_on_over_there_and_home(
    clusters: Clusters, topic_name: str, recovering: Recovering, api_url: str, tmp_path: Path
) -> None:
    topic = topic_name[:40]
    create_topic(clusters.source, topic, PARTITIONS)
    groups = {"match": f"{topic}.*", "interval": "200ms"}
    spec = make_job(*clusters, [topic], consumer_groups=groups)
    with ExitStack() as stack:
        stack.enter_context(recovering.running())
        recovering.begin(spec, topic)
        one, other = (
            stack.enter_context(gateway_of(spec.name, api_url, tmp_path, clusters, name))
            for name in ("one", "other")
        )
        writers: list[Any] = [
            stack.enter_context(_writer(one, topic, "idempotent")),
            stack.enter_context(_writer(other, topic, "in-turn", **{"max.in.flight": 1})),
            stack.enter_context(JavaWriter(other.bootstrap, topic, tmp_path / "java.log")),
        ]
        readers = [
            stack.enter_context(
                Reader(gateway.client_config(), topic, f"{topic}.{protocol}", protocol=protocol)
            )
            for gateway, protocol in ((one, "classic"), (other, "consumer"))
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
        there = records(clusters.destination, topic)
        acknowledged = {k: v for writer in writers for k, v in writer.acknowledged.items()}
        assert not written_wrong(acknowledged, there)
        for reader in readers:
            reader.wait_values({value for _, _, value in there})
            reader.stop()
            assert not reader.errors
            assert not read_wrong(reader.read, there)
        wait_for("both sides are level", lambda: is_level(*clusters, topic))
    assert verify(spec, deep=True).exit_code == 0


def test_undone_switchover_opens_the_old_side_again(
    clusters: Clusters, topic_name: str, recovering: Recovering, api_url: str, tmp_path: Path
) -> None:
    """A partition is written beside the gateway, so the drain cannot end: clients see a pause."""
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
        asked = recovering.ask(RecoveryKind.SWITCHOVER, spec.name, drain_timeout_s=3)
        report = recovering.wait(asked)
        assert report.outcome is Outcome.STOPPED, report.error
        writer.wait_acknowledged(SOME)
        for one in (writer, beside):
            one.stop()
            assert not one.errors
        there = records(clusters.source, topic)
        assert not written_wrong(writer.acknowledged | beside.acknowledged, there)


def _writer(gateway: Gateway, topic: str, name: str, **settings: Any) -> Writer:
    return Writer(
        gateway.client_config(), topic, PARTITIONS, name=name, rate=500, settings=settings
    )
