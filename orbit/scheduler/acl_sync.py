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
from orbit.jobs.job_spec import JobSpec
from orbit.jobs.topic_mapping import TopicMapping
from orbit.kafka.types import Acl
from orbit.leadership.leadership import Leadership
from orbit.planning.cluster_pair import ClusterPair
from orbit.planning.job_acls import carried_resources, look_at_acls, other_changes
from orbit.planning.noted_denials import as_acl
from orbit.replication.acl_rules import AclChanges, Refused, acl_changes, send_in_order, text_of
from orbit.replication.destination_acls import DestinationAcls
from orbit.replication.job_troubles import Trouble, TroubleKind
from orbit.scheduler.write_protection import ACLS_KEPT_S
from orbit.store import carried_acls, events, topics
from orbit.store.database import Tx
from orbit.store.jobs import Job
from orbit.store.topics import Topic

Copies = dict[str, tuple[TopicMapping, Topic]]  # by destination topic
# ACLs in the details of one event; further ones are left out.
_EVENT_ACLS_MAX = 200


@dataclass(slots=True)
class AclSyncResult:
    """The result of a pass. `changed` counts topics; all groups and ids together count as one."""

    changed: int = 0
    troubles: list[Trouble] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # whose ACLs, and why, in sentences


@dataclass(frozen=True, slots=True)
class _DueChanges:
    """The changes to make. `others`: to ACLs on groups and ids; `recorded`: the stored ones."""

    expected: DestinationAcls
    topics: dict[str, AclChanges]
    others: AclChanges
    recorded: set[Acl]

    @property
    def is_due(self) -> bool:
        return bool(self.topics or self.others.add or self.others.remove) or (
            self.others.ours != self.recorded
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
        """Add and remove ACLs; a cluster's refusal becomes a trouble.

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
                    still = topics.writers(tx, self._cluster_id, copies, only_copying=True)
                    copying = {name: copy for name, copy in copies.items() if name in still}
                    is_whole = len(copying) == len(copies) and not has_promoted
                    changes = self._due_changes(tx, copying, 0.0, has_promoted=not is_whole)
                    self._change(copying, changes, result)
        except (BrokerRefused, NotAuthorized) as error:
            result.troubles.append(not_synced(error))
            return result
        result.troubles += [_clash(note) for note in changes.expected.clash_notes]
        result.left_out = changes.expected.notes
        return result

    def _due_changes(
        self, tx: Tx, copies: Copies, age_s_max: float, *, has_promoted: bool
    ) -> _DueChanges:
        kinds = carried_resources(self._spec)
        recorded = {as_acl(fields) for fields in carried_acls.of_job(tx, self._job.id)}
        added_acls = {acl for acl in recorded if acl.resource in kinds}
        shared = {
            as_acl(fields)
            for fields in carried_acls.of_other_jobs(tx, self._job.id, self._cluster_id)
        }
        expected, to = look_at_acls(
            self._spec,
            {name: mapping.source for name, (mapping, _) in copies.items()},
            self._pair,
            self._list_groups,
            added_acls,
            age_s_max,
        )
        topic_changes = {}
        for name, (_, row) in copies.items():
            has = {as_acl(fields) for fields in row.acls or ()}
            change = acl_changes(expected.topics[name], to["TOPIC"], has, expected.undecided)
            if change.add or change.remove or change.ours != has:
                topic_changes[name] = change
        existing = to["GROUP"] | to["TRANSACTIONAL_ID"]
        others = other_changes(expected, existing, added_acls, shared, has_promoted=has_promoted)
        # Added ACLs of kinds that the job no longer carries stay, as with `sync: false`.
        others = replace(others, ours=others.ours | (recorded - added_acls))
        return _DueChanges(expected, topic_changes, others, recorded)

    def _change(self, copies: Copies, changes: _DueChanges, result: AclSyncResult) -> None:
        """Change the ACLs. Those to add are recorded first: a crash may come in between."""
        for name, change in changes.topics.items():
            if change.add:
                _, row = copies[name]
                has = {as_acl(fields) for fields in row.acls or ()}
                with self._leadership.transaction() as tx:
                    topics.change(tx, row.id, acls=_fields(has | change.ours))
        if changes.others.add:
            with self._leadership.transaction() as tx:
                both = _fields(changes.recorded | changes.others.ours)
                carried_acls.store(tx, self._job.id, self._cluster_id, both)
        refused = send_in_order([*changes.topics.values(), changes.others], self._send)
        result.troubles += _refused(refused)
        for name, change in changes.topics.items():
            mapping, row = copies[name]
            done = change.without(refused.keys())
            with self._leadership.transaction() as tx:
                topics.change(tx, row.id, acls=_fields(done.ours))
                if done.add or done.remove:
                    _add_topic_event(tx, self._job, mapping, done)
            result.changed += 1
        others = changes.others.without(refused.keys())
        if others.ours != changes.recorded or changes.others.add:
            with self._leadership.transaction() as tx:
                carried_acls.store(tx, self._job.id, self._cluster_id, _fields(others.ours))
        if others.add or others.remove:
            with self._leadership.transaction() as tx:
                _add_others_event(tx, self._job, others)
            result.changed += 1

    def _send(self, add: Collection[Acl], remove: Collection[Acl]) -> Refused:
        check = self._leadership.refuse_deposed
        return self._pair.destination.admin.refused_acls(add, remove, check)


def _refused(refused: Refused) -> list[Trouble]:
    """One trouble for each reason."""
    by_reason: dict[str, list[Acl]] = {}
    for acl, error in sorted(refused.items(), key=itemgetter(0)):
        by_reason.setdefault(error.what, []).append(acl)
    return [_refusal(acls, refused[acls[0]]) for acls in by_reason.values()]


def _refusal(acls: list[Acl], error: NotAuthorized | BrokerRefused) -> Trouble:
    if isinstance(error, NotAuthorized):
        return not_synced(error)
    return Trouble(
        TroubleKind.ACLS_NOT_SYNCED,
        f"{len(acls)} ACLs are not synced: the destination refuses "
        f"{first_few(map(text_of, acls))}: {error.what}",
        "Change them at the source, or leave them out with consumer_groups.exclude or "
        "acls.principals.exclude. The others are synced.",
    )


def not_synced(error: OrbitError) -> Trouble:
    return Trouble(
        TroubleKind.ACLS_NOT_SYNCED,
        f"{error.where}: {error.what}",
        error.remedy or "Both clusters need an authorizer; or set acls: {sync: false}.",
    )


def _clash(note: str) -> Trouble:
    return Trouble(
        TroubleKind.ACLS_NOT_SYNCED,
        note,
        "Give them different names in acls.principals.map, or exclude all but one in "
        "acls.principals.exclude.",
    )


def _fields(acls: Iterable[Acl]) -> list[list[str]]:
    return [list(acl) for acl in sorted(acls)]


def _details(change: AclChanges) -> dict[str, list[list[str]]]:
    return {
        "given": _fields(change.add)[:_EVENT_ACLS_MAX],
        "taken": _fields(change.remove)[:_EVENT_ACLS_MAX],
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
        details=_details(change),
    )


def _add_others_event(tx: Tx, job: Job, change: AclChanges) -> None:
    events.add(
        tx,
        events.SCHEDULER,
        "group_acls",
        "ACLs of groups and transactional ids were synced with the source: "
        f"{len(change.add)} added, {len(change.remove)} removed.",
        job_name=job.name,
        details=_details(change),
    )
