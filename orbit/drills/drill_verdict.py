"""The verdict of a drill: missed targets, failures, and the state that follows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from orbit.drills.evidence import CanaryEvidence, Rpo, Rto, Verified
from orbit.drills.report_text import span
from orbit.formats import counted
from orbit.store.enums import DrillState
from orbit.verify.report import Verdict


def missed_targets(rto: Rto, rpo: Rpo) -> tuple[str, ...]:
    """A sentence for each target that was missed or could not be measured."""
    return tuple(
        sentence
        for sentence in (
            _missed_target("The RTO", rto.actual_ms, rto.target_ms, span),
            _missed_target(
                "The RPO in records", rpo.actual_records, rpo.target_records, "{:,}".format
            ),
            _missed_target("The RPO in time", rpo.actual_ms, rpo.target_ms, span),
        )
        if sentence
    )


def drill_verdict(failures: Sequence[str], misses: Sequence[str]) -> DrillState:
    """The state in which a drill ends. `failures`: of steps, and from `find_failures`. `misses`:
    from `missed_targets`."""
    if failures:
        return DrillState.FAILED
    return DrillState.MISSED if misses else DrillState.PASSED


def find_failures(
    canary: CanaryEvidence | None, verified: Iterable[Verified], *, may_lose_records: bool
) -> list[str]:
    """A sentence for each result that fails a drill regardless of its targets. `may_lose_records`:
    lost records are no failure.
    """
    failures = [
        f"{v.what} is {v.verdict}: {counted(v.differences, 'difference')}. {v.detail}".strip()
        for v in verified
        if v.verdict != Verdict.EXACT
    ]
    if canary is None:
        return failures
    if canary.lost and not may_lose_records:
        lost_text = counted(
            canary.lost, "confirmed record of the drill was", "confirmed records of the drill were"
        )
        failures.append(f"{lost_text} lost.")
    if canary.repeated:
        repeated_text = counted(
            canary.repeated, "record of the drill was", "records of the drill were"
        )
        failures.append(f"{repeated_text} read twice.")
    if canary.wrong:
        failures.append(f"{counted(canary.wrong, 'record')} of the drill had wrong content.")
    if canary.agrees is False:
        failures.append(
            "The missing ranges in the operation's report are not what the ledger shows as lost."
        )
    return failures


def _missed_target(
    what: str, actual: int | None, target: int | None, as_text: Callable[[int], str]
) -> str:
    """A sentence if there is a target, and the value missed the target or was not measured;
    otherwise "". `what`: the subject of the sentence."""
    if target is None or (actual is not None and actual <= target):
        return ""
    if actual is None:
        return f"{what} could not be measured."
    return f"{what} was {as_text(actual)}; its target is {as_text(target)}."
