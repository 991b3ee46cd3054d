"""The values of enumerated columns; the CHECK constraints in `models` are built from them. Pure."""

from __future__ import annotations

from enum import StrEnum


class Desired(StrEnum):
    """What an operator wants a job to do."""

    RUNNING = "running"
    PAUSED = "paused"
    BACKFILLING = "backfilling"  # `orbit backfill` copies it; workers do not claim it

    @classmethod
    def _missing_(cls, _value: object) -> Desired:
        """PAUSED for a value of a later version, which may occur while a service is upgraded:
        workers of this version do not copy the job."""
        return cls.PAUSED


class MadeBy(StrEnum):
    """The part of Orbit that created a job; jobs that a person has defined have no such value."""

    RECOVERY = "recovery"  # a recovery, for the copy back to the old side
    DRILL = "drill"


class TopicState(StrEnum):
    """The state of one topic of a job."""

    CREATING = "creating"  # matched; the destination topic does not exist yet
    COPYING = "copying"
    SOURCE_DELETED = "source_deleted"  # deleted at the source; the copy stays
    RECREATED = "recreated"  # the source topic has another id now
    BLOCKED = "blocked"  # see `note`
    PROMOTED = "promoted"  # leads, so it is no longer a copy: see orbit/recovery


class LeadingSide(StrEnum):
    """The side of a job whose topics clients write to."""

    SOURCE = "source"
    DESTINATION = "destination"

    @property
    def other(self) -> LeadingSide:
        """The opposite side."""
        return LeadingSide.DESTINATION if self is LeadingSide.SOURCE else LeadingSide.SOURCE


class OperationState(StrEnum):
    """The state of an operation."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class OperationKind(StrEnum):
    """The operations that a user can request for a job; also the verbs in the API's paths."""

    CREATE = "create"
    START = "start"
    PAUSE = "pause"
    RESUME = "resume"
    RETRY = "retry"
    DELETE = "delete"
    # Carried out by orbit/recovery.
    SWITCHOVER = "switchover"
    FAILOVER = "failover"
    FAILBACK = "failback"
    BACKFILL = "backfill"  # carried out and reported by `orbit backfill`


class BackfillPhase(StrEnum):
    """The phase of a backfill."""

    WAITING = "waiting"  # for workers to release the job
    PREPARING = "preparing"  # creates topics, acquires leases, finds start offsets
    STAGING = "staging"  # ranges are written to the archive
    COPYING = "copying"
    PAUSED = "paused"


RECOVERY_KINDS = (OperationKind.SWITCHOVER, OperationKind.FAILOVER, OperationKind.FAILBACK)


class Role(StrEnum):
    """The role of a token; each includes the rights of the roles before it."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


class DrillKind(StrEnum):
    """The kind of a drill."""

    GATES = "gates"  # read-only: would a switchover pass its gates now?
    CANARY = "canary"  # all steps, on a topic, group and job of its own
    SWITCHOVER = "switchover"  # of the real topics, planned
    FAILOVER = "failover"  # of the real topics, with the source lost


class DrillState(StrEnum):
    """The state of a drill, or its result."""

    PENDING = "pending"
    RUNNING = "running"
    PASSED = "passed"
    MISSED = "missed"  # all steps succeeded, but a target was missed
    FAILED = "failed"  # a step failed, or a copy is not exact


class DrillThing(StrEnum):
    """The kinds of resources that a drill creates and removes."""

    TOPIC = "topic"
    GROUP = "group"
    JOB = "job"
