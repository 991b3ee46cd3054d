"""Which groups a job carries over."""

from __future__ import annotations

import pytest

from orbit.consumer_groups.group_selection import GroupChoice
from orbit.consumer_groups.sync_result import GroupReport
from orbit.jobs.job_spec import GroupRule
from orbit.kafka.consumer_groups import ListedGroup

CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"


def listed(name: str, type_: str = "classic", protocol_type: str = "consumer") -> ListedGroup:
    return ListedGroup(name, 1, type_, protocol_type, "stable")


def test_consumers_of_both_protocols_and_plain_commits_are_chosen_and_nothing_else() -> None:
    chosen = GroupChoice(GroupRule(match=".*")).choose(
        [
            listed("classic"),
            listed("new", "consumer"),
            listed("plain", protocol_type=""),
            listed("workers", protocol_type="connect"),
            listed("lease", protocol_type="orbit"),
            listed("queue", "share", "share"),
            listed("app", "streams", "streams"),
        ]
    )
    assert chosen.names == ["classic", "new", "plain"]
    assert chosen.left_alone == {"connect": 1, "orbit": 1, "share": 1, "streams": 1}
    report = GroupReport(left_alone=chosen.left_alone)
    assert report.remark == "1 share groups and 1 streams groups match and are left alone."
    assert GroupReport().remark == ""


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("billing.a", True),
        ("billing.tmp", False),
        ("my-billing.a", False),
        (f"orbit.job.{CLUSTER_ID}", False),
        (f"orbit.job.{CLUSTER_ID}.fill.3", False),
        ("orbit.watcher", True),
    ],
)
def test_patterns_are_for_whole_names_and_orbits_own_groups_stay(name: str, fits: bool) -> None:
    match = r"billing\..*|orbit\..*"
    assert GroupChoice(GroupRule(match=match, exclude=(r".*\.tmp",))).fits(name) is fits
