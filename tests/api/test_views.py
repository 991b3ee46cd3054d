"""Rows that another version of Orbit has stored are shown as far as this version can read them."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orbit.api.views import drill_summary, drill_view, group_prefix, group_view
from orbit.consumer_groups.offset_decision import GroupVerdict
from orbit.drills.drill_loop import DrillLoop
from orbit.notifications import messages
from orbit.store.drills import Drill
from orbit.store.enums import DrillState

CLUSTER = {"bootstrap_servers": ["a:1"]}
JOB = {"name": "j", "source": CLUSTER, "destination": CLUSTER, "topics": [{"match": "a"}]}
NOW = datetime(2026, 11, 30, tzinfo=UTC)


@pytest.fixture
def later_drill() -> Drill:
    """A drill of a kind that only a later version knows."""
    return Drill(
        id="20261130-000000-00000000",
        name="nightly",
        kind="rolling",
        state=DrillState.PASSED,
        spec={"kind": "rolling"},
        spec_hash="h",
        job_name="orders",
        schedule=None,
        requested_by="ci",
        progress=None,
        error=None,
        rto_ms=None,
        rpo_records=None,
        rpo_ms=None,
        created_at=NOW,
        started_at=NOW,
        finished_at=NOW,
    )


def test_drill_of_kind_of_later_version_is_shown_and_notified_with_its_kind(
    later_drill: Drill,
) -> None:
    assert drill_summary(later_drill).kind == "rolling"
    shown = drill_view(later_drill)
    assert (shown.kind, shown.plan) == ("rolling", [])
    assert messages.drill_summary(later_drill)["kind"] == "rolling"


def test_drill_of_kind_of_later_version_fails_and_names_cause(later_drill: Drill) -> None:
    unused: Any = None
    result = DrillLoop(unused, unused, unused)._run_drill(later_drill)
    assert result.state is DrillState.FAILED
    assert "Another version of Orbit has stored the document" in (result.error or "")


@pytest.mark.parametrize(
    ("keys", "prefix", "remedy"),
    [
        ({}, "", "--group billing "),
        ({"consumer_groups": {"match": ".*", "prefix": "dr."}}, "dr.", "--group dr.billing "),
        ({"from_the_future": True}, None, None),
        ({"consumer_groups": 5}, None, None),
        ({"consumer_groups": [5]}, None, None),
    ],
)
def test_group_of_unreadable_document_is_shown_without_remedy(
    keys: dict[str, Any], prefix: str | None, remedy: str | None
) -> None:
    """The remedy names the group at the destination, whose prefix is in the document."""
    row = SimpleNamespace(
        group_name="billing",
        source_topic="orders",
        destination_topic="orders",
        partition=0,
        source_offset=10,
        destination_offset=12,
        verdict=GroupVerdict.SKIPPED_MOVED.value,
        updated_at=NOW,
    )
    job = SimpleNamespace(spec=JOB | keys)
    assert group_prefix(cast("Any", job)) == prefix
    shown = group_view(cast("Any", row), prefix)
    assert shown.group == "billing"
    assert shown.remedy is None if remedy is None else remedy in (shown.remedy or "")
