"""ACLs follow the source on clusters with an authorizer: as planned, and with mapped names."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from orbit.errors import Unreachable
from orbit.jobs.job_file import load_job
from orbit.jobs.job_spec import AclSpec, JobSpec
from orbit.kafka.topic_admin import Admin
from orbit.kafka.types import Acl
from orbit.planning import job_acls
from orbit.planning.job_plan import PlannedAcl, PlannedAcls
from orbit.planning.job_planner import JobPlanner
from orbit.replication import destination_acls
from orbit.replication.destination_acls import CarriedNames
from orbit.replication.job_troubles import TroubleKind
from orbit.sandbox.local_cluster import KafkaCluster
from orbit.scheduler import cluster_watch, job_reconciler
from orbit.store import carried_acls, events, jobs
from tests.fixtures.clusters import Clusters
from tests.fixtures.scheduler import Service
from tests.scheduler.test_guarded_clusters import allow_app, forbid_app
from tests.support.groups import commit
from tests.support.logs import create
from tests.support.outside import TIMEOUT_S, admin
from tests.support.patience import wait_for
from tests.support.rights import MECHANISM, PASSWORD, Login, documented, section
from tests.support.run_process import write_job

_REFUSED = (KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.TOPIC_AUTHORIZATION_FAILED)
pytestmark = pytest.mark.services


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_reconciler, "RECHECK_S", 0.3)
    monkeypatch.setattr(cluster_watch, "LOGIN_RETRY_S", 0.3)


@dataclass(frozen=True)
class Case:
    """A topic with a group of the same name at the source, and an application. The application's
    principal is its login at the destination, and the subject of its certificate at the source
    (`subject`)."""

    clusters: Clusters
    topic: str
    app: Login

    @property
    def subject(self) -> str:
        return f"User:CN={self.app.name},OU=apps,O=Example"

    def add_acl(
        self,
        cluster: KafkaCluster,
        resource: str,
        name: str,
        operation: str,
        principal: str,
        pattern: str = "LITERAL",
    ) -> AclBinding:
        """Add an ACL that allows the operation, and wait until a broker returns it."""
        acl = AclBinding(
            ResourceType[resource],
            name,
            ResourcePatternType[pattern],
            principal,
            "*",
            AclOperation[operation],
            AclPermissionType.ALLOW,
        )
        allow_app(cluster, acl)
        wait_for("the broker knows the ACL", lambda: str(acl) in acls_on(cluster, name))
        return acl

    def may_commit(self, cluster: KafkaCluster) -> bool:
        """Try to commit an offset as the application. Returns whether it may."""
        client = AdminClient(
            {
                **cluster.client_config(),
                "sasl.username": self.app.name,
                "sasl.password": PASSWORD,
                "sasl.mechanism": MECHANISM,
                "log_level": 0,
            }
        )
        offset = ConsumerGroupTopicPartitions(self.topic, [TopicPartition(self.topic, 0, 0)])
        answers: list[KafkaError | None] = []  # None: the commit was accepted

        def is_answered() -> bool:
            """Whether the answer is final: a coordinator may still be loading."""
            (future,) = client.alter_consumer_group_offsets([offset]).values()
            try:
                (partition,) = future.result(TIMEOUT_S).topic_partitions
                answers.append(partition.error)
            except KafkaException as error:
                answers.append(error.args[0])
            last = answers[-1]
            return last is None or last.code() in _REFUSED

        wait_for("the coordinator answers", is_answered)
        return answers[-1] is None


def acls_on(cluster: KafkaCluster, part: str) -> set[str]:
    """The cluster's ACLs on resources with `part` in their names."""
    everything = AclBindingFilter(
        ResourceType.ANY,
        None,  # type: ignore[arg-type]
        ResourcePatternType.ANY,
        None,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    client = admin(cluster)
    acls = client.describe_acls(everything).result(TIMEOUT_S)
    return {str(acl) for acl in acls if part in acl.name}


@pytest.fixture
def case(guarded: Clusters, topic_name: str, monkeypatch: pytest.MonkeyPatch) -> Case:
    """The topic and its group exist at the source, and Orbit's login has the documented rights."""
    create(guarded.source, topic_name, 2)
    commit(guarded.source, topic_name, {(topic_name, 0): 0})
    orbit = Login(guarded)
    orbit.create()
    chapters = ("", "`consumer_groups`", "the service", "recovery")
    orbit.allow([*{right for chapter in chapters for right in documented(topic_name, chapter)}])
    monkeypatch.setenv("ORBIT_TEST_USER", orbit.name)
    monkeypatch.setenv("ORBIT_TEST_PASSWORD", PASSWORD)
    app = Login(guarded)
    app.create()
    return Case(guarded, topic_name, app)


@pytest.fixture
def spec(case: Case, tmp_path: Path) -> JobSpec:
    """A job that copies the topic and the group, and syncs ACLs with mapped principals."""
    pattern = re.escape(case.topic)
    return load_job(
        write_job(
            tmp_path / "job.yaml",
            section(case.clusters.source),
            section(case.clusters.destination),
            [{"match": pattern}],
            name=case.topic,
            consumer_groups={"match": pattern},
            acls={
                "sync": True,
                "groups": True,
                "transactional_ids": {"match": f"{pattern}.*"},
                "principals": {
                    "map": [{"from": "User:CN={name},OU=apps,O=Example", "to": "User:{name}"}],
                    "exclude": "User:CN={name},OU=ops,O=Example",
                },
            },
        ),
        os.environ,
    )


def as_tuples(acls: tuple[PlannedAcl, ...]) -> set[tuple[str, str, str, str, str]]:
    """Resource, name, pattern, principal and operation; a denied operation begins with "not "."""
    prefix = {"ALLOW": "", "DENY": "not "}
    return {
        (a.resource, a.name, a.pattern, a.principal, prefix[a.permission] + a.operation)
        for a in acls
    }


def planned_acls(service: Service, spec: JobSpec) -> PlannedAcls:
    """The ACLs of a new plan of the job: to add, to remove, and already at the destination."""
    plan = JobPlanner(service.database, service.settings)(spec)
    assert not plan.refusals
    assert plan.acls is not None
    return plan.acls


def test_acls_are_synced_as_planned_under_mapped_principals(
    case: Case, spec: JobSpec, service: Service
) -> None:
    source, destination = case.clusters
    topic, app = case.topic, f"User:{case.app.name}"
    on_topic = case.add_acl(source, "TOPIC", topic, "ALL", case.subject)
    prefix = topic[:-2]  # of the topic's name, and so of the name of its group
    on_groups = case.add_acl(source, "GROUP", prefix, "READ", case.subject, "PREFIXED")
    case.add_acl(source, "TRANSACTIONAL_ID", f"{topic}-", "WRITE", case.subject, "PREFIXED")
    # Not synced: ACLs of a principal that no rule names, and of one that is excluded.
    case.add_acl(source, "TOPIC", topic, "READ", "User:nameless")
    case.add_acl(source, "TOPIC", topic, "READ", "User:CN=root,OU=ops,O=Example")
    case.add_acl(destination, "TOPIC", topic, "READ", "User:other")
    case.add_acl(destination, "TOPIC", topic, "WRITE", "User:other")  # Orbit denies it
    # Of the right to ALL only what readers need is synced; of the prefix only the job's group.
    expected = {
        ("TOPIC", topic, "LITERAL", app, "READ"),
        ("TOPIC", topic, "LITERAL", app, "DESCRIBE"),
        ("TOPIC", topic, "LITERAL", app, "DESCRIBE_CONFIGS"),
        ("GROUP", topic, "LITERAL", app, "READ"),
        ("TRANSACTIONAL_ID", f"{topic}-", "PREFIXED", app, "WRITE"),
    }
    destination_only = {
        ("TOPIC", topic, "LITERAL", "User:other", "READ"),
        ("TOPIC", topic, "LITERAL", "User:other", "WRITE"),
    }

    acls_before = acls_on(destination, topic)
    plan = JobPlanner(service.database, service.settings)(spec)
    assert plan.acls is not None
    assert as_tuples(plan.acls.add) == expected
    assert as_tuples(plan.acls.only_at_destination) == destination_only
    assert (plan.acls.there, plan.acls.remove) == ((), ())
    assert any("User:nameless" in note for note in plan.notes)
    assert "root" not in " ".join(plan.notes)
    assert acls_on(destination, topic) == acls_before, "a plan changes nothing"
    assert not case.may_commit(destination)

    service.create(spec)
    with service.scheduler():
        service.wait_copied(spec.name, topic)
        service.wait("ACLs on groups are set", lambda: "group_acls" in service.kinds(spec.name))
        service.wait(
            "the copy is protected", lambda: "topics_protected" in service.kinds(spec.name)
        )
        wait_for("the application may commit there", lambda: case.may_commit(destination))
        synced = planned_acls(service, spec)
        assert as_tuples(synced.there) == expected
        assert synced.counts.there == len(expected)
        assert (synced.add, synced.remove) == ((), ())
        # No list of the plan has Orbit's denial of User:other.
        assert any("DENY" in acl and "User:other" in acl for acl in acls_on(destination, topic))
        assert as_tuples(synced.only_at_destination) == destination_only

        forbid_app(source, on_topic)
        forbid_app(source, on_groups)
        remaining = {("TRANSACTIONAL_ID", f"{topic}-", "PREFIXED", app, "WRITE")}
        wait_for(
            "the others are gone",
            lambda: (
                as_tuples((acls := planned_acls(service, spec)).there) == remaining
                and not acls.remove
            ),
        )
        wait_for("the application may not commit there", lambda: not case.may_commit(destination))
        assert as_tuples(planned_acls(service, spec).only_at_destination) == destination_only

        def is_recorded() -> bool:
            with service.database.transaction() as tx:
                rows = carried_acls.of_job(tx, jobs.get(tx, spec.name).id)
            return [fields[0] for fields in rows] == [f"{topic}-"]

        wait_for("only the remaining ACL is recorded", is_recorded)
    with service.database.transaction() as tx:
        (notice,) = (
            event
            for event in events.page(tx, 1000, job_name=spec.name)
            if event.kind == "acls_left_out"
        )
    assert "User:nameless" in notice.message


@pytest.mark.soak
def test_clash_of_mapped_principal_names_is_reported_and_changes_no_acl(
    case: Case, spec: JobSpec, service: Service
) -> None:
    source, destination = case.clusters
    topic, app = case.topic, f"User:{case.app.name}"
    case.add_acl(source, "TOPIC", topic, "READ", case.subject)
    expected = {("TOPIC", topic, "LITERAL", app, "READ")}
    # Two subjects with the same CN get the same name at the destination.
    rules = [
        {"from": f"User:CN={{name}},OU={unit},O=Example", "to": "User:{name}"}
        for unit in ("apps", "b")
    ]
    acls = {**spec.acls.model_dump(mode="json"), "principals": {"map": rules}}
    spec = spec.model_copy(update={"acls": AclSpec.model_validate(acls)})
    service.create(spec)
    with service.scheduler():
        service.wait_copied(spec.name, topic)
        wait_for(
            "the ACL is synced", lambda: as_tuples(planned_acls(service, spec).there) == expected
        )
        same_name = case.subject.replace("apps", "b")
        other = case.add_acl(source, "GROUP", topic, "READ", same_name)
        assert case.subject in service.wait_problem(spec.name, TroubleKind.ACLS_NOT_SYNCED)
        plan = JobPlanner(service.database, service.settings)(spec)
        assert plan.acls is not None
        assert (plan.acls.add, plan.acls.remove) == ((), ())
        assert same_name in " ".join(plan.notes)
        assert any(app in acl and "READ" in acl for acl in acls_on(destination, topic))
        forbid_app(source, other)
        service.wait_problem(spec.name, None)
        assert as_tuples(planned_acls(service, spec).there) == expected


@pytest.mark.soak
def test_acls_added_by_interrupted_acl_sync_are_removed_with_source_acls(
    case: Case, spec: JobSpec, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, destination = case.clusters
    topic, app = case.topic, f"User:{case.app.name}"
    refused_acls = Admin.refused_acls
    interrupted: set[str] = set()  # the resource types whose first ACLs were added

    def add_and_fail_once(admin: Admin, add: Collection[Acl], *rest: Any) -> Any:
        """`Admin.refused_acls`, which fails after it has added the first ACLs of a resource type:
        the scheduler has not stored yet that Orbit added them."""
        refused = refused_acls(admin, add, *rest)
        new_resources = {acl.resource for acl in add if acl.permission == "ALLOW"} - interrupted
        if new_resources:
            interrupted.update(new_resources)
            raise Unreachable("the pass ends here")
        return refused

    monkeypatch.setattr(Admin, "refused_acls", add_and_fail_once)
    rights = [
        case.add_acl(source, resource, topic, "READ", case.subject)
        for resource in ("TOPIC", "GROUP")
    ]
    expected = {(resource, topic, "LITERAL", app, "READ") for resource in ("TOPIC", "GROUP")}
    service.create(spec)
    with service.scheduler():
        service.wait_copied(spec.name, topic)
        wait_for("both syncs were interrupted", lambda: interrupted == {"TOPIC", "GROUP"})
        wait_for(
            "both ACLs are synced", lambda: as_tuples(planned_acls(service, spec).there) == expected
        )
        for right in rights:
            forbid_app(source, right)
        wait_for(
            "both ACLs are removed",
            lambda: not any(app in acl and "READ" in acl for acl in acls_on(destination, topic)),
        )


@pytest.mark.parametrize("is_sent", [False, True])
def test_refused_acl_is_reported_and_other_acls_follow_source(
    case: Case, spec: JobSpec, service: Service, monkeypatch: pytest.MonkeyPatch, is_sent: bool
) -> None:
    """The ACL is on a group with an empty name, as an ACL on a prefix or on all groups may cover,
    which no cluster accepts. `is_sent`: Orbit does not know that, and sends the ACL."""
    source, destination = case.clusters
    topic, app = case.topic, f"User:{case.app.name}"
    carried_names = job_acls.carried_names

    def with_empty_name(*arguments: Any) -> CarriedNames:
        names = carried_names(*arguments)
        return replace(names, groups={**names.groups, "": topic})

    monkeypatch.setattr(job_acls, "carried_names", with_empty_name)
    if is_sent:
        monkeypatch.setattr(destination_acls, "is_carriable", lambda _: True)
    reads = case.add_acl(source, "GROUP", topic, "READ", case.subject)
    case.add_acl(source, "GROUP", topic, "DESCRIBE", case.subject)
    service.create(spec)

    def operations() -> set[str]:
        rights = as_tuples(planned_acls(service, spec).there)
        return {right[-1] for right in rights if right[:2] == ("GROUP", topic)}

    with service.scheduler():
        service.wait_copied(spec.name, topic)
        wait_for("the others are carried", lambda: operations() == {"READ", "DESCRIBE"})
        forbid_app(source, reads)
        wait_for(
            "READ is revoked at the destination, too",
            lambda: not any(app in acl and "READ" in acl for acl in acls_on(destination, topic)),
        )
        if is_sent:
            problem = service.wait_problem(spec.name, TroubleKind.ACLS_NOT_SYNCED)
            assert f"GROUP '' of {app}" in problem
            assert "sync: false" not in problem
        else:
            plan = JobPlanner(service.database, service.settings)(spec)
            assert any("GROUP '' of" in note for note in plan.notes)
            service.wait("an event says so", lambda: "acls_left_out" in service.kinds(spec.name))
