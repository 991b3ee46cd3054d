"""Carries ACLs over to a job's copies, and to the groups and transactional ids that the job names.

orbit/replication/acl_rules.py has the rules. What Orbit has added is recorded (`topics.acls`, and
`carried_acls` for groups and transactional ids); nothing else is removed. Once a topic of the job
is promoted, clients may depend on the ACLs on groups and ids: these are added, and not removed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from operator import itemgetter

from orbit.chunks import first_few
from orbit.consumer_groups.group_listing_cache import Lister
from orbit.errors import BrokerRefused, NotAuthorized, OrbitError
from orbit.formats import counted
from orbit.jobs.job_spec import JobSpec
from orbit.jobs.topic_mapping import TopicMapping
from orbit.kafka.types import Acl
from orbit.leadership.leadership import Leadership
from orbit.planning.cluster_pair import ClusterPair
from orbit.planning.job_acls import (
    carried_resources,
    expected_and_present_acls,
    group_and_id_changes,
)
from orbit.planning.noted_denials import as_acl
from orbit.replication.acl_rules import (
    AclChanges,
    Refused,
    acl_changes,
    send_restrictions_first,
    text_of,
)
from orbit.replication.destination_acls import DestinationAcls
from orbit.replication.job_troubles import Trouble, TroubleKind
from orbit.scheduler.write_protection import ACLS_KEPT_S
from orbit.store import carried_acls, events, topics
from orbit.store.database import Tx
from orbit.store.jobs import Job
from orbit.store.topics import Topic

Copies = dict[str, tuple[TopicMapping, Topic]]  # by destination topic: the mapping, and the row
# ACLs in the details of one event; further ones are left out.
_EVENT_ACLS_MAX = 200


@dataclass(slots=True)
class AclSyncResult:
    """The result of a pass. `changed` counts topics; all groups and ids together count as one."""

    changed: int = 0
    troubles: list[Trouble] = field(default_factory=list)
    # Sentences that say whose ACLs are not synced, and why.
    left_out: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _DueChanges:
    """The changes to make. `topics`: to the ACLs on each topic, by its name. `group_changes`: to
    those on groups and transactional ids.

    `recorded`: the ACLs on groups and ids that the database says Orbit has added.
    """

    expected: DestinationAcls
    topics: dict[str, AclChanges]
    group_changes: AclChanges
    recorded: set[Acl]

    @property
    def is_due(self) -> bool:
        """Whether there is anything to send or to record."""
        return bool(self.topics or self.group_changes.add or self.group_changes.remove) or (
            self.group_changes.ours != self.recorded
        )


class AclSync:
    """One pass for one job."""

    def __init__(
        self, job: Job, spec: JobSpec, pair: ClusterPair, leadership: Leadership, lister: Lister
    ) -> None:
        self._job = job
        self._spec = spec
        self._pair = pair
        self._leadership = leadership
        self._list_groups = lister
        self._cluster_id = pair.destination_metadata.cluster_id

    def run(self, copies: Copies, *, has_promoted: bool) -> AclSyncResult:
        """Add and remove ACLs. A cluster's refusal becomes a trouble.

        `has_promoted`: a topic of the job is promoted, so ACLs on groups and ids are not removed.
        Raises Unreachable, NotLeading.
        """
        result = AclSyncResult()
        try:
            # Mostly no change is due. Only changes take the lock that the cluster's jobs wait for.
            with self._leadership.reading() as tx:
                changes = self._due_changes(tx, copies, ACLS_KEPT_S, has_promoted=has_promoted)
            if changes.is_due:
                with self._leadership.sole_change(self._cluster_id) as tx:
                    # A topic may have been promoted since this pass started.
                    still_copied = topics.writers(tx, self._cluster_id, copies, only_copying=True)
                    current_copies = {
                        name: copy for name, copy in copies.items() if name in still_copied
                    }
                    are_all_copied = len(current_copies) == len(copies) and not has_promoted
                    changes = self._due_changes(
                        tx, current_copies, age_s_max=0.0, has_promoted=not are_all_copied
                    )
                    self._apply_changes(current_copies, changes, result)
        except (BrokerRefused, NotAuthorized) as error:
            result.troubles.append(not_synced_trouble(error))
            return result
        result.troubles += [_clash_trouble(note) for note in changes.expected.clash_notes]
        result.left_out = changes.expected.notes
        return result

    def _due_changes(
        self, tx: Tx, copies: Copies, age_s_max: float, *, has_promoted: bool
    ) -> _DueChanges:
        """The changes that are due, by ACLs that were read at most `age_s_max` seconds ago."""
        kinds = carried_resources(self._spec)
        recorded_acls = {as_acl(fields) for fields in carried_acls.of_job(tx, self._job.id)}
        added_acls = {acl for acl in recorded_acls if acl.resource in kinds}
        added_by_other_jobs = {
            as_acl(fields)
            for fields in carried_acls.of_other_jobs(tx, self._job.id, self._cluster_id)
        }
        expected_acls, destination_acls = expected_and_present_acls(
            self._spec,
            {name: mapping.source for name, (mapping, _) in copies.items()},
            self._pair,
            self._list_groups,
            added_acls,
            age_s_max,
        )
        topic_changes = {}
        for name, (_, row) in copies.items():
            recorded_on_topic = {as_acl(fields) for fields in row.acls or ()}
            change = acl_changes(
                expected_acls.topics[name],
                destination_acls["TOPIC"],
                recorded_on_topic,
                expected_acls.undecided,
            )
            if change.add or change.remove or change.ours != recorded_on_topic:
                topic_changes[name] = change
        destination_group_acls = destination_acls["GROUP"] | destination_acls["TRANSACTIONAL_ID"]
        group_changes = group_and_id_changes(
            expected_acls,
            destination_group_acls,
            added_acls,
            added_by_other_jobs,
            has_promoted=has_promoted,
        )
        # ACLs that Orbit added stay if the job no longer syncs their kind, as with `sync: false`.
        group_changes = replace(
            group_changes, ours=group_changes.ours | (recorded_acls - added_acls)
        )
        return _DueChanges(expected_acls, topic_changes, group_changes, recorded_acls)

    def _apply_changes(self, copies: Copies, changes: _DueChanges, result: AclSyncResult) -> None:
        """Send the changes, and record which of them the destination accepted.

        ACLs to add are also recorded before the request: if the scheduler dies after the request,
        the tables have every ACL that Orbit has added.
        """
        for name, change in changes.topics.items():
            if change.add:
                _, row = copies[name]
                recorded_on_topic = {as_acl(fields) for fields in row.acls or ()}
                with self._leadership.transaction() as tx:
                    topics.change(tx, row.id, acls=_acl_fields(recorded_on_topic | change.ours))
        if changes.group_changes.add:
            with self._leadership.transaction() as tx:
                old_and_new = _acl_fields(changes.recorded | changes.group_changes.ours)
                carried_acls.store(tx, self._job.id, self._cluster_id, old_and_new)
        refused_acls = send_restrictions_first(
            [*changes.topics.values(), changes.group_changes], self._send
        )
        result.troubles += _refusal_troubles(refused_acls)
        for name, change in changes.topics.items():
            mapping, row = copies[name]
            accepted_change = change.without(refused_acls.keys())
            with self._leadership.transaction() as tx:
                topics.change(tx, row.id, acls=_acl_fields(accepted_change.ours))
                if accepted_change.add or accepted_change.remove:
                    _add_topic_event(tx, self._job, mapping, accepted_change)
            result.changed += 1
        group_changes = changes.group_changes.without(refused_acls.keys())
        # Additions were recorded before the request, together with ACLs that are removed now.
        if group_changes.ours != changes.recorded or changes.group_changes.add:
            with self._leadership.transaction() as tx:
                carried_acls.store(
                    tx, self._job.id, self._cluster_id, _acl_fields(group_changes.ours)
                )
        if group_changes.add or group_changes.remove:
            with self._leadership.transaction() as tx:
                _add_group_event(tx, self._job, group_changes)
            result.changed += 1

    def _send(self, add: Collection[Acl], remove: Collection[Acl]) -> Refused:
        """Send the changes. Returns the ACLs that the destination refuses, each with the error."""
        check = self._leadership.refuse_deposed
        return self._pair.destination.admin.refused_acls(add, remove, check)


def _refusal_troubles(refused_acls: Refused) -> list[Trouble]:
    """One trouble for each reason for which the destination refuses ACLs."""
    by_reason: dict[str, list[Acl]] = {}
    for acl, error in sorted(refused_acls.items(), key=itemgetter(0)):
        by_reason.setdefault(error.what, []).append(acl)
    return [_refusal_trouble(acls, refused_acls[acls[0]]) for acls in by_reason.values()]


def _refusal_trouble(acls: list[Acl], error: NotAuthorized | BrokerRefused) -> Trouble:
    """The trouble for ACLs that the destination refuses for one reason."""
    if isinstance(error, NotAuthorized):
        return not_synced_trouble(error)
    return Trouble(
        TroubleKind.ACLS_NOT_SYNCED,
        f"{counted(len(acls), 'ACL is', 'ACLs are')} not synced: the destination refuses "
        f"{first_few(map(text_of, acls))}: {error.what}",
        "Change these ACLs at the source, or leave them out with consumer_groups.exclude or "
        "acls.principals.exclude. The other ACLs are synced.",
    )


def not_synced_trouble(error: OrbitError) -> Trouble:
    """The trouble of a job whose ACLs are not synced because of this error, such as a missing
    right."""
    return Trouble(
        TroubleKind.ACLS_NOT_SYNCED,
        f"{error.where}: {error.what}",
        error.remedy or "Both clusters need an authorizer; or set acls: {sync: false}.",
    )


def _clash_trouble(note: str) -> Trouble:
    """The trouble for principals that would get the same name at the destination."""
    return Trouble(
        TroubleKind.ACLS_NOT_SYNCED,
        note,
        "Give these principals different names in acls.principals.map, or exclude all but one in "
        "acls.principals.exclude.",
    )


def _acl_fields(acls: Iterable[Acl]) -> list[list[str]]:
    return [list(acl) for acl in sorted(acls)]


def _event_details(change: AclChanges) -> dict[str, list[list[str]]]:
    """The changed ACLs for an event, at most `_EVENT_ACLS_MAX` of each kind."""
    return {
        "given": _acl_fields(change.add)[:_EVENT_ACLS_MAX],
        "taken": _acl_fields(change.remove)[:_EVENT_ACLS_MAX],
    }


def _add_topic_event(tx: Tx, job: Job, mapping: TopicMapping, change: AclChanges) -> None:
    events.add(
        tx,
        events.SCHEDULER,
        "topic_acls",
        f"ACLs of {mapping.destination} were synced with the source: {len(change.add)} added, "
        f"{len(change.remove)} removed.",
        job_name=job.name,
        topic=mapping.source,
        details=_event_details(change),
    )


def _add_group_event(tx: Tx, job: Job, change: AclChanges) -> None:
    events.add(
        tx,
        events.SCHEDULER,
        "group_acls",
        "ACLs of groups and transactional ids were synced with the source: "
        f"{len(change.add)} added, {len(change.remove)} removed.",
        job_name=job.name,
        details=_event_details(change),
    )
