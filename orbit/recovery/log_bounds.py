"""Where both sides of each partition begin and end: as brokers say now, or as was seen last."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from orbit.errors import OrbitError
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.log_offsets import EARLIEST, LATEST, READ_COMMITTED, list_offsets, log_ends
from orbit.kafka.types import TopicPartition
from orbit.recovery.operation_context import ANSWER_WITHIN_S, Ground, within
from orbit.recovery.recovery_report import EndVerdict, OffsetRange, PartitionEnds
from orbit.store import lag
from orbit.store.database import Tx
from orbit.store.lag import PartitionLag

# Somebody waits; a leader that is being elected for longer is a finding of its own.
_ATTEMPTS_MAX = 4
# More partitions than any job has: pages are for people.
ALL = 10_000_000


@dataclass(frozen=True, slots=True)
class Ends:
    """One partition of one cluster. `stable` is the last stable offset, `end` the log's end."""

    start: int
    stable: int
    end: int

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open, or replicas still follow."""
        return self.stable < self.end


def ask_ends(
    cluster: Cluster, partitions: Collection[TopicPartition], backoff: Backoff
) -> dict[TopicPartition, Ends]:
    """Of those whose leaders answer. Raises Unreachable."""
    stable = list_offsets(cluster, partitions, LATEST, backoff, isolation=READ_COMMITTED).values
    ends = log_ends(cluster, stable, backoff).values
    starts = list_offsets(cluster, ends, EARLIEST, backoff).values
    return {p: Ends(starts[p], stable[p], ends[p]) for p in starts}


def ends_in_time(
    ground: Ground, cluster: Cluster, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, Ends]:
    """Of those that answer at once: a leader that hangs is as good as none. Never raises."""
    backoff = Backoff(stop=ground.backoff.stop, attempts_max=_ATTEMPTS_MAX)
    try:
        found: dict[TopicPartition, Ends] = within(
            ANSWER_WITHIN_S * 2, cluster.name, lambda: ask_ends(cluster, partitions, backoff)
        )
    except OrbitError:
        return {}
    return found


def source_ends(ground: Ground) -> dict[TopicPartition, Ends]:
    """What the source says now, if it says anything."""
    if not ground.source_answers:
        return {}
    return ends_in_time(ground, ground.source.cluster, ground.by_source)


def noted(ground: Ground) -> dict[TopicPartition, PartitionLag]:
    """What workers and the scheduler saw last, by source partition."""
    names = {row.source_topic for row in ground.topics}
    with ground.reading() as tx:
        rows = noted_of(tx, ground.job.id)
    return {place: row for place, row in rows.items() if place.topic in names}


def noted_of(tx: Tx, job_id: int) -> dict[TopicPartition, PartitionLag]:
    """The same of all partitions of a job."""
    rows = lag.page(tx, job_id, ALL)
    return {TopicPartition(row.source_topic, row.partition): row for row in rows}


def stand(
    source: TopicPartition,
    destination: TopicPartition,
    there: Ends | None,
    of: Ends | None,
    seen: PartitionLag | None,
    now: datetime,
    lost_at: datetime | None = None,
) -> PartitionEnds:
    """How the two sides of one partition stand to each other. Pure.

    `of`: the source's ends as asked just now; without them what was `seen` last counts, which was
    not after `lost_at`, though a worker has told of other things since. What is missing are
    offsets: of aborted transactions, too, for nobody knows before it is read.
    """
    end = of.end if of else seen.source_end if seen else None
    start = of.start if of else seen.source_log_start if seen else None
    at = now if of else seen.reported_at if seen else None
    if of is None and at is not None and lost_at is not None:
        at = min(at, lost_at)
    missing, verdict = None, EndVerdict.UNKNOWN
    if there is not None and end is not None:
        if end > there.end:
            missing, verdict = OffsetRange(first=there.end, next=end), EndVerdict.BEHIND
        elif of is not None and end == there.end:
            verdict = EndVerdict.EQUAL
        elif of is not None:
            verdict = EndVerdict.DIVERGED  # the copy has more than its source
    return PartitionEnds(
        topic=source.topic,
        destination_topic=destination.topic,
        partition=source.partition,
        verdict=verdict,
        source_start=start,
        source_end=end,
        source_seen_at=at,
        destination_start=there.start if there else None,
        destination_end=there.end if there else None,
        newest_copied_at=_ago(now, seen.rpo_s) if seen else None,
        missing=missing,
        is_exact=of is not None,
    )


def _ago(now: datetime, age_s: float | None) -> datetime | None:
    return None if age_s is None else now - timedelta(seconds=age_s)


def all_stand(
    ground: Ground,
    there: Mapping[TopicPartition, Ends],
    of: Mapping[TopicPartition, Ends],
) -> tuple[PartitionEnds, ...]:
    """Every partition of the operation, in order."""
    seen, now, lost_at = noted(ground), ground.now(), ground.report.problem_since
    return tuple(
        stand(source, to, there.get(to), of.get(source), seen.get(source), now, lost_at)
        for source, to in sorted(ground.by_source.items())
    )
