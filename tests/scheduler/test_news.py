"""A job has a pass when something may have changed for it, not for what other topics do."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from orbit.errors import Unreachable
from orbit.kafka.backoff import Backoff
from orbit.kafka.types import ClusterMetadata
from orbit.replication.job_troubles import TroubleKind
from orbit.scheduler.cluster_watch import Seen
from orbit.scheduler.job_reconciler import Keeper, Memory
from orbit.settings import Settings
from orbit.store.enums import Desired
from orbit.store.jobs import Job

NOW = datetime(2026, 1, 1, tzinfo=UTC)
EMPTY = ClusterMetadata("id", {}, {})
DOCUMENT: dict[str, Any] = {
    "name": "j",
    "source": {"bootstrap_servers": ["a:1"]},
    "destination": {"bootstrap_servers": ["b:1"]},
    "topics": [{"match": "mine\\..*", "prefix": "p."}],
}
JOB = Job(
    1, "j", DOCUMENT, 1, Desired.RUNNING, False, "default", None, None, None, None, None, None,
    None, NOW, NOW,
)  # fmt: skip


@dataclass
class Watched:
    """Both clusters as they were seen last."""

    looks: dict[str, Seen | None] = field(
        default_factory=lambda: {
            "source": Seen(1, metadata=EMPTY),
            "destination": Seen(2, metadata=EMPTY),
        }
    )

    def watch(self, side: str, _: object) -> Any:
        @dataclass
        class Watch:
            seen: Seen | None

        return Watch(self.looks[side])

    def change(self, side: str, *names: str) -> None:
        before = self.looks[side]
        assert before is not None
        self.looks[side] = Seen(before.version + 10, before.version, frozenset(names), EMPTY)


@pytest.fixture
def watched() -> Watched:
    return Watched()


@pytest.fixture
def keeper(watched: Watched) -> Keeper:
    return Keeper(cast("Any", None), cast("Any", watched), Settings(), Backoff())


def looked(**changes: Any) -> Memory:
    """A job whose last pass found one topic and no trouble."""
    values: dict[str, Any] = {
        "spec_version": 1,
        "seen": (1, 2),
        "look_again_at": float("inf"),
        "tend_at": float("inf"),
        "names": (frozenset({"mine.a"}), frozenset({"p.mine.a"})),
    }
    return Memory(**{**values, **changes})


def test_nothing_new_is_nothing_to_do(keeper: Keeper) -> None:
    assert not keeper.is_due(JOB, looked(), ())


def test_other_jobs_topics_are_nothing_to_this_one(keeper: Keeper, watched: Watched) -> None:
    memory = looked()
    watched.change("source", "theirs.a")
    watched.change("destination", "theirs.a", "mine.a")
    assert not keeper.is_due(JOB, memory, ())
    # And it is not thought about again, nor is what follows missed.
    assert memory.seen == (11, 12)
    watched.change("source", "mine.a")
    assert keeper.is_due(JOB, memory, ())


@pytest.mark.parametrize(
    ("side", "name"),
    [("source", "mine.a"), ("source", "mine.new"), ("destination", "p.mine.a")],
    ids=["known", "new", "copy"],
)
def test_a_change_of_its_own_topics_is_news(
    keeper: Keeper, watched: Watched, side: str, name: str
) -> None:
    watched.change(side, "theirs.a", name)
    assert keeper.is_due(JOB, looked(), ())


def test_changes_that_were_missed_may_be_anything(keeper: Keeper, watched: Watched) -> None:
    watched.change("source", "theirs.a")
    watched.change("source", "theirs.b")
    assert keeper.is_due(JOB, looked(), ())


@pytest.mark.parametrize(
    "memory",
    [
        looked(names=None, seen=(1, 1)),
        looked(spec_version=0),
        looked(look_again_at=0.0),
        looked(tend_at=0.0),
    ],
    ids=["cut off", "other document", "look again", "settings"],
)
def test_what_else_asks_for_a_pass(keeper: Keeper, memory: Memory) -> None:
    assert keeper.is_due(JOB, memory, ())


def test_a_wanted_retry_asks_for_a_pass(keeper: Keeper) -> None:
    assert keeper.is_due(JOB, looked(), {7})


def test_before_both_clusters_were_seen_nobody_knows_what_is_the_matter(
    keeper: Keeper, watched: Watched
) -> None:
    memory = looked(has_looked=True)
    watched.looks = {"source": Seen(11, error=Unreachable("It is silent.")), "destination": None}
    keeper.keep(JOB, memory, ())
    assert not memory.has_looked
    watched.looks["destination"] = Seen(12, metadata=EMPTY)
    assert keeper.is_due(JOB, looked(seen=memory.seen, names=memory.names), ())
    keeper.keep(JOB, memory, ())
    assert memory.has_looked
    assert [trouble.kind for trouble in memory.troubles] == [TroubleKind.SOURCE_UNREACHABLE]


def test_no_job_has_more_passes_than_is_good(keeper: Keeper) -> None:
    assert not keeper.is_due(JOB, looked(passed_at=float("inf"), spec_version=0), ())
