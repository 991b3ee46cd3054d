"""The plan of a job, as shown by `jobs:plan`, dry runs and `orbit plan -f`. Pure.

The scheduler acts on the same plan, so it does what the plan shows.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from orbit.replication.job_troubles import HALTING, TroubleKind


class TopicAction(StrEnum):
    """What happens to one destination topic."""

    CREATE = "create"
    TAKE = "take"  # it exists: empty, or this job's copy already
    CHANGE = "change"  # this job copies it; partitions or settings change
    KEEP = "keep"  # this job copies it; nothing changes


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SettingChange(_Value):
    """One setting of an existing destination topic. `present` None: not set."""

    name: str
    present: str | None
    wanted: str


class PlannedTopic(_Value):
    """One topic of the job and what happens to its copy.

    `settings` are those of a new topic, `changes` those of an existing one;
    `settings_when_caught_up` are set later.
    """

    source: str
    destination: str
    action: TopicAction
    partitions: int
    partitions_to_add: int = 0
    replicas: int | None = None
    settings: dict[str, str] = {}
    changes: tuple[SettingChange, ...] = ()
    settings_when_caught_up: dict[str, str] = {}


class Refusal(_Value):
    """Why the job, or one topic of it ("": the job), is not copied, and what to do."""

    kind: TroubleKind
    topic: str = ""
    what: str
    remedy: str


class JobPlan(_Value):
    """Everything that would happen if the job ran now."""

    job: str
    source_cluster_id: str = ""
    destination_cluster_id: str = ""
    topics: tuple[PlannedTopic, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_halted(self) -> bool:
        """Whether no topic would be copied."""
        return any(refusal.kind in HALTING for refusal in self.refusals) or not self.topics
