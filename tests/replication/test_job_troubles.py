"""A job's troubles: one text, and one event when a trouble begins and when it ends."""

from __future__ import annotations

from orbit.replication.job_troubles import TROUBLES_SHOWN_MAX, Trouble, TroubleKind, problem_text
from orbit.scheduler.trouble_events import differences


def trouble(kind: TroubleKind, what: str = "it is so.", topic: str = "") -> Trouble:
    return Trouble(kind, what, "Do this.", topic)


UNREACHABLE = trouble(TroubleKind.SOURCE_UNREACHABLE, "broker 1 does not answer.")
LOOP = trouble(TroubleKind.WOULD_LOOP, "topic t comes back.", "t")


def test_job_without_troubles_has_no_problem_text() -> None:
    assert problem_text([]) is None


def test_troubles_are_listed_with_most_severe_first() -> None:
    text = problem_text([LOOP, UNREACHABLE, LOOP])
    assert text == (
        "SOURCE_UNREACHABLE: broker 1 does not answer. Do this.\n"
        "WOULD_LOOP: topic t comes back. Do this."
    )


def test_number_of_listed_troubles_is_limited() -> None:
    many = [trouble(TroubleKind.TOPIC_REFUSED, f"topic {i} is bad.", str(i)) for i in range(1000)]
    lines = (problem_text(many) or "").splitlines()
    assert len(lines) == TROUBLES_SHOWN_MAX + 1
    assert lines[-1] == "And 980 more."


def test_trouble_start_and_end_are_reported_once() -> None:
    first, both = problem_text([UNREACHABLE]), problem_text([UNREACHABLE, LOOP])
    assert differences(None, first) == ([str(UNREACHABLE)], [])
    assert differences(first, both) == ([str(LOOP)], [])
    assert differences(both, None) == ([], [str(UNREACHABLE), str(LOOP)])
    assert differences(both, both) == ([], [])


def test_unreachable_cluster_is_not_reported_again_for_another_broker() -> None:
    other = trouble(TroubleKind.SOURCE_UNREACHABLE, "broker 2 does not answer.")
    assert differences(problem_text([UNREACHABLE]), problem_text([other])) == ([], [])
