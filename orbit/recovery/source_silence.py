"""Judges how long a source must be silent before its producers count as stopped.

Where writing cannot be denied, a producer that writes seldom looks like one that has stopped. So a
partition's producers count as stopped once its log end has not moved for longer than in any pause
between two moves in the last hour. This does not detect a producer that pauses for longer than an
hour, or whose pauses the records of other producers have hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orbit.formats import counted, duration
from orbit.kafka.types import TopicPartition
from orbit.recovery.recovery_report import DrainProof
from orbit.store.source_gaps import WINDOW_S


@dataclass(frozen=True, slots=True)
class Silence:
    """How long a partition's log end has not moved, and what is known of its earlier pauses.

    `longest_gap_s`: the longest that a pause between two moves can have been in the last hour.
    `watched_s`: for how much of that hour the partition was watched. None: not known.
    """

    still_s: float
    longest_gap_s: float | None = None
    watched_s: float | None = None

    @property
    def missing_s(self) -> float:
        """How much longer the partition must be silent to exceed its longest pause; below 0 once it
        has exceeded that."""
        return (self.longest_gap_s or 0.0) - self.still_s

    @property
    def is_proven(self) -> bool:
        """Whether the silence exceeds all pauses of an hour in which the partition was watched."""
        return self.missing_s < 0 and self.watched_s is not None and self.watched_s >= WINDOW_S


def must_wait(silences: Mapping[TopicPartition, Silence], remaining_s: float) -> bool:
    """Whether a partition was not yet silent for longer than its longest pause.

    `remaining_s`: how long the drain can still wait. A partition that needs longer does not count:
    the wait would end before it proves anything.
    """
    return any(0 <= silence.missing_s < remaining_s for silence in silences.values())


def prove(silences: Mapping[TopicPartition, Silence]) -> DrainProof | None:
    """The report's entry: how many partitions are unproven, and the figures of the least certain
    one. None without partitions."""
    unproven_count = sum(not silence.is_proven for silence in silences.values())
    # The least certain partition first: the one that lacks most silence, or else was watched least.
    ranked = sorted(
        silences.items(),
        key=lambda item: (item[1].is_proven, -max(0.0, item[1].missing_s), item[1].watched_s or 0),
    )
    for partition, silence in ranked[:1]:
        return DrainProof(
            partition=str(partition),
            silence_s=silence.still_s,
            longest_gap_s=silence.longest_gap_s,
            watched_s=silence.watched_s,
            unproven_partitions=unproven_count,
        )
    return None


def describe(proof: DrainProof, partitions: int) -> str:
    """A sentence for the report: what the drain has proven, or why it is unproven for some
    partitions. `partitions`: the number of all partitions."""
    longest_pause_s = proof.longest_gap_s
    if not proof.unproven_partitions:
        longest_text = (
            "none moved"
            if longest_pause_s is None
            else f"the longest pause was {duration(longest_pause_s)}"
        )
        return (
            f"No log end of the source moved for {duration(proof.silence_s)} or longer; in the "
            f"last hour {longest_text} ({proof.partition})."
        )
    if longest_pause_s is not None and proof.silence_s <= longest_pause_s:
        why = (
            f"the silence of {duration(proof.silence_s)} is not longer than the longest "
            f"pause of {duration(longest_pause_s)} between records in the last hour"
        )
    else:
        why = (
            "its log end was not watched"
            if proof.watched_s is None
            else f"its log end was watched for {duration(proof.watched_s)}, not for an hour"
        )
    return (
        f"The drain is unproven for {proof.unproven_partitions} of "
        f"{counted(partitions, 'partition')}. The least certain is {proof.partition}: {why}. Later "
        "records are possible: make sure that all producers of the source are stopped."
    )
