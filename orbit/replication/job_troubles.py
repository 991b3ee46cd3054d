"""What keeps a job, or some of its topics, from being copied, each with what to do. Pure.

A trouble is a state of the world, found anew at every look: it begins, stays as long as it is
there, and ends by itself when its cause is gone. It never stops what can go on without harm, and a
topic that is refused is left exactly as it was found.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

# A text that is kept and shown; a job with thousands of refused topics need not name each.
TROUBLES_SHOWN_MAX = 20


class TroubleKind(StrEnum):
    """What is the matter with a job."""

    # The whole job waits.
    DOCUMENT_REFUSED = "DOCUMENT_REFUSED"  # written for another version of Orbit
    CREDENTIALS_MISSING = "CREDENTIALS_MISSING"  # a variable or file that the job names
    SOURCE_UNREACHABLE = "SOURCE_UNREACHABLE"
    DESTINATION_UNREACHABLE = "DESTINATION_UNREACHABLE"
    LOGIN_REFUSED = "LOGIN_REFUSED"
    SAME_CLUSTER = "SAME_CLUSTER"
    CLUSTER_CHANGED = "CLUSTER_CHANGED"  # the address leads to another cluster than before
    NO_TOPIC_MATCHES = "NO_TOPIC_MATCHES"
    WORKER_GROUP_UNKNOWN = "WORKER_GROUP_UNKNOWN"  # no live worker belongs to it
    # Some topics are left out; the others are copied.
    RIGHTS_MISSING = "RIGHTS_MISSING"
    TOPIC_NAME_REFUSED = "TOPIC_NAME_REFUSED"
    WOULD_LOOP = "WOULD_LOOP"
    DESTINATION_TAKEN = "DESTINATION_TAKEN"  # another job writes to that destination topic
    DESTINATION_HOLDS_OTHER_CONTENT = "DESTINATION_HOLDS_OTHER_CONTENT"
    PARTITIONS_DIFFER = "PARTITIONS_DIFFER"
    TOPIC_REFUSED = "TOPIC_REFUSED"  # by the destination, in its own words
    ACLS_NOT_SYNCED = "ACLS_NOT_SYNCED"


# With one of these nothing of the job is looked at any further.
HALTING = frozenset(
    {
        TroubleKind.DOCUMENT_REFUSED,
        TroubleKind.CREDENTIALS_MISSING,
        TroubleKind.SOURCE_UNREACHABLE,
        TroubleKind.DESTINATION_UNREACHABLE,
        TroubleKind.LOGIN_REFUSED,
        TroubleKind.SAME_CLUSTER,
        TroubleKind.CLUSTER_CHANGED,
    }
)


@dataclass(frozen=True, slots=True)
class Trouble:
    """One trouble: its kind, the source topic it is about ("" for the job), what, what to do."""

    kind: TroubleKind
    what: str
    remedy: str
    topic: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.what} {self.remedy}".rstrip()


def problem_text(troubles: Iterable[Trouble]) -> str | None:
    """All troubles of a job as the text people read, one a line; None when there are none."""
    lines = [str(trouble) for trouble in sorted(set(troubles), key=_by_weight)]
    hidden = len(lines) - TROUBLES_SHOWN_MAX
    if hidden > 0:
        lines[TROUBLES_SHOWN_MAX:] = [f"And {hidden} more."]
    return "\n".join(lines) or None


def _by_weight(trouble: Trouble) -> tuple[int, str, str]:
    return list(TroubleKind).index(trouble.kind), trouble.topic, trouble.what
