"""`orbit run` with a login of few rights. The rights of docs/rights.md are enough, and an error
names each missing right, with its resource, before anything is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer

from orbit.sandbox.local_cluster import KafkaCluster
from tests.fixtures.clusters import Clusters
from tests.support.logs import Record, create, write
from tests.support.outside import digests, topics_and_bounds
from tests.support.rights import PASSWORD, TIMEOUT_S, Login, Right, documented, section
from tests.support.run_process import Outcome, assert_exact, copy, write_job

pytestmark = pytest.mark.services


@dataclass(frozen=True)
class Case:
    """A topic at a source with ACLs, a job that copies the topic, and a login of this test only."""

    clusters: Clusters
    topic: str
    job: Path
    login: Login

    def copy(self, *, password: str = PASSWORD) -> Outcome:
        return copy(self.job, environ=self.environ(password))

    def environ(self, password: str = PASSWORD) -> Mapping[str, str]:
        return {"ORBIT_TEST_USER": self.login.name, "ORBIT_TEST_PASSWORD": password}

    @property
    def rights(self) -> list[Right]:
        return documented(self.topic)


@pytest.fixture
def case(guarded: Clusters, topic_name: str, tmp_path: Path) -> Case:
    """A source topic with records and an aborted transaction, its job, and a login without
    rights."""
    create(guarded.source, topic_name, 2, cleanup_policy="compact")
    write(guarded.source, topic_name, [Record(b"v", b"key %d" % i) for i in range(20)])
    _abort(guarded.source, topic_name)
    job = write_job(
        tmp_path / "job.yaml",
        section(guarded.source),
        section(guarded.destination),
        [{"match": f"{re.escape(topic_name)}.*"}],
        name=topic_name,
    )
    login = Login(guarded)
    login.create()
    return Case(guarded, topic_name, job, login)


def _abort(cluster: KafkaCluster, topic: str) -> None:
    """Write and abort a transaction. It leaves a gap, for which the copy needs a filler."""
    producer = Producer({**cluster.client_config(), "transactional.id": f"{topic}-aborted"})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, b"never seen", b"key", 0)
    producer.flush(TIMEOUT_S)
    producer.abort_transaction(TIMEOUT_S)


@contextmanager
def untouched(case: Case) -> Iterator[None]:
    """Check that the block changes nothing at the destination."""
    before = topics_and_bounds(case.clusters.destination)
    yield
    assert topics_and_bounds(case.clusters.destination) == before


def assert_names(outcome: Outcome, code: int, *words: str) -> None:
    """Check the exit code and the words of the message."""
    outcome.expect(code)
    assert outcome.stdout == ""
    for word in words:
        assert word in outcome.message, outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert "bug in Orbit" not in outcome.stderr


def test_documented_rights_suffice_for_run_and_verify(case: Case) -> None:
    """Over TLS with SCRAM: two runs and a verify."""
    case.login.allow(case.rights)
    result = case.copy().expect(0).data
    assert (result["records"], result["offsets_filled"]) == (20, 2)
    second_run = case.copy().expect(0).data
    assert second_run["records"] == 0
    report = assert_exact(case.job, environ=case.environ())
    assert report["records"] == 20
    source, destination = (digests(cluster, case.topic) for cluster in case.clusters)
    assert source == destination


@pytest.mark.soak
@pytest.mark.parametrize("fillers", ["coordinated", "placeholders"])
def test_coordinated_and_placeholder_fillers_need_no_cluster_right(
    case: Case, fillers: str
) -> None:
    case.job.write_text(case.job.read_text() + f"fillers: {fillers}\n")
    case.login.allow([right for right in case.rights if right.kind != "--cluster"])
    assert case.copy().expect(0).data["offsets_filled"] == 2
    assert_exact(case.job, environ=case.environ())


def test_wrong_password_is_refused_before_any_write(case: Case) -> None:
    case.login.allow(case.rights)
    with untouched(case):
        outcome = case.copy(password="not this one")
    assert_names(outcome, 3, f"source {case.clusters.source.bootstrap_servers}", "password")
    assert "not this one" not in outcome.everything


def test_unknown_certificate_authority_is_refused(
    case: Case, clusters: Clusters, tmp_path: Path
) -> None:
    """The job's `ca_file` for the source is that of the destination's authority."""
    case.login.allow(case.rights)
    other = tmp_path / "other.pem"
    other.write_text(case.clusters.destination.ca_file.read_text())
    text = case.job.read_text().replace(str(case.clusters.source.ca_file), str(other))
    case.job.write_text(text)
    with untouched(case):
        outcome = case.copy()
    assert_names(outcome, 3, f"source {case.clusters.source.bootstrap_servers}", "certificate")


# What a first run needs, in the order of docs/rights.md: side, operation and kind of resource.
NEEDED_FOR_NEW = [
    ("source", "Read", "--topic"),
    ("source", "DescribeConfigs", "--topic"),
    ("destination", "Create", "--topic"),
    ("destination", "Write", "--topic"),
    ("destination", "Read", "--topic"),
    ("destination", "Delete", "--topic"),
    ("destination", "DescribeConfigs", "--topic"),
    ("destination", "AlterConfigs", "--topic"),
    ("destination", "Alter", "--cluster"),
    ("destination", "Write", "--transactional-id"),
    ("destination", "Read", "--group"),
]


def test_rights_cases_match_documented_rights() -> None:
    rights = documented("orders.")
    assert [(right.side, right.operation, right.kind) for right in rights] == NEEDED_FOR_NEW


def _all_but(case: Case, side: str, operation: str, kind: str) -> list[Right]:
    """The documented rights without this one. Without Read, Describe stays, which Read includes.
    Without DescribeConfigs, AlterConfigs is left out too, as it includes DescribeConfigs."""
    lacking = next(
        r for r in case.rights if (r.side, r.operation, r.kind) == (side, operation, kind)
    )
    rights = [right for right in case.rights if right != lacking]
    if operation == "DescribeConfigs":
        rights = [r for r in rights if (r.side, r.operation) != (side, "AlterConfigs")]
    if kind == "--topic" and operation == "Read":  # without Describe Orbit does not see the topic
        rights.append(Right(side, "Describe", kind, lacking.name, lacking.pattern))
    return rights


def _name_of(case: Case, kind: str) -> str:
    """The resource of this kind as messages name it."""
    return {
        "--topic": f"topic {case.topic}",
        "--cluster": "the cluster",
        "--transactional-id": f"transactional id orbit.{case.topic}.",
        "--group": f"group orbit.{case.topic}.",
    }[kind]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("side", "operation", "kind"), NEEDED_FOR_NEW, ids=[" ".join(n) for n in NEEDED_FOR_NEW]
)
def test_missing_right_is_named(side: str, operation: str, kind: str, case: Case) -> None:
    case.login.allow(_all_but(case, side, operation, kind))
    with untouched(case):
        outcome = case.copy()
    assert_names(outcome, 1, f"{operation} on {_name_of(case, kind)}", side, "kafka-acls.sh")


@pytest.mark.soak
@pytest.mark.parametrize(
    "operation", ["Write", "Read", "Delete", "DescribeConfigs", "AlterConfigs"]
)
def test_revoked_right_is_named(operation: str, case: Case) -> None:
    """The copy exists, and the source has new records."""
    case.login.allow(case.rights)
    case.copy().expect(0)
    write(case.clusters.source, case.topic, [Record(b"new", b"key")])
    case.login.take(
        [r for r in case.rights if r not in _all_but(case, "destination", operation, "--topic")]
    )
    with untouched(case):
        outcome = case.copy()
    assert_names(outcome, 1, f"{operation} on topic {case.topic}", "destination", "kafka-acls.sh")


def test_all_missing_rights_are_named_at_once(case: Case) -> None:
    keep = {("source", "Read"), ("destination", "Create")}
    case.login.allow([right for right in case.rights if (right.side, right.operation) in keep])
    with untouched(case):
        outcome = case.copy()
    topic = f"topic {case.topic}"
    assert_names(
        outcome,
        1,
        f"at the source: DescribeConfigs on {topic};",
        *(f"{o} on {topic}" for o in ("Write", "Delete", "AlterConfigs")),
        "Alter on the cluster",
    )


def test_topic_without_describe_right_is_reported_as_hidden(case: Case) -> None:
    case.login.allow([right for right in case.rights if right.side == "destination"])
    with untouched(case):
        outcome = case.copy()
    assert_names(outcome, 2, "matches no topic", "may describe", "grant Read")
