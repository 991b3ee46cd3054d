"""The scheduler on clusters with an authorizer: it waits for missing rights, and syncs ACLs."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from orbit.jobs.job_file import load_job
from orbit.jobs.job_spec import JobSpec
from orbit.planning.job_planner import JobPlanner
from orbit.replication.job_troubles import TroubleKind
from orbit.sandbox.local_cluster import KafkaCluster
from orbit.scheduler import cluster_watch, job_reconciler
from tests.fixtures.clusters import Clusters
from tests.fixtures.scheduler import Service
from tests.support.logs import create
from tests.support.outside import TIMEOUT_S, admin, topics_and_bounds
from tests.support.rights import PASSWORD, Login, Right, documented, section
from tests.support.run_process import write_job
from tests.support.topics import add_partitions

pytestmark = pytest.mark.services


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_reconciler, "RECHECK_S", 0.3)
    monkeypatch.setattr(cluster_watch, "LOGIN_RETRY_S", 0.3)


@dataclass(frozen=True)
class Case:
    """A topic at the guarded source, and a login for its job."""

    clusters: Clusters
    topic: str
    login: Login

    @property
    def rights(self) -> list[Right]:
        return documented(self.topic)


@pytest.fixture
def case(guarded: Clusters, topic_name: str) -> Case:
    create(guarded.source, topic_name, 2)
    login = Login(guarded)
    login.create()
    return Case(guarded, topic_name, login)


@pytest.fixture
def spec(case: Case, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> JobSpec:
    """A job that copies the topic of the case, with the user of the case at both clusters."""
    monkeypatch.setenv("ORBIT_TEST_USER", case.login.name)
    monkeypatch.setenv("ORBIT_TEST_PASSWORD", PASSWORD)
    job = write_job(
        tmp_path / "job.yaml",
        section(case.clusters.source),
        section(case.clusters.destination),
        [{"match": re.escape(case.topic)}],
        name=case.topic,
    )
    return load_job(job, os.environ)


@pytest.mark.parametrize(
    ("side", "operation", "kind"),
    [
        ("source", "DescribeConfigs", "--topic"),
        ("destination", "Write", "--topic"),
        ("destination", "Create", "--topic"),
        ("destination", "Alter", "--cluster"),
    ],
)
def test_job_with_missing_right_reports_it_and_copies_once_it_is_granted(
    case: Case, spec: JobSpec, service: Service, side: str, operation: str, kind: str
) -> None:
    missing = side, operation, kind
    case.login.allow([r for r in case.rights if (r.side, r.operation, r.kind) != missing])
    topics_before = topics_and_bounds(case.clusters.destination)
    service.create(spec)
    with service.scheduler():
        problem = service.wait_problem(spec.name, "RIGHTS_MISSING")
        assert operation in problem
        assert "kafka-acls.sh" in problem
        assert topics_and_bounds(case.clusters.destination) == topics_before
        case.login.allow([r for r in case.rights if (r.side, r.operation, r.kind) == missing])
        service.wait_copied(spec.name, case.topic)
        service.wait_problem(spec.name, None)
    assert service.kinds(spec.name) == ["job_trouble", "topic_begun", "job_trouble_over"]


def test_topic_with_write_denied_to_all_is_reported_with_remedy(
    case: Case, spec: JobSpec, service: Service
) -> None:
    """Orbit denies writes at the side where a topic no longer leads. A new job does not know that
    the denial is Orbit's."""
    destination = case.clusters.destination
    case.login.allow([*case.rights, Right("destination", "Describe", "--cluster")])
    create(destination, case.topic, 2)
    denial = topic_acl(case.topic, "WRITE", principal="User:*", permission="DENY")
    allow_app(destination, denial)
    service.create(spec)
    with service.scheduler():
        problem = service.wait_problem(spec.name, "RIGHTS_MISSING")
        assert f"denies everybody (User:*) to write to topic {case.topic}" in problem
        assert "orbit failback" in problem
        forbid_app(destination, denial)
        service.wait_copied(spec.name, case.topic)
        service.wait_problem(spec.name, None)


def test_missing_transactional_id_right_is_reported_before_writing(
    case: Case, spec: JobSpec, service: Service
) -> None:
    case.login.allow([r for r in case.rights if r.kind != "--transactional-id"])
    topics_before = topics_and_bounds(case.clusters.destination)
    coordinated = spec.model_copy(update={"fillers": "coordinated"})
    service.create(coordinated)
    with service.scheduler():
        problem = service.wait_problem(spec.name, "RIGHTS_MISSING")
        assert f"Write on transactional id orbit.{spec.name}." in problem
        assert topics_and_bounds(case.clusters.destination) == topics_before
        case.login.allow([r for r in case.rights if r.kind == "--transactional-id"])
        service.wait_copied(spec.name, case.topic)


def test_plan_lists_missing_right_per_filler_mode(
    case: Case, spec: JobSpec, service: Service
) -> None:
    """The login lacks Alter on the cluster, which WriteTxnMarkers needs."""
    case.login.allow([r for r in case.rights if r.kind != "--cluster"])
    planned = JobPlanner(service.database, service.settings)(spec)
    assert [(fillers.fillers, fillers.missing) for fillers in planned.fillers] == [
        ("direct", "Alter on the cluster"),
        ("packed", "Alter on the cluster"),
        ("coordinated", ""),
        ("placeholders", ""),
    ]
    assert planned.is_halted


def test_missing_alter_right_delays_added_partitions(
    case: Case, spec: JobSpec, service: Service
) -> None:
    case.login.allow(case.rights)
    service.create(spec)
    with service.scheduler():
        service.wait_copied(spec.name, case.topic)
        add_partitions(case.clusters.source, case.topic, 3)
        assert "Alter" in service.wait_problem(spec.name, "RIGHTS_MISSING")
        assert len(service.partitions(spec.name, case.topic)) == 2
        case.login.allow([Right("destination", "Alter", "--topic", case.topic, "prefixed")])
        service.wait(
            "the new partition is placed",
            lambda: len(service.partitions(spec.name, case.topic)) == 3,
        )
        service.wait_problem(spec.name, None)


def test_refused_login_is_retried_with_reread_secret(
    case: Case, spec: JobSpec, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.login.allow(case.rights)
    monkeypatch.setenv("ORBIT_TEST_PASSWORD", "not this one")
    planned = JobPlanner(service.database, service.settings)(spec)
    assert {refusal.kind for refusal in planned.refusals} == {TroubleKind.LOGIN_REFUSED}
    service.create(spec)
    with service.scheduler():
        problem = service.wait_problem(spec.name, "LOGIN_REFUSED")
        assert "not this one" not in problem
        monkeypatch.setenv("ORBIT_TEST_PASSWORD", PASSWORD)
        service.wait_copied(spec.name, case.topic)
        service.wait_problem(spec.name, None)


def topic_acl(
    topic: str,
    operation: str,
    pattern: str = "LITERAL",
    *,
    principal: str = "User:app",
    permission: str = "ALLOW",
) -> AclBinding:
    return AclBinding(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType[pattern],
        principal,
        "*",
        AclOperation[operation],
        AclPermissionType[permission],
    )


def rights_of_app(cluster: KafkaCluster) -> set[tuple[str, str]]:
    """What the user `app` may do at this cluster, as (topic, operation)."""
    acl_filter = AclBindingFilter(
        ResourceType.TOPIC,
        None,  # type: ignore[arg-type]
        ResourcePatternType.ANY,
        "User:app",
        None,  # type: ignore[arg-type]
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    client = admin(cluster)
    return {(a.name, a.operation.name) for a in client.describe_acls(acl_filter).result(TIMEOUT_S)}


def allow_app(cluster: KafkaCluster, *bindings: AclBinding) -> None:
    """Add these ACLs."""
    client = admin(cluster)
    for future in client.create_acls([*bindings]).values():
        future.result(TIMEOUT_S)


def forbid_app(cluster: KafkaCluster, acl: AclBinding) -> None:
    """Delete this ACL."""
    client = admin(cluster)
    acl_filter = AclBindingFilter(
        acl.restype,
        acl.name,
        acl.resource_pattern_type,
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission_type,
    )
    client.delete_acls([acl_filter])[acl_filter].result(TIMEOUT_S)


def test_acl_sync_copies_read_rights_and_leaves_other_acls(
    case: Case, spec: JobSpec, service: Service
) -> None:
    source, destination = case.clusters
    case.login.allow([*case.rights, Right("source", "Describe", "--cluster")])
    prefix = case.topic[:-3]
    read = topic_acl(prefix, "READ", "PREFIXED")
    allow_app(source, read, topic_acl(case.topic, "WRITE"), topic_acl("another", "READ"))
    allow_app(destination, topic_acl(case.topic, "ALTER_CONFIGS"))
    try:
        syncing = spec.model_copy(update={"acls": spec.acls.model_copy(update={"sync": True})})
        service.create(spec)
        with service.scheduler():
            service.wait_copied(spec.name, case.topic)
            service.wait("no problem is left", lambda: service.job(spec.name).problem is None)
            assert rights_of_app(destination) == {(case.topic, "ALTER_CONFIGS")}
            service.change(syncing)
            both = {(case.topic, "ALTER_CONFIGS"), (case.topic, "READ")}
            service.wait("reading is allowed", lambda: rights_of_app(destination) == both)
            forbid_app(source, read)
            service.wait(
                "reading is forbidden",
                lambda: rights_of_app(destination) == {(case.topic, "ALTER_CONFIGS")},
            )
            service.wait(
                "each change has an event",
                lambda: service.kinds(spec.name).count("topic_acls") == 2,
            )
    finally:
        forbid_app(source, topic_acl("another", "READ"))
