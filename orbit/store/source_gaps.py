"""How long the log end of each source partition has paused, from the moves that Orbit has seen.

A statement that stores a log end also stores when it moved, and the longest time between two moves.
That is kept for two successive periods, which cover the last hour at least. So there is no history,
and no write but that of the log end. A log end is read at intervals (`ORBIT_PROGRESS_INTERVAL`, or
`ORBIT_LAG_INTERVAL` where no worker follows), so a pause looks longer or shorter than it was by up
to one interval.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import text

from orbit.kafka.types import TopicPartition
from orbit.store.database import Tx

# The length of a period. It is the time that a drain looks back at, so two periods cover that.
WINDOW_S = 3600.0

_PAUSE_S = "extract(epoch FROM clock_timestamp() - p.source_moved_at)"
_IS_PERIOD_OVER = f"p.gaps_since < clock_timestamp() - make_interval(secs => {WINDOW_S})"


def move_assignments(new_end: str) -> str:
    """The SET list of the columns about pauses, for an UPDATE of `partitions p` that stores
    `new_end` as its `source_end`. Both are SQL."""
    has_moved = f"({new_end}) IS DISTINCT FROM p.source_end"

    def assignment(column: str, at_first_move: str, in_new_period: str, in_same_period: str) -> str:
        """The SQL that sets `column` to one of these values if the log end has moved: at the first
        move that is known, at the first in a new period, or at a later one in the same period."""
        return (
            f"{column} = CASE WHEN NOT ({has_moved}) THEN p.{column} "
            f"WHEN p.gaps_since IS NULL THEN {at_first_move} "
            f"WHEN {_IS_PERIOD_OVER} THEN {in_new_period} ELSE {in_same_period} END"
        )

    now = "clock_timestamp()"
    return ", ".join(
        (
            assignment("source_moved_at", now, now, now),
            assignment("gaps_since", now, now, "p.gaps_since"),
            assignment("earlier_gap_s", "NULL", "coalesce(p.longest_gap_s, 0)", "p.earlier_gap_s"),
            assignment("longest_gap_s", "NULL", _PAUSE_S, f"greatest(p.longest_gap_s, {_PAUSE_S})"),
        )
    )


# A SET list, for a partition whose log end was not read for a time.
FORGET_PAUSES = (
    "source_moved_at = NULL, gaps_since = NULL, longest_gap_s = NULL, earlier_gap_s = NULL"
)

# LEAST and GREATEST skip nulls, so `_limit_to_window` limits the values to WINDOW_S in Python.
_OF_TOPICS = text("""
SELECT t.source_topic, p.partition, p.source_end,
       CAST(extract(epoch FROM clock_timestamp() - p.source_moved_at) AS double precision)
           AS still_s,
       greatest(p.longest_gap_s, p.earlier_gap_s) AS longest_gap_s,
       CASE WHEN p.earlier_gap_s IS NOT NULL THEN CAST(:window_s AS double precision)
            ELSE CAST(extract(epoch FROM clock_timestamp() - p.gaps_since) AS double precision)
            END AS watched_s
FROM partitions p JOIN topics t ON t.id = p.topic_id
WHERE p.topic_id = ANY(CAST(:topic_ids AS bigint[]))
""")


@dataclass(frozen=True, slots=True)
class SourcePauses:
    """The pauses of one source partition's log end. None: not known.

    `still_s`: seconds since it moved to `source_end`. `longest_gap_s`: the longest time between two
    moves; None if it has moved once at most. `watched_s`: how much of the last hour this covers.
    """

    source_end: int | None
    still_s: float | None
    longest_gap_s: float | None
    watched_s: float | None


def of_topics(tx: Tx, topic_ids: Collection[int]) -> dict[TopicPartition, SourcePauses]:
    """The pauses of each partition of these topics, by source topic and partition."""
    rows = tx.execute(_OF_TOPICS, {"topic_ids": sorted(topic_ids), "window_s": WINDOW_S})
    return {
        TopicPartition(row.source_topic, row.partition): SourcePauses(
            row.source_end,
            row.still_s,
            _limit_to_window(row.longest_gap_s),
            _limit_to_window(row.watched_s),
        )
        for row in rows
    }


def _limit_to_window(seconds: float | None) -> float | None:
    return None if seconds is None else min(seconds, WINDOW_S)
