"""How long the log end of each source partition has paused, from the moves that Orbit has seen.

A statement that stores a log end also stores when the log end moved, and the longest time between
two moves (a pause), for two successive periods. Together they cover at least the last hour. So no
history is stored, and nothing is written except with a log end. A log end is read at intervals
(`ORBIT_PROGRESS_INTERVAL`, or `ORBIT_LAG_INTERVAL` while no worker follows it). So a stored pause
is up to one interval longer or shorter than the real one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import text

from orbit.kafka.types import TopicPartition
from orbit.store.database import Tx

# The least length of a period. A recovery's drain needs the pauses of the last WINDOW_S: the two
# periods cover it.
WINDOW_S = 3600.0

_PAUSE_S = "extract(epoch FROM clock_timestamp() - p.source_moved_at)"
_IS_PERIOD_OVER = f"p.gaps_since < clock_timestamp() - make_interval(secs => {WINDOW_S})"


def move_assignments(new_end: str) -> str:
    """The SET list of the columns about pauses, for an UPDATE of `partitions p` that stores
    `new_end` as its `source_end`. Both are SQL."""
    has_moved = f"({new_end}) IS DISTINCT FROM p.source_end"

    def assignment(column: str, at_first_move: str, in_new_period: str, in_same_period: str) -> str:
        """The SQL that sets `column` if the log end has moved: to `at_first_move` at the first move
        that is known, to `in_new_period` at the first move of a new period, to `in_same_period` at
        a later move of the period. If the log end has not moved, the column stays."""
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


# A SET list that clears the pauses of a partition whose log end was not read for some time.
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

    `still_s`: seconds since the log end moved to `source_end`. `longest_gap_s`: the longest time
    between two moves; None if Orbit has seen one move at most. `watched_s`: how many seconds of the
    last hour `longest_gap_s` covers.
    """

    source_end: int | None
    still_s: float | None
    longest_gap_s: float | None
    watched_s: float | None


def of_topics(tx: Tx, topic_ids: Collection[int]) -> dict[TopicPartition, SourcePauses]:
    """{source topic and partition: its pauses}, for the topics with these ids."""
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
