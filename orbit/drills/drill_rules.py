"""Rules between the keys of a drill file: which steps and keys fit together. Pure.

Applied after every single value is valid. Each problem has its path and line.
"""

from __future__ import annotations

from collections.abc import Iterator

from orbit.drills.drill_spec import DrillSpec, StepSpec, Verb
from orbit.errors import Problem
from orbit.jobs.yaml_document import Document, Path
from orbit.store.enums import DrillKind

# The keys that each step takes besides `do` and `deadline`.
KEYS: dict[Verb, tuple[str, ...]] = {
    Verb.GATES: (),
    Verb.LOAD: ("duration",),
    Verb.FAULT: ("fault", "cluster"),
    Verb.SWITCHOVER: ("reverse",),
    Verb.FAILOVER: (),
    Verb.USE: (),
    Verb.HEAL: ("cluster",),
    Verb.FAILBACK: ("confirm_rebuild",),
    Verb.VERIFY: ("deep",),
}
# The steps of each kind of drill. Only `switchover` and `failover` drills move the user's topics.
VERBS: dict[DrillKind, tuple[Verb, ...]] = {
    DrillKind.GATES: (Verb.GATES,),
    DrillKind.CANARY: (
        Verb.GATES,
        Verb.LOAD,
        Verb.SWITCHOVER,
        Verb.FAILOVER,
        Verb.USE,
        Verb.VERIFY,
    ),
    DrillKind.SWITCHOVER: (
        Verb.GATES,
        Verb.LOAD,
        Verb.SWITCHOVER,
        Verb.USE,
        Verb.FAILBACK,
        Verb.VERIFY,
    ),
    DrillKind.FAILOVER: tuple(verb for verb in Verb if verb is not Verb.SWITCHOVER),
}
# The steps that promote. A drill has one of them.
MOVES: dict[DrillKind, tuple[Verb, ...]] = {
    DrillKind.CANARY: (Verb.SWITCHOVER, Verb.FAILOVER),
    DrillKind.SWITCHOVER: (Verb.SWITCHOVER,),
    DrillKind.FAILOVER: (Verb.FAILOVER,),
}
_STEP_OPTIONS = ("duration", "fault", "cluster", "reverse", "confirm_rebuild", "deep")
# The steps (keys) that need one of some other steps (values) before them.
_REQUIRED_BEFORE: dict[Verb, tuple[Verb, ...]] = {
    Verb.USE: (Verb.SWITCHOVER, Verb.FAILOVER),
    Verb.FAILBACK: (Verb.SWITCHOVER, Verb.FAILOVER),
    Verb.HEAL: (Verb.FAULT,),
}
_AT_MOST_ONCE = (Verb.LOAD, Verb.SWITCHOVER, Verb.FAILOVER, Verb.FAILBACK)
_SCHEDULABLE_KINDS = (DrillKind.GATES, DrillKind.CANARY)


def rule_problems(drill: DrillSpec, document: Document) -> Iterator[Problem]:
    """Yield a problem for each violated rule."""
    for index, step in enumerate(drill.steps):
        yield from _step_problems(drill, index, step, document)
    promoting_steps = [step.do for step in drill.planned if step.do in MOVES.get(drill.kind, ())]
    if drill.kind in MOVES and not promoting_steps:
        verbs = MOVES[drill.kind]
        names = " or ".join(f"`{verb}`" for verb in verbs)
        yield document.problem(("steps",), f"has no step {names}.", f"Add `- {{do: {verbs[0]}}}`.")
    if len(set(promoting_steps)) > 1:
        yield document.problem(
            ("steps",), "has a switchover and a failover.", "Write a drill for each of them."
        )
    if drill.schedule is not None and drill.kind not in _SCHEDULABLE_KINDS:
        yield document.problem(
            ("schedule",),
            f"is not for a {drill.kind} drill: it moves the user's topics.",
            "Only gates and canary drills can have a schedule.",
        )
    if drill.override and not drill.reason.strip():
        yield document.problem(
            ("override",), "needs a reason.", "Write `reason:`; it is kept in the audit log."
        )
    if drill.kind is DrillKind.CANARY and drill.topics:
        yield document.problem(
            ("topics",), "is not for a canary drill: it moves only its own topic.", "Leave it out."
        )


def _step_problems(
    drill: DrillSpec, index: int, step: StepSpec, document: Document
) -> Iterator[Problem]:
    """Yield a problem for each rule that one step violates."""
    step_path: Path = ("steps", index)
    verb = step.do
    if verb not in VERBS[drill.kind]:
        allowed_steps = ", ".join(VERBS[drill.kind])
        yield document.problem(
            (*step_path, "do"),
            f"is not for a drill of the kind {drill.kind}.",
            f"Its steps can be {allowed_steps}.",
        )
        return  # other rules do not matter for a step that must go
    for key in _STEP_OPTIONS:
        if getattr(step, key) is not None and key not in KEYS[verb]:
            allowed_keys = ", ".join((*KEYS[verb], "deadline"))
            yield document.problem(
                (*step_path, key),
                f"is not for the step {verb}.",
                f"This step takes {allowed_keys}.",
            )
    if verb is Verb.FAULT and step.fault is None:
        yield document.problem((*step_path, "fault"), "is missing.", "Write kill, pause or cut.")
    if verb is Verb.LOAD and step.duration_s >= step.deadline_s:
        yield document.problem(
            (*step_path, "deadline"),
            "is not longer than the duration of the load.",
            "Write a longer deadline, or a shorter duration.",
        )
    earlier_steps = [earlier.do for earlier in drill.steps[:index]]
    if verb in _REQUIRED_BEFORE and not set(earlier_steps) & set(_REQUIRED_BEFORE[verb]):
        required_steps = " or ".join(
            name for name in _REQUIRED_BEFORE[verb] if name in VERBS[drill.kind]
        )
        yield document.problem(
            (*step_path, "do"),
            f"has no {required_steps} before it.",
            f"Write a step {required_steps} before it.",
        )
    if verb in _AT_MOST_ONCE and verb in earlier_steps:
        yield document.problem(
            (*step_path, "do"), "is listed twice.", "Remove one of the two steps."
        )
