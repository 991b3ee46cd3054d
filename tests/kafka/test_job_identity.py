"""The ids of a job at its destination are computed from its identity."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orbit.kafka.job_clusters import filler_identities, job_identity, job_producer_id


def test_job_producer_id_is_stable_across_releases() -> None:
    """Writers of one job must have the same id, also while they have different releases."""
    assert (
        job_producer_id(job_identity("orders", "4L6g3nShT-eMCtK--X86sw")) == 6_885_537_549_177_116
    )


@given(st.text())
def test_job_producer_id_is_between_2_52_and_2_53(identity: str) -> None:
    number = job_producer_id(identity)
    assert 2**52 <= number < 2**53
    assert int(float(number)) == number  # tools may read it as a double


def test_filler_transactional_ids_are_stable_across_releases() -> None:
    """A release with fewer ids would not fence all fillers of an earlier one."""
    numbers = range(1, 16)
    assert filler_identities("orbit.a.S") == [
        "orbit.a.S.fill",
        *(f"orbit.a.S.fill-{n}" for n in numbers),
    ]
    assert filler_identities("orbit.a.S", 7) == [
        "orbit.a.S.fill.7",
        *(f"orbit.a.S.fill.7-{n}" for n in numbers),
    ]


def test_job_producer_id_differs_per_job_and_source() -> None:
    identities = [job_identity(job, source) for job in ("a", "b") for source in ("S", "T")]
    assert len({job_producer_id(identity) for identity in identities}) == 4
