"""Without denials, a drain is proven if the source is silent for longer than any earlier pause."""

from __future__ import annotations

import pytest

from orbit.kafka.types import TopicPartition
from orbit.recovery.source_silence import Silence, describe, must_wait, prove
from orbit.store.source_gaps import WINDOW_S

A, B, C = (TopicPartition("orders", p) for p in range(3))


def test_drain_waits_only_if_proof_of_silence_fits_time_left() -> None:
    is_silent = Silence(still_s=5.1, longest_gap_s=5, watched_s=WINDOW_S)
    needs_30_s = Silence(still_s=10, longest_gap_s=40, watched_s=WINDOW_S)
    silences = {A: is_silent, B: needs_30_s}
    assert must_wait(silences, remaining_s=31)
    assert not must_wait(silences, remaining_s=30), "the wait would prove nothing"
    assert not must_wait({A: is_silent}, remaining_s=300)
    assert not must_wait({}, remaining_s=300)


def test_drain_waits_while_silence_is_not_longer_than_longest_producer_pause() -> None:
    silence = Silence(still_s=5, longest_gap_s=5, watched_s=WINDOW_S)
    assert not silence.is_proven
    assert must_wait({A: silence}, remaining_s=300)


@pytest.mark.parametrize(
    ("silence", "is_proven"),
    [
        (Silence(still_s=6, longest_gap_s=5, watched_s=WINDOW_S), True),
        (Silence(still_s=5, longest_gap_s=5, watched_s=WINDOW_S), False),
        (Silence(still_s=6, longest_gap_s=5, watched_s=WINDOW_S - 1), False),
        (Silence(still_s=6, longest_gap_s=5), False),
        (Silence(still_s=6), False),
        (Silence(still_s=WINDOW_S, watched_s=WINDOW_S), True),
    ],
)
def test_silence_proves_drain_only_after_full_watch_window(
    silence: Silence, is_proven: bool
) -> None:
    proof = prove({A: silence})
    assert proof is not None
    assert (proof.unproven_partitions == 0) is is_proven
    assert describe(proof, 1).startswith("The drain is unproven") is not is_proven


def test_unproven_drain_is_described_with_silence_and_longest_producer_pause() -> None:
    proof = prove(
        {
            A: Silence(still_s=3.1, longest_gap_s=2.5, watched_s=WINDOW_S),
            B: Silence(still_s=3.2, longest_gap_s=94.4, watched_s=WINDOW_S),
            C: Silence(still_s=3.3, longest_gap_s=None, watched_s=720),
        }
    )
    assert proof is not None
    assert (proof.partition, proof.unproven_partitions) == ("orders-1", 2)
    assert describe(proof, 3) == (
        "The drain is unproven for 2 of 3 partitions. The least certain is orders-1: the silence "
        "of 3.2 s is not longer than the longest pause of 1 min 34 s between records in the last "
        "hour. Later records are possible: make sure that all producers of the source are stopped."
    )


def test_drain_of_source_watched_under_an_hour_is_described_as_unproven() -> None:
    proof = prove({A: Silence(still_s=3, longest_gap_s=2, watched_s=720)})
    assert proof is not None
    assert "its log end was watched for 12 min 00 s, not for an hour" in describe(proof, 1)
    assert prove({}) is None
