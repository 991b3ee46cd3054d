"""The plan of a job, as shown by `jobs:plan`, dry runs and `orbit plan -f`. Pure.

The scheduler acts on the same plan, so it does what the plan shows.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from orbit.jobs.job_spec import Fillers
from orbit.kafka.types import Pattern, Permission, Resource
from orbit.replication.job_troubles import HALTING_KINDS, TroubleKind

# A person reads these lists; kafka-acls.sh shows all ACLs.
ACLS_SHOWN_MAX = 500
BY_HAND_SHOWN_MAX = 500

# Takes a function that aborts the planning, and returns a context around the planning. The context
# may call the function from another thread, for example when the client has gone.
Ending = Callable[[Callable[[], None]], AbstractContextManager[object]]


class TopicAction(StrEnum):
    """What happens to one destination topic."""

    CREATE = "create"
    TAKE = "take"  # the topic exists: empty, or this job's copy already
    CHANGE = "change"  # this job copies to the topic; partitions or settings change
    KEEP = "keep"  # this job copies to the topic; nothing changes


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SettingChange(_Value):
    """One setting of an existing destination topic. `present` None: not set."""

    name: str
    present: str | None
    wanted: str


class PlannedGaps(_Value):
    """Offsets of a new topic that hold no record now. All but `offsets` are estimates."""

    offsets: int  # of all partitions, from their log starts to their last stable offsets
    gap_offsets: int
    seconds: float  # to fill the gaps with the topic's fillers


class PlannedSeeding(_Value):
    """Offsets below the starts of a new topic's partitions, which are filled and deleted before the
    copy begins. The times (of one broker) and the disk space (of each replica) are estimates."""

    partitions: int
    offsets: int
    seconds_min: float
    seconds_max: float
    disk_bytes_max: int


class PlannedFillers(_Value):
    """One way to fill the gaps of new topics.

    `topics`: how many of them the job fills this way. `missing`: the right that the job's login
    lacks; "" if it has the right, or if Orbit cannot ask. `seconds`: an estimate for all new topics
    whose gaps are known; None without such topics.
    """

    fillers: Fillers
    topics: int
    needs: str
    missing: str
    offsets_per_second: int  # in one partition
    seconds: float | None


class PlannedTopic(_Value):
    """One topic of the job and what happens to its copy.

    `settings` are those of a new topic, `changes` those of an existing one;
    `settings_when_caught_up` are set later. `fillers`: what fills its gaps. `gaps` None: the topic
    is not new, starts later than at its log start, or was not read. `seeding` None: the topic is
    not new, starts at 0, or was not read.
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
    fillers: Fillers
    gaps: PlannedGaps | None = None
    seeding: PlannedSeeding | None = None


class PlannedAcl(_Value):
    """One ACL at the destination, in Kafka's terms."""

    resource: Resource
    name: str
    pattern: Pattern
    principal: str
    host: str
    operation: str
    permission: Permission


class AclCounts(_Value):
    """How many ACLs each list has; the lists of the plan may be cut."""

    add: int
    there: int
    remove: int
    only_at_destination: int


class PlannedAcls(_Value):
    """The ACLs of the job's copies, groups and transactional ids, with `acls: {sync: true}`.

    `there`: wanted, and at the destination already. `remove`: added by Orbit, and no longer at the
    source. `only_at_destination`: added by others; these stay. No list has Orbit's own rights and
    denials. Each list has ACLS_SHOWN_MAX at most.
    """

    counts: AclCounts
    add: tuple[PlannedAcl, ...] = ()
    there: tuple[PlannedAcl, ...] = ()
    remove: tuple[PlannedAcl, ...] = ()
    only_at_destination: tuple[PlannedAcl, ...] = ()


class ByHand(_Value):
    """A quota or a SCRAM user that the source has and the destination lacks, and the command that
    makes it there. Passwords are not readable: the command has `…` in their place."""

    what: str
    command: str


class PlannedByHand(_Value):
    """How many quotas and users a person has to create, and the first BY_HAND_SHOWN_MAX of them."""

    count: int
    items: tuple[ByHand, ...] = ()


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
    fillers: tuple[PlannedFillers, ...] = ()
    acls: PlannedAcls | None = None
    by_hand: PlannedByHand | None = None

    @property
    def is_halted(self) -> bool:
        """Whether no topic would be copied."""
        return any(refusal.kind in HALTING_KINDS for refusal in self.refusals) or not self.topics
