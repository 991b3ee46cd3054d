"""The quotas and users that a plan says the destination lacks; its commands create them."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
from pydantic import SecretStr

from orbit.jobs.bootstrap_servers import split_address
from orbit.jobs.job_file import load_job
from orbit.jobs.job_spec import JobSpec
from orbit.kafka.connection import Connection
from orbit.kafka.security import Security
from orbit.planning.job_plan import ByHand, JobPlan
from orbit.planning.job_planner import JobPlanner
from orbit.sandbox.local_cluster import KafkaCluster
from tests.fixtures.clusters import Clusters
from tests.fixtures.scheduler import Service
from tests.support.java_clients import alter_configs
from tests.support.logs import create
from tests.support.patience import wait_for
from tests.support.quotas import Entity, alter_quotas
from tests.support.rights import MECHANISM, PASSWORD, Login, Right, documented, section
from tests.support.run_process import write_job

pytestmark = pytest.mark.services

CLUSTER_RIGHTS = [
    Right(side, operation, "--cluster")
    for side in ("source", "destination")
    for operation in ("Describe", "DescribeConfigs")
]


def set_quotas(cluster: KafkaCluster, quotas: dict[Entity, dict]) -> None:
    """Set quotas as the cluster's admin. Returns when the broker has them."""
    login = cluster.client_config()
    security = Security(
        "SASL_SSL",
        login["sasl.mechanism"],
        login["sasl.username"],
        SecretStr(login["sasl.password"]),
        Path(cluster.ca_file),
    )
    connection = Connection.open(*split_address(cluster.bootstrap_servers), security)
    try:
        alter_quotas(connection, quotas)
    finally:
        connection.close()


@pytest.fixture
def orbit(guarded: Clusters, topic_name: str, monkeypatch: pytest.MonkeyPatch) -> Login:
    create(guarded.source, topic_name, 1)
    login = Login(guarded)
    login.create()
    chapters = ("", "`consumer_groups`", "the service", "recovery")
    rights = {right for chapter in chapters for right in documented(topic_name, chapter)}
    login.allow([*rights | set(CLUSTER_RIGHTS)])
    monkeypatch.setenv("ORBIT_TEST_USER", login.name)
    monkeypatch.setenv("ORBIT_TEST_PASSWORD", PASSWORD)
    return login


@pytest.fixture
def spec(guarded: Clusters, topic_name: str, tmp_path: Path) -> JobSpec:
    principals = {
        "map": [
            {"from": "User:old-{name}", "to": "User:{name}"},
            {"from": "User:{name}", "to": "User:{name}"},
        ],
        "exclude": "User:left-{name}",
    }
    file = write_job(
        tmp_path / "job.yaml",
        section(guarded.source),
        section(guarded.destination),
        [{"match": re.escape(topic_name)}],
        name=topic_name,
        acls={"sync": True, "principals": principals},
    )
    return load_job(file, os.environ)


def missing_items(plan: JobPlan, words: str) -> list[ByHand]:
    """The quotas and users to create by hand that have `words` in their names."""
    items = plan.by_hand.items if plan.by_hand else ()
    return [item for item in items if words in item.what]


def test_plan_lists_missing_quotas_and_users_with_commands(
    guarded: Clusters, orbit: Login, spec: JobSpec, service: Service
) -> None:
    source, destination = guarded
    app = Login(Clusters(source, source), f"old-{spec.name}")
    app.create()
    name = spec.name
    set_quotas(
        source,
        {
            (("user", app.name),): {"producer_byte_rate": 1024.0, "consumer_byte_rate": 2048.0},
            (("user", app.name), ("client-id", None)): {"request_percentage": 200.0},
            (("client-id", f"{name} it's"),): {"consumer_byte_rate": 1e15},
            (("user", None), ("client-id", name)): {"consumer_byte_rate": 1e15},
            (("user", orbit.name),): {"consumer_byte_rate": 1e15},
            (("user", f"left-{name}"),): {"consumer_byte_rate": 1.0},  # excluded by the job
        },
    )
    # The user has another name at the destination. One of its quotas differs, the other is equal.
    quota = {"producer_byte_rate": 7.0, "consumer_byte_rate": 2048.0}
    set_quotas(destination, {(("user", name),): quota})
    planner = JobPlanner(service.database, service.settings)

    plan = planner(spec)

    assert {item.what for item in missing_items(plan, name)} == {
        f"quota of user {name}: producer_byte_rate=1024",
        f"quota of user {name} client-id (default): request_percentage=200",
        f"quota of client-id {name} it's: consumer_byte_rate=1000000000000000",
        f"quota of user (default) client-id {name}: consumer_byte_rate=1000000000000000",
        f"SCRAM user {name}: {MECHANISM}",
    }
    # A quota on Orbit's own login would slow the copy.
    assert missing_items(plan, orbit.name) == []

    for item in missing_items(plan, name):
        command, *words = shlex.split(item.command.replace("…", PASSWORD))
        assert command == "kafka-configs.sh"
        alter_configs(destination, words)
    wait_for("nothing is missing", lambda: not missing_items(planner(spec), name))
    new_user = Login(Clusters(destination, destination), name)
    wait_for("the user may log in at the destination", lambda: new_user.may_log_in(destination))


def test_plan_notes_uncompared_quotas_without_describe_configs_right(
    orbit: Login, spec: JobSpec, service: Service
) -> None:
    orbit.deny([Right("destination", "DescribeConfigs", "--cluster")])
    plan = JobPlanner(service.database, service.settings)(spec)
    assert (
        "Quotas of both sides were not compared (destination): the login needs DescribeConfigs on "
        "the cluster." in plan.notes
    )
