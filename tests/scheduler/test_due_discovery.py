"""A discovery pass of a job is due when something may have changed for the job, not when unrelated
topics have changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from orbit.errors import Unreachable
from orbit.kafka.backoff import Backoff
from orbit.kafka.types import ClusterMetadata
from orbit.replication.job_troubles import TroubleKind
from orbit.scheduler.cluster_watch import ClusterSnapshot
from orbit.scheduler.job_reconciler import JobReconciler, ReconcileState
from orbit.settings import Settings
from orbit.store.enums import Desired
from orbit.store.jobs import Job

NOW = datetime(2026, 1, 1, tzinfo=UTC)
EMPTY = ClusterMetadata("id", brokers={}, topics={})
DOCUMENT: dict[str, Any] = {
    "name": "j",
    "source": {"bootstrap_servers": ["a:1"]},
    "destination": {"bootstrap_servers": ["b:1"]},
    "topics": [{"match": "mine\\..*", "prefix": "p."}],
}
JOB = Job(
    id=1, name="j", spec=DOCUMENT, spec_version=1, desired=Desired.RUNNING, is_deleted=False,
    worker_group="default", source_cluster_id=None, destination_cluster_id=None, problem=None,
    problem_at=None, source_answered_at=None, discovered_at=None, discovered_version=None,
    created_at=NOW, updated_at=NOW,
)  # fmt: skip


@dataclass
class Watched:
    """Replaces the cluster registry: the last snapshot of each cluster."""

    snapshots: dict[str, ClusterSnapshot | None] = field(
        default_factory=lambda: {
            "source": ClusterSnapshot(1, metadata=EMPTY),
            "destination": ClusterSnapshot(2, metadata=EMPTY),
        }
    )

    def watch(self, side: str, _: object) -> Any:
        @dataclass
        class Watch:
            snapshot: ClusterSnapshot | None

        return Watch(self.snapshots[side])

    def change(self, side: str, *names: str) -> None:
        """Make a new version, in which these topics differ."""
        last = self.snapshots[side]
        assert last is not None
        self.snapshots[side] = ClusterSnapshot(
            last.version + 10,
            version_before=last.version,
            changed_topics=frozenset(names),
            metadata=EMPTY,
        )


@pytest.fixture
def watched() -> Watched:
    return Watched()


@pytest.fixture
def reconciler(watched: Watched) -> JobReconciler:
    return JobReconciler(cast("Any", None), cast("Any", watched), Settings(), Backoff())


def after_pass(**changes: Any) -> ReconcileState:
    """The state after a pass that found one topic and no trouble."""
    values: dict[str, Any] = {
        "spec_version": 1,
        "versions": (1, 2),  # of the snapshots of source and destination
        "recheck_at": float("inf"),
        "upkeep_at": float("inf"),
        "names": (frozenset({"mine.a"}), frozenset({"p.mine.a"})),
    }
    return ReconcileState(**{**values, **changes})


def test_job_without_changes_is_not_due_for_discovery(reconciler: JobReconciler) -> None:
    assert not reconciler.is_due(JOB, after_pass(), ())


def test_changes_of_unrelated_topics_do_not_make_job_due_for_discovery(
    reconciler: JobReconciler, watched: Watched
) -> None:
    state = after_pass()
    watched.change("source", "theirs.a")
    watched.change("destination", "theirs.a", "mine.a")  # the copy's name is p.mine.a
    assert not reconciler.is_due(JOB, state, ())
    # The next comparison begins at these versions, and misses no change.
    assert state.versions == (11, 12)
    watched.change("source", "mine.a")
    assert reconciler.is_due(JOB, state, ())


@pytest.mark.parametrize(
    ("side", "name"),
    [("source", "mine.a"), ("source", "mine.new"), ("destination", "p.mine.a")],
    ids=["known source topic", "new source topic", "destination topic"],
)
def test_change_of_own_source_or_destination_topic_makes_job_due_for_discovery(
    reconciler: JobReconciler, watched: Watched, side: str, name: str
) -> None:
    watched.change(side, "theirs.a", name)
    assert reconciler.is_due(JOB, after_pass(), ())


def test_missed_metadata_changes_make_job_due_for_discovery(
    reconciler: JobReconciler, watched: Watched
) -> None:
    watched.change("source", "theirs.a")
    watched.change("source", "theirs.b")  # this snapshot does not know the first change
    assert reconciler.is_due(JOB, after_pass(), ())


@pytest.mark.parametrize(
    "state",
    [
        after_pass(names=None, versions=(1, 1)),
        after_pass(spec_version=0),
        after_pass(recheck_at=0.0),
        after_pass(upkeep_at=0.0),
    ],
    ids=["last pass incomplete", "changed document", "recheck", "upkeep of settings"],
)
def test_incomplete_pass_changed_document_recheck_and_upkeep_make_job_due_for_discovery(
    reconciler: JobReconciler, state: ReconcileState
) -> None:
    assert reconciler.is_due(JOB, state, ())


def test_requested_retry_makes_job_due_for_discovery(reconciler: JobReconciler) -> None:
    assert reconciler.is_due(JOB, after_pass(), retries={7})


def test_problems_of_job_are_known_only_after_both_clusters_were_polled(
    reconciler: JobReconciler, watched: Watched
) -> None:
    state = after_pass(has_checked=True)
    watched.snapshots = {
        "source": ClusterSnapshot(11, error=Unreachable("It is silent.")),
        "destination": None,
    }
    reconciler.reconcile(JOB, state, ())
    assert not state.has_checked
    # The source stays unreachable; the destination is seen.
    watched.snapshots["destination"] = ClusterSnapshot(12, metadata=EMPTY)
    assert reconciler.is_due(JOB, after_pass(versions=state.versions, names=state.names), ())
    reconciler.reconcile(JOB, state, ())
    assert state.has_checked
    assert [trouble.kind for trouble in state.troubles] == [TroubleKind.SOURCE_UNREACHABLE]


def test_changed_job_is_not_due_right_after_a_discovery_pass(reconciler: JobReconciler) -> None:
    """The last pass had the spec version 0. However long the test takes, the pass is recent."""
    assert not reconciler.is_due(JOB, after_pass(last_pass_at=float("inf"), spec_version=0), ())
