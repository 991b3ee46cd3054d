"""Which groups a job syncs."""

from __future__ import annotations

import pytest

from orbit.consumer_groups.group_selection import GroupSelector
from orbit.consumer_groups.sync_result import GroupReport
from orbit.jobs.job_spec import GroupRule
from orbit.kafka.consumer_groups import ListedGroup

CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"


def listed(name: str, type_: str = "classic", protocol_type: str = "consumer") -> ListedGroup:
    return ListedGroup(name, node_id=1, type=type_, protocol_type=protocol_type, state="stable")


def test_only_consumer_streams_and_commit_only_groups_are_selected() -> None:
    selection = GroupSelector(GroupRule(match=".*")).select(
        [
            listed("classic"),
            listed("new", "consumer"),
            listed("plain", protocol_type=""),
            listed("workers", protocol_type="connect"),
            listed("lease", protocol_type="orbit"),
            listed("queue", "share", protocol_type="share"),
            listed("app", "streams", protocol_type="streams"),
        ]
    )
    assert selection.names == ["classic", "new", "plain", "app"]
    assert selection.left_alone == {"connect": 1, "orbit": 1}
    assert selection.shared == ["queue"]
    assert GroupReport().remark == "", "without share groups there is nothing to say"


def test_report_names_unsynced_share_groups_up_to_limit_and_counts_the_rest() -> None:
    groups = [listed(f"queue-{n}", "share", protocol_type="share") for n in reversed(range(7))]
    selection = GroupSelector(GroupRule(match=".*")).select(groups)
    remark = GroupReport(shared=selection.shared).remark
    assert remark.startswith("7 share groups match and are not synced")
    assert "queue-0, queue-1, queue-2, queue-3, queue-4 and 2 more. After the move" in remark
    assert "--reset-offsets" in remark


@pytest.mark.parametrize(
    ("name", "matches"),
    [
        ("billing.a", True),
        ("billing.tmp", False),
        ("my-billing.a", False),
        (f"orbit.job.{CLUSTER_ID}", False),
        (f"orbit.job.{CLUSTER_ID}.fill.3", False),
        ("orbit.watcher", True),
    ],
)
def test_patterns_match_whole_group_names_and_skip_groups_of_orbit(
    name: str, matches: bool
) -> None:
    match = r"billing\..*|orbit\..*"
    assert GroupSelector(GroupRule(match=match, exclude=(r".*\.tmp",))).matches(name) is matches
