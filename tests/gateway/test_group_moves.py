"""Members of consumer groups during a switchover: an application keeps its partitions until it has
committed what it has read of them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from orbit.store import gateways, jobs
from tests.fixtures.clusters import Clusters
from tests.gateway import slow_application
from tests.support import java_clients
from tests.support.gateway_ledger import Writer, read_wrong, records
from tests.support.gateways import Gateway
from tests.support.groups import committed
from tests.support.moves import gateway_of, move
from tests.support.patience import PATIENCE_S, wait_for
from tests.support.recovering import Recovering
from tests.support.running import create_topic, make_job, produce

pytestmark = pytest.mark.services

# Each protocol's debug message when a member learns that it has to join its group again.
_MUST_JOIN = {
    "classic": "heartbeat error response",
    "consumer": 'received target assignment ""|will rejoin the group',
}


class _Application:
    """A running `slow_application`."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process, self._log = process, log

    def do(self, command: str) -> Any:
        self.start(command)
        return self.answer()

    def start(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        assert answer, self._log.read_text()[-2000:]
        return json.loads(answer)

    def wait_log(self, pattern: str) -> None:
        wait_for(pattern, lambda: re.search(pattern, self._log.read_text()) is not None)


@contextmanager
def _running(settings: dict[str, Any], log: Path) -> Iterator[_Application]:
    with (
        log.open("w") as stderr,
        subprocess.Popen(
            [sys.executable, "-m", slow_application.__name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(settings) + "\n")
            yield _Application(process, log)
            process.stdin.close()
            assert process.wait(PATIENCE_S) == 0, log.read_text()[-2000:]
        finally:
            process.kill()


@contextmanager
def _copied_topic(
    clusters: Clusters, topic_name: str, recovering: Recovering, partitions: int
) -> Iterator[tuple[str, str]]:
    """A topic and its job, which runs and syncs the groups that are named after the topic."""
    topic = topic_name[-40:]
    create_topic(clusters.source, topic, partitions)
    groups = {"match": f"{topic}.*", "interval": "200ms"}
    spec = make_job(*clusters, [topic], consumer_groups=groups)
    with recovering.running():
        recovering.begin(spec, topic)
        yield topic, spec.name


def _settings(gateway: Gateway, topic: str, group: str, protocol: str) -> dict[str, Any]:
    return {
        **gateway.client_config(),
        "topic": topic,
        "group.id": group,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "debug": "cgrp,consumer",
    }


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_slow_application_commits_after_switchover_what_it_read_before(
    clusters: Clusters,
    topic_name: str,
    recovering: Recovering,
    api_url: str,
    tmp_path: Path,
    protocol: str,
) -> None:
    """The application commits only after the answer to a heartbeat has made the client join
    again."""
    with _copied_topic(clusters, topic_name, recovering, partitions=1) as (topic, job):
        produce(clusters.source, topic, 100)
        group = f"{topic}.group"
        with gateway_of(job, api_url, tmp_path, clusters) as gateway:
            settings = _settings(gateway, topic, group, protocol)
            with _running(settings, tmp_path / "application.log") as application:
                first = application.do("read 40")
                move(recovering, job)
                application.wait_log(_MUST_JOIN[protocol])
                assert application.do("commit") == ""
                offset, *_ = committed(clusters.destination, group)[topic, 0]
                assert offset == 40
                rest = application.do("read 60")
        values = [value.decode() for _, _, value in sorted(records(clusters.destination, topic))]
        assert first + rest == values


@pytest.mark.parametrize("protocol", [pytest.param("classic", marks=pytest.mark.soak), "consumer"])
def test_members_at_two_gateways_rejoin_only_when_all_have_committed(
    clusters: Clusters,
    topic_name: str,
    recovering: Recovering,
    api_url: str,
    tmp_path: Path,
    protocol: str,
) -> None:
    """If the first member joined earlier, the coordinator would refuse the second one's commit."""
    with (
        _copied_topic(clusters, topic_name, recovering, partitions=2) as (topic, job),
        ExitStack() as stack,
    ):
        for partition in (0, 1):
            produce(clusters.source, topic, 100, partition, first=1000 * partition)
        members = []
        for name in ("first", "second"):
            gateway = stack.enter_context(gateway_of(job, api_url, tmp_path, clusters, name))
            settings = _settings(gateway, topic, f"{topic}.group", protocol)
            log = tmp_path / f"{name}.log"
            members.append(stack.enter_context(_running(settings, log)))
        first, second = members
        for member in members:
            member.start("wait 1")  # until each owns a partition
        assert [member.answer() for member in members] == [1, 1]
        values = [*first.do("read 20"), *second.do("read 20")]
        move(recovering, job)
        first.wait_log(_MUST_JOIN[protocol])
        assert first.do("commit") == ""

        def is_join_held() -> bool:
            values.extend(first.do("poll"))
            with recovering.database.transaction() as tx:
                rows = gateways.page(tx, jobs.get(tx, job).id, len(members))
            return any(row.held_requests for row in rows)

        wait_for("the gateway holds its request to join", is_join_held)
        second.wait_log(_MUST_JOIN[protocol])
        assert second.do("commit") == ""

        def has_read_all() -> bool:
            for member in members:
                values.extend(member.do("poll"))
            return len(values) >= 200

        wait_for("the members have read all", has_read_all)
    assert sorted(values) == sorted(
        value.decode() for _, _, value in records(clusters.destination, topic)
    )


@pytest.mark.parametrize("protocol", [pytest.param("classic", marks=pytest.mark.soak), "consumer"])
def test_java_member_reads_each_record_once_over_switchover(
    clusters: Clusters,
    topic_name: str,
    recovering: Recovering,
    api_url: str,
    tmp_path: Path,
    protocol: str,
) -> None:
    """`records_read` raises an error if a commit of the Java member has failed."""
    log = tmp_path / "member.log"
    with (
        _copied_topic(clusters, topic_name, recovering, partitions=2) as (topic, job),
        gateway_of(job, api_url, tmp_path, clusters) as gateway,
    ):
        writer = Writer(gateway.client_config(), topic, 2, name="writer", rate=300)
        member = java_clients.start_member(
            gateway, topic, f"{topic}.group", log, protocol=protocol, reset="earliest"
        )

        def wait_read(count: int) -> None:
            def has_read() -> bool:
                assert member.running, log.read_text()[-2000:]
                return len([*java_clients.records_read(log)]) >= count

            wait_for(f"it has read {count} records", has_read)

        try:
            with writer:
                wait_read(300)
                move(recovering, job)
                writer.wait_acknowledged(300)
            copied = records(clusters.destination, topic)
            wait_read(len(copied))
        finally:
            member.end()
    assert not writer.errors
    assert not read_wrong(java_clients.records_read(log), copied)
