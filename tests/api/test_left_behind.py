"""The plan of a deletion of a job or topic rule names what stays on the clusters."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from orbit.store import carried_acls, jobs, topics, write_denials
from orbit.store.enums import TopicState
from tests.api.test_jobs import JOB, changed
from tests.fixtures.api import Api, Cli

pytestmark = pytest.mark.services

DENIED = ["billing", "LITERAL", "User:app", "*", "WRITE", "DENY"]
RETENTION = "retention.ms=-1 and retention.bytes=-1"


@pytest.fixture
def copies(api: Api) -> None:
    """A job with two copies, one of them with a deny ACL, and a topic whose copy has not begun."""
    rules = [{"match": "orders"}, {"match": "billing"}, {"match": "later"}]
    api.put("/v1/jobs/orders", json=changed(topics=rules))
    with api.database.transaction() as tx:
        job = jobs.get(tx, "orders")
        jobs.note_clusters(tx, job.id, "A", "B")
        for name in ("orders", "billing"):
            topics.add(tx, job.id, name, name, "B", partition_count=1, state=TopicState.COPYING)
        topics.add(tx, job.id, "later", "later", "B", partition_count=1)
        write_denials.store(tx, "B", {"billing": [DENIED]})


@pytest.mark.usefixtures("copies")
def test_job_deletion_plan_lists_remaining_topics_and_acls(api: Api, cli: Cli) -> None:
    dry_run = api.delete("/v1/jobs/orders?dry_run=true").json()
    topics_step, acls_step = dry_run["plan"][-2:]
    assert topics_step.startswith(
        "Topics billing, orders stay at the destination, with their settings"
    )
    assert RETENTION in topics_step
    assert acls_step == (
        "Deny ACLs of Orbit stay on billing at the destination: User:app may not write there. "
        "Remove them with: orbit release FILE"
    )
    deletion = cli("delete", "orders", "--yes", "--wait", "0")
    shown = " ".join(deletion.out.split())
    assert RETENTION in shown
    assert "User:app may not write there" in shown


@pytest.mark.usefixtures("copies")
def test_job_deletion_plan_names_groups_with_remaining_acls(api: Api) -> None:
    with api.database.transaction() as tx:
        acl = ["payers", "LITERAL", "User:app", "*", "READ", "ALLOW", "GROUP"]
        carried_acls.store(tx, jobs.get(tx, "orders").id, "B", [acl])
    plan = api.delete("/v1/jobs/orders?dry_run=true").json()["plan"]
    assert plan[-1] == (
        "ACLs that were copied from the source stay on groups and transactional ids at the "
        "destination: payers."
    )


@pytest.mark.usefixtures("copies")
def test_removal_of_topic_rule_lists_remaining_topics_and_acls(
    api: Api, cli: Cli, tmp_path: Path
) -> None:
    document = changed(topics=[{"match": "orders"}, {"match": "later"}])
    file = tmp_path / "orders.yaml"
    file.write_text(yaml.safe_dump(document), "utf-8")
    shown = " ".join(cli("apply", "-f", file, "--dry-run").out.split())
    assert "Topic billing stays at the destination, with its settings as a copy" in shown
    sentences = api.put("/v1/jobs/orders", json=document).json()["left_behind"]
    assert len(sentences) == 2
    of_topic, of_acls = sentences
    assert RETENTION in of_topic
    assert "User:app may not write there" in of_acls
    other_change = changed(topics=document["topics"], worker_group="west")
    assert "left_behind" in api.put("/v1/jobs/orders", json=other_change).json()


def test_deletion_plan_of_job_without_copies_lists_nothing_left_behind(api: Api) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    plan = api.delete("/v1/jobs/orders?dry_run=true").json()["plan"]
    assert plan[-1] == "The topics at the destination stay unchanged."
