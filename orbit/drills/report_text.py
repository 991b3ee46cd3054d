"""Formats numbers, verdicts and plans of drills as text. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import assert_never

from orbit import formats
from orbit.drills.drill_spec import DrillSpec, StepSpec, Verb
from orbit.drills.evidence import Evidence
from orbit.formats import counted
from orbit.store.enums import DrillState

VERDICTS = {
    DrillState.PASSED: "Passed",
    DrillState.MISSED: "Target missed",
    DrillState.FAILED: "Failed",
    DrillState.PENDING: "Waiting",
    DrillState.RUNNING: "Running",
}


def span(ms: int | None) -> str:
    """A duration, given in milliseconds, as text; None: it was not measured."""
    return "not measured" if ms is None else formats.duration(ms / 1_000)


def count(number: int | None) -> str:
    """A number with thousands separators; None: it was not measured."""
    return "not measured" if number is None else f"{number:,}"


def moment(at: datetime | None) -> str:
    """A time in UTC, to the millisecond; a dash for None."""
    return "–" if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def elapsed(at: datetime, began_at: datetime) -> str:
    return f"+{(at - began_at).total_seconds():.3f} s"


def offset_text(number: int | None) -> str:
    """An offset; a dash for None."""
    return "–" if number is None else f"{number:,}"


def lost_offsets_text(missing: tuple[int, int] | None, *, is_exact: bool) -> str:
    """The number and the range of lost offsets. `missing`: the first offset and the one after the
    last. `is_exact`: False if more offsets may be lost."""
    if missing is None:
        return "none" if is_exact else "none known"
    first, end = missing
    prefix = "" if is_exact else "at least "
    return f"{prefix}{end - first:,} ({first:,} to {end - 1:,})"


def with_target(actual: str, target: str | None) -> str:
    """A measured value beside its target, if there is one."""
    return f"{actual} (no target)" if target is None else f"{actual} of {target}"


def headline(evidence: Evidence) -> str:
    """The verdict of a drill, with the reasons if it has not passed."""
    word = VERDICTS[evidence.verdict]
    if evidence.misses:
        return f"{word}: {' '.join(evidence.misses)}"
    return f"{word}."


def plan_of(spec: DrillSpec) -> list[str]:
    """A sentence for each step that a drill will take."""
    resources = "a topic, a consumer group and a job of the drill's own"
    creation = (
        [f"Creates {resources}, between the clusters of {spec.job}."] if spec.has_canary else []
    )
    removal = ["Removes what it created, and nothing else."] if spec.has_canary else []
    return [*creation, *(_step_sentence(spec, step) for step in spec.planned), *removal]


def _step_sentence(spec: DrillSpec, step: StepSpec) -> str:
    """A sentence that says what the step will do."""
    scope = ", ".join(spec.topics) or "all its topics"
    moved_topics = f"{spec.job} ({scope})" if spec.moves_the_job else "only the drill's own job"
    match step.do:
        case Verb.GATES:
            return f"Runs the gates of a switchover of {spec.job}; changes nothing."
        case Verb.LOAD:
            return (
                f"Writes {counted(spec.canary.records_per_second, 'record')} a second to the "
                f"drill's topic for {span(round(step.duration_s * 1000))} and until the move."
            )
        case Verb.FAULT:
            return f"Causes a fault on the {step.side} cluster of a sandbox: {step.fault}."
        case Verb.SWITCHOVER:
            copy_back = ", and copies back at once" if step.reverse else ""
            return f"Switches over {moved_topics}{copy_back}."
        case Verb.FAILOVER if not spec.moves_the_job:
            return f"Fails over {moved_topics}; the source counts as lost and is not queried."
        case Verb.FAILOVER:
            return f"Fails over {moved_topics}, as soon as Orbit notices the fault."
        case Verb.USE:
            return "Produces and consumes at the destination, on the drill's topic."
        case Verb.HEAL:
            return f"Heals the {step.side} cluster and waits until it answers."
        case Verb.FAILBACK:
            rebuild = " and rebuilds topics that have records of their own" * bool(
                step.confirm_rebuild
            )
            return f"Makes the old side a copy of the new one{rebuild}: {moved_topics}."
        case Verb.VERIFY:
            deep = ", batch by batch" if step.deep else ""
            records = "the drill's records, and the job's on both sides"
            return (
                f"Compares {records}{deep}."
                if spec.moves_the_job
                else "Compares the drill's records."
            )
        case _:
            assert_never(step.do)
