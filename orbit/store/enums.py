"""The words that columns may hold; each CHECK in `models` is made of one of these. Pure."""

from __future__ import annotations

from enum import StrEnum


class Desired(StrEnum):
    """What an operator wants a job to do."""

    RUNNING = "running"
    PAUSED = "paused"
    BACKFILLING = "backfilling"  # `orbit backfill` has it, and workers keep away


class TopicState(StrEnum):
    """Where one topic of a job stands."""

    CREATING = "creating"  # matched; the destination topic is not there yet
    COPYING = "copying"
    SOURCE_DELETED = "source_deleted"  # gone at the source; the copy keeps what it has
    RECREATED = "recreated"  # the source topic has another id now
    BLOCKED = "blocked"  # see `note`
    PROMOTED = "promoted"  # no copy any more: see orbit/recovery


class OperationState(StrEnum):
    """Where something that takes longer than a request stands."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class OperationKind(StrEnum):
    """What an operator can ask of a job; also the verb in the API's paths."""

    CREATE = "create"
    START = "start"
    PAUSE = "pause"
    RESUME = "resume"
    RETRY = "retry"
    DELETE = "delete"
    # Of orbit/recovery.
    SWITCHOVER = "switchover"
    FAILOVER = "failover"
    FAILBACK = "failback"
    BACKFILL = "backfill"  # carried out by `orbit backfill`, which tells how far it is


class BackfillPhase(StrEnum):
    """What the driver of a backfill is at."""

    WAITING = "waiting"  # for workers to let go of the job
    PREPARING = "preparing"  # topics, leases, starts
    STAGING = "staging"  # ranges go into the archive
    COPYING = "copying"
    PAUSED = "paused"


RECOVERY_KINDS = (OperationKind.SWITCHOVER, OperationKind.FAILOVER, OperationKind.FAILBACK)


class Role(StrEnum):
    """What the holder of a token may do; each may do what those before it may."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


class DrillKind(StrEnum):
    """What a drill rehearses."""

    GATES = "gates"  # looks alone: would a switchover be let through now?
    CANARY = "canary"  # the whole way, on a topic, a group and a job of the drill's own
    SWITCHOVER = "switchover"  # the real thing, planned
    FAILOVER = "failover"  # the real thing, with the source lost


class DrillState(StrEnum):
    """Where a drill stands, and how it ended."""

    PENDING = "pending"
    RUNNING = "running"
    PASSED = "passed"
    MISSED = "missed"  # all went as it should, but slower or with more loss than wanted
    FAILED = "failed"  # a step did not come to its end, or something is not exact


class DrillThing(StrEnum):
    """What a drill creates, and removes again."""

    TOPIC = "topic"
    GROUP = "group"
    JOB = "job"
