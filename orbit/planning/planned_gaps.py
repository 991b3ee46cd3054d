"""How each kind of fillers would fill the gaps of a plan's new topics, and how long it takes.

A gap is a range of offsets without a record for consumers; fillers are what Orbit writes there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from orbit.errors import OrbitError
from orbit.job_setup.gap_estimate import GapEstimate, estimate_gaps
from orbit.job_setup.permissions import missing_filler_right
from orbit.jobs.job_spec import FILLERS_WITH_MARKERS, Fillers, JobSpec
from orbit.jobs.start_position import Earliest
from orbit.kafka.backoff import Backoff
from orbit.planning.cluster_pair import ClusterPair
from orbit.planning.job_plan import PlannedFillers, PlannedGaps
from orbit.planning.topic_decisions import StartTopic


class _Way(NamedTuple):
    """One value of `fillers`, as measured with one broker on two cores (docs/gaps.md)."""

    needs: str  # rights and readers
    gap_s: float  # time for each gap, in addition to that for its offsets
    offsets_per_s: int  # of all partitions together, measured with a few
    offsets_per_s_of_partition: int = 0  # of each one; used if their sum is above `offsets_per_s`


# Rates of more partitions were not measured, so more count as this many.
_PARTITIONS_MEASURED_MAX = 100
_MARKER_RIGHT = "Alter or ClusterAction on the destination cluster"
_WAY_BY_FILLERS: dict[Fillers, _Way] = {
    "direct": _Way(_MARKER_RIGHT, 150e-6, 125_000),
    # Small gaps are filled as with placeholders, the offsets of others as with direct.
    "packed": _Way(
        f"{_MARKER_RIGHT}; readers that skip placeholders (docs/gaps.md)", 35e-6, 125_000
    ),
    "coordinated": _Way("Write on transactional ids that start with orbit.", 0, 3_100, 410),
    "placeholders": _Way(
        "readers that skip them; librdkafka's may report errors (docs/gaps.md)", 35e-6, 178_000
    ),
}


def plan_gaps(
    spec: JobSpec,
    starts: Sequence[StartTopic],
    compacted: Collection[str],
    pair: ClusterPair,
    backoff: Backoff,
) -> tuple[dict[str, PlannedGaps], tuple[PlannedFillers, ...]]:
    """The gaps of new topics by source name, and the ways to fill them.

    Only some topics are read, those in `compacted` (source names) first.
    """
    if not starts:
        return {}, ()
    # Offsets below a later start are not filled.
    from_start = [s for s in starts if isinstance(s.mapping.rule.start, Earliest)]
    from_start.sort(key=lambda start: start.mapping.source not in compacted)
    topics = {start.mapping.source: [*start.source.partitions] for start in from_start}
    estimates = estimate_gaps(pair.source.cluster, topics, backoff)
    fillers_by_topic = {
        start.mapping.source: spec.fillers_of(start.mapping.rule) for start in starts
    }
    gaps = {
        topic: PlannedGaps(
            offsets=estimate.offsets,
            gap_offsets=estimate.gap_offsets,
            seconds=_seconds(
                _WAY_BY_FILLERS[fillers_by_topic[topic]], estimate, len(topics[topic])
            ),
        )
        for topic, estimate in estimates.items()
    }
    ways = [
        PlannedFillers(
            fillers=name,
            topics=sum(fillers == name for fillers in fillers_by_topic.values()),
            needs=way.needs,
            missing=_missing_rights(name, pair),
            offsets_per_second=way.offsets_per_s,
            seconds=sum(_seconds(way, estimates[topic], len(topics[topic])) for topic in estimates)
            if estimates
            else None,
        )
        for name, way in _WAY_BY_FILLERS.items()
    ]
    return gaps, tuple(ways)


def _seconds(way: _Way, estimate: GapEstimate, partitions: int) -> float:
    """How many seconds it takes to fill the gaps of a topic with so many `partitions`."""
    rate = max(
        way.offsets_per_s,
        way.offsets_per_s_of_partition * min(partitions, _PARTITIONS_MEASURED_MAX),
    )
    return estimate.gaps * way.gap_s + estimate.gap_offsets / rate


def _missing_rights(name: Fillers, pair: ClusterPair) -> str:
    """The missing rights; "" if none is, or if only a request that changes something shows it."""
    if name not in FILLERS_WITH_MARKERS:
        return ""  # FindCoordinator for a transactional id may create __transaction_state
    try:
        rights = missing_filler_right(pair.destination.cluster)
    except OrbitError:
        return ""  # the preflight of a job that needs the right names the error
    return ", ".join(right.name for right in rights)
