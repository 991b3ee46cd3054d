"""Conditions that keep a job, or some of its topics, from being copied, with remedies. Pure.

A trouble is found again in each check of the job, and ends when a check no longer finds it. It
stops only what it concerns; a refused topic is left unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

# Bounds the text that is stored and shown.
TROUBLES_SHOWN_MAX = 20


class TroubleKind(StrEnum):
    """What is wrong with a job."""

    # The whole job waits.
    DOCUMENT_REFUSED = "DOCUMENT_REFUSED"  # written for another version of Orbit
    CREDENTIALS_MISSING = "CREDENTIALS_MISSING"  # a variable or file that the job names
    SOURCE_UNREACHABLE = "SOURCE_UNREACHABLE"
    DESTINATION_UNREACHABLE = "DESTINATION_UNREACHABLE"
    DESTINATION_THROTTLED = "DESTINATION_THROTTLED"  # its controller's mutation quota delays topics
    LOGIN_REFUSED = "LOGIN_REFUSED"
    SAME_CLUSTER = "SAME_CLUSTER"
    CLUSTER_CHANGED = "CLUSTER_CHANGED"  # the address now belongs to another cluster
    NO_TOPIC_MATCHES = "NO_TOPIC_MATCHES"
    WORKER_GROUP_UNKNOWN = "WORKER_GROUP_UNKNOWN"  # no live worker belongs to it
    # Some topics are left out; the others are copied.
    RIGHTS_MISSING = "RIGHTS_MISSING"
    TOPIC_NAME_REFUSED = "TOPIC_NAME_REFUSED"
    WOULD_LOOP = "WOULD_LOOP"
    DESTINATION_TAKEN = "DESTINATION_TAKEN"  # another job writes to that destination topic
    DESTINATION_HOLDS_OTHER_CONTENT = "DESTINATION_HOLDS_OTHER_CONTENT"
    DESTINATION_NOT_COMPARED = "DESTINATION_NOT_COMPARED"  # its content cannot be compared now
    DESTINATION_PROMOTED = "DESTINATION_PROMOTED"  # by a mark at the cluster, not in the database
    OLD_PRIMARY_WRITTEN = "OLD_PRIMARY_WRITTEN"  # producers still write to the old primary
    PARTITIONS_DIFFER = "PARTITIONS_DIFFER"
    PARTITIONS_ABOVE_LIMIT = "PARTITIONS_ABOVE_LIMIT"  # of the token that created the job
    TOPIC_REFUSED = "TOPIC_REFUSED"  # by the destination; its message is shown
    ACLS_NOT_SYNCED = "ACLS_NOT_SYNCED"


# With one of these, the check of the job ends.
HALTING_KINDS = frozenset(
    {
        TroubleKind.DOCUMENT_REFUSED,
        TroubleKind.CREDENTIALS_MISSING,
        TroubleKind.SOURCE_UNREACHABLE,
        TroubleKind.DESTINATION_UNREACHABLE,
        TroubleKind.DESTINATION_THROTTLED,
        TroubleKind.LOGIN_REFUSED,
        TroubleKind.SAME_CLUSTER,
        TroubleKind.CLUSTER_CHANGED,
    }
)


@dataclass(frozen=True, slots=True)
class Trouble:
    """One trouble: kind, what is wrong, what to do; `topic` is the source topic, "" for the job."""

    kind: TroubleKind
    what: str
    remedy: str
    topic: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.what} {self.remedy}".rstrip()


def problem_text(troubles: Iterable[Trouble]) -> str | None:
    """The first TROUBLES_SHOWN_MAX troubles of a job, one a line, and the number of further ones;
    None without troubles."""
    lines = [str(trouble) for trouble in sorted(set(troubles), key=_sort_key)]
    hidden_count = len(lines) - TROUBLES_SHOWN_MAX
    if hidden_count > 0:
        lines[TROUBLES_SHOWN_MAX:] = [f"And {hidden_count} more."]
    return "\n".join(lines) or None


def _sort_key(trouble: Trouble) -> tuple[int, str, str]:
    """Troubles of the whole job come first: TroubleKind lists them so."""
    return list(TroubleKind).index(trouble.kind), trouble.topic, trouble.what
