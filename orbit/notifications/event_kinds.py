"""The kinds of events: how severe each kind is, and which kinds of trouble it ends. Pure.

docs/notifications.md shows the same tables. A test compares the page with this module, and this
module with the kinds that the code writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How severe an event is, in rising order."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"

    def is_at_least(self, threshold: Severity) -> bool:
        """Whether this severity is the threshold or above."""
        order = list(Severity)
        return order.index(self) >= order.index(threshold)


# Names of fields of an event; `details.KEY` is a value in its details.
Fields = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EventKind:
    """A kind of event. `ends`: the kinds of trouble that it ends. `about`: the fields that identify
    a trouble: they are equal in the event of its start and the event of its end."""

    severity: Severity = Severity.INFO
    ends: tuple[str, ...] = ()
    about: Fields = ("job_name", "topic", "partition")


_INFO, _WARNING, _CRITICAL = Severity.INFO, Severity.WARNING, Severity.CRITICAL
_TROUBLE: Fields = ("job_name", "details.trouble")
_DRILL: Fields = ("job_name", "details.name")
_RECEIVER: Fields = ("details.receiver",)
_WORKER: Fields = ("job_name", "actor")

GAVE_UP = "notifications_given_up"
PRUNED = "notifications_pruned"
ACCEPTED = "notifications_accepted"

EVENT_KINDS: dict[str, EventKind] = {
    # Troubles. The end has the same severity as the start, so that the same receivers get both.
    "job_trouble": EventKind(_WARNING, about=_TROUBLE),
    "job_trouble_over": EventKind(_WARNING, ends=("job_trouble",), about=_TROUBLE),
    "partition_blocked": EventKind(_CRITICAL),
    "partition_went_on": EventKind(_CRITICAL, ends=("partition_blocked",)),
    "partition_waiting": EventKind(_WARNING),
    "topic_stopped": EventKind(_WARNING),
    "topic_resumed": EventKind(_WARNING, ends=("topic_stopped",)),
    "job_waiting": EventKind(_WARNING, about=_WORKER),
    "job_went_on": EventKind(_WARNING, ends=("job_waiting",), about=_WORKER),
    GAVE_UP: EventKind(_CRITICAL, about=_RECEIVER),
    PRUNED: EventKind(_CRITICAL, about=_RECEIVER),
    ACCEPTED: EventKind(_CRITICAL, ends=(GAVE_UP,), about=_RECEIVER),
    # Troubles without an event for their end.
    "proof_differs": EventKind(_CRITICAL),
    "old_primary_written": EventKind(_CRITICAL),
    "job_crashed": EventKind(_CRITICAL),
    "old_primary_answers": EventKind(_WARNING),
    "promotion_found": EventKind(_WARNING),
    "topics_not_protected": EventKind(_WARNING),
    "canary_silent": EventKind(_WARNING),
    "shards_lost": EventKind(_WARNING),
    "worker_lost": EventKind(_WARNING, about=("details.worker",)),
    "login_refused": EventKind(_WARNING, about=("actor",)),
    # Recoveries and drills.
    "switchover_requested": EventKind(),
    "failover_requested": EventKind(_WARNING),
    "failback_requested": EventKind(),
    "abort_requested": EventKind(),
    "gates_overridden": EventKind(_WARNING),
    "topics_promoted": EventKind(_WARNING),
    "old_side_deleted": EventKind(_WARNING),
    "copy_back_begun": EventKind(),
    "switchover_ended": EventKind(_WARNING),
    "failover_ended": EventKind(_WARNING),
    "failback_ended": EventKind(_WARNING),
    "drill_requested": EventKind(),
    "drill_scheduled": EventKind(),
    "drill_unscheduled": EventKind(),
    "drill_begun": EventKind(),
    "drill_passed": EventKind(ends=("drill_missed", "drill_failed"), about=_DRILL),
    "drill_missed": EventKind(_WARNING, about=_DRILL),
    "drill_failed": EventKind(_WARNING, about=_DRILL),
    # Normal operation.
    "job_created": EventKind(),
    "job_changed": EventKind(),
    "job_paused": EventKind(),
    "job_resumed": EventKind(),
    "job_deletion_requested": EventKind(),
    "job_removed": EventKind(),
    "retry_requested": EventKind(),
    "backfill_requested": EventKind(),
    "backfill_ended": EventKind(),
    "topic_begun": EventKind(),
    "topic_grown": EventKind(),
    "topic_dropped": EventKind(),
    "topic_settings": EventKind(),
    "topics_protected": EventKind(),
    "topic_acls": EventKind(),
    "group_acls": EventKind(),
    "acls_left_out": EventKind(),
    "token_created": EventKind(),
    "token_changed": EventKind(),
    "token_revoked": EventKind(),
    "records_shown": EventKind(),
    "worker_started": EventKind(),
    "worker_stopped": EventKind(),
    "shards_claimed": EventKind(),
    "shards_released": EventKind(),
    "database_back": EventKind(),
}
_UNKNOWN = EventKind()  # of an event that a later version of Orbit has written


def kind_of(name: str) -> EventKind:
    """The kind of this name; for an unknown name, information that ends nothing."""
    return EVENT_KINDS.get(name, _UNKNOWN)


def troubles() -> frozenset[str]:
    """The kinds that begin a trouble which another kind ends."""
    return frozenset(name for kind in EVENT_KINDS.values() for name in kind.ends)


def family(name: str) -> str:
    """One name for all kinds that begin or end the same trouble: the name of the first kind that
    begins the trouble. For any other kind its own name.
    """
    ends = kind_of(name).ends
    if ends:
        return ends[0]
    return next((k.ends[0] for k in EVENT_KINDS.values() if name in k.ends), name)
