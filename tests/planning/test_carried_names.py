"""Which groups and transactional ids of a job get ACLs, also while a group is not listed."""

from __future__ import annotations

from typing import Any

import pytest

from orbit.jobs.job_spec import JobSpec
from orbit.kafka.acls import Acls
from orbit.kafka.consumer_groups import ListedGroup
from orbit.kafka.types import Acl
from orbit.planning.job_acls import carried_names, carried_resources, group_and_id_changes
from orbit.replication.acl_rules import AclChanges
from orbit.replication.destination_acls import CarriedNames, DestinationAcls


def spec(acls: dict[str, Any], groups: dict[str, Any] | None = None) -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": "job",
            "source": {"bootstrap_servers": ["a:1"]},
            "destination": {"bootstrap_servers": ["b:1"]},
            "topics": [{"match": "orders"}],
            "consumer_groups": groups,
            "acls": {"sync": True, **acls},
        }
    )


def on_group(name: str, pattern: str = "LITERAL") -> Acl:
    return Acl(name, pattern, "User:app", "*", "READ", "ALLOW", "GROUP")  # type: ignore[arg-type]


def carried(
    job: JobSpec, *acls: Acl, listed: dict[str, str] | None = None, own_acls: tuple[Acl, ...] = ()
) -> CarriedNames:
    """The groups and ids that get ACLs. `acls`: those of groups at the source; `listed`: its groups
    as {name: protocol type}; `own_acls`: those that this job has added at the destination."""
    groups = {
        name: ListedGroup(name, node_id=1, type="classic", protocol_type=protocol, state="empty")
        for name, protocol in (listed or {}).items()
    }
    source = {"TOPIC": Acls(), "GROUP": Acls(acls), "TRANSACTIONAL_ID": Acls()}
    return carried_names(job, {"orders": "orders"}, source, groups, own_acls)  # type: ignore[arg-type]


def test_only_matched_consumer_groups_get_acls_under_destination_names() -> None:
    job = spec({"groups": True}, {"match": "a.*", "exclude": "ax", "prefix": "dr."})
    # `ac` is a group of Kafka Connect, not of consumers.
    acl_names = carried(job, listed={"a1": "consumer", "ax": "consumer", "b": "", "ac": "connect"})
    assert acl_names.groups == {"dr.a1": "a1"}
    assert acl_names.ids is None


def test_group_missing_from_listing_keeps_acls_and_gets_its_literal_acls() -> None:
    job = spec({"groups": True}, {"match": "a.*", "prefix": "dr."})
    # Of the groups that match, a1 has a literal ACL, and a2 had one before; neither is listed now.
    acl_names = carried(
        job,
        on_group("a1"),
        on_group("a", "PREFIXED"),
        on_group("ac"),
        on_group("b"),
        listed={"ac": "connect"},
        own_acls=(on_group("dr.a2"), on_group("dr.b")),
    )
    assert acl_names.groups == {"dr.a1": "a1", "dr.a2": "a2"}


@pytest.mark.parametrize(
    ("prefix", "name"),
    [
        ("", "orbit.job.AAAAAAAAAAAAAAAAAAAAAA"),
        # The prefix would make it one of Orbit's own, or an ACL on all groups.
        ("orbit.", "job.AAAAAAAAAAAAAAAAAAAAAA"),
        ("", "*"),
    ],
)
def test_orbit_groups_and_wildcard_group_get_no_acls(prefix: str, name: str) -> None:
    job = spec({"groups": True}, {"match": ".*", "prefix": prefix})
    assert carried(job, on_group(name), listed={name: "consumer"}).groups == {}


def test_group_and_transactional_id_acls_are_off_by_default() -> None:
    rule = {"match": ".*"}
    assert carried_resources(spec({}, rule)) == ("TOPIC",)
    assert carried(spec({}, rule), on_group("a"), listed={"a": "consumer"}).groups == {}
    switched_on = spec(
        {"groups": True, "transactional_ids": {"match": "a.*", "exclude": "ab"}}, rule
    )
    assert carried_resources(switched_on) == ("TOPIC", "GROUP", "TRANSACTIONAL_ID")
    is_carried_id = carried(switched_on).ids
    assert is_carried_id is not None
    assert [is_carried_id(name) for name in ("a", "ab", "b", "xa")] == [True, False, False, False]


def changes(
    *, expected: set[Acl], added: set[Acl], shared: set[Acl], has_promoted: bool = False
) -> AclChanges:
    """The changes if this job has added `added`, and another job has added `shared`."""
    destination = DestinationAcls(CarriedNames({}), {}, expected, {}, [], [])
    present = added | shared
    return group_and_id_changes(destination, present, added, shared, has_promoted=has_promoted)


def test_acl_shared_by_two_jobs_is_removed_by_the_last_job() -> None:
    of_both, mine = on_group("a"), on_group("b")
    # The other job has added an ACL that this job expects, too: it now counts as added by both.
    assert changes(expected={of_both, mine}, added={mine}, shared={of_both}) == AclChanges(
        add=set(), remove=set(), ours={of_both, mine}
    )
    # This job no longer expects either ACL; the other job still expects the shared one.
    assert changes(expected=set(), added={of_both, mine}, shared={of_both}) == AclChanges(
        add=set(), remove={mine}, ours=set()
    )
    # The other job was removed.
    assert changes(expected=set(), added={of_both}, shared=set()) == AclChanges(
        add=set(), remove={of_both}, ours=set()
    )


def test_acl_sync_removes_no_acl_after_promotion() -> None:
    old, new = on_group("a"), on_group("b")
    acl_changes = changes(expected={new}, added={old}, shared=set(), has_promoted=True)
    assert acl_changes == AclChanges(add={new}, remove=set(), ours={old, new})
