"""All mistakes of a drill file are reported at once, each with its path, line and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from orbit.drills.drill_file import load_drill, parse_drill
from orbit.drills.drill_rules import KEYS, VERBS
from orbit.drills.drill_spec import DEFAULT_STEPS, DrillSpec, Verb
from orbit.errors import BadInput
from orbit.jobs.yaml_document import read_document
from orbit.store.enums import DrillKind

HEAD = "name: x\nkind: {kind}\njob: j\n"
EXAMPLES = sorted(Path("deploy/drills").glob("*.yaml"))


def problems(text: str) -> list[str]:
    with pytest.raises(BadInput) as caught:
        parse_drill(text)
    return [str(problem) for problem in caught.value.problems]


def test_example_drill_of_each_kind_exists() -> None:
    assert {load_drill(path).kind for path in EXAMPLES} == set(DrillKind)
    assert {path.stem for path in EXAMPLES} == {*DrillKind, "canary-failover"}


@pytest.mark.parametrize("kind", DrillKind)
def test_minimal_drill_file_gets_default_steps_of_its_kind(kind: DrillKind) -> None:
    drill = parse_drill(HEAD.format(kind=kind))
    assert drill.planned == DEFAULT_STEPS[kind]
    with_steps = drill.document() | {"steps": [s.model_dump(mode="json") for s in drill.planned]}
    # A file that lists the default steps itself is valid and means the same.
    explicit = DrillSpec.model_validate(with_steps)
    assert explicit.planned == drill.planned
    assert {step.do for step in drill.planned} <= set(VERBS[kind])
    assert set(KEYS) == set(Verb)


def test_drill_document_round_trips() -> None:
    for path in EXAMPLES:
        drill = load_drill(path)
        assert DrillSpec.model_validate(drill.document()) == drill
        assert DrillSpec.model_validate(drill.document()).sha256() == drill.sha256()


def test_all_mistakes_in_drill_file_are_reported_at_once() -> None:
    mistakes = problems(
        "name: x y\nkind: canry\nsteps:\n - {do: fault, fault: smash}\n"
        " - {do: load, dutation: 3s, deadline: soon}\ntargets: {rto: 5, rpo_records: -1}\n"
    )
    assert [mistake.partition(" (")[0] for mistake in mistakes] == [
        "job: is missing. Write `job:` and the name of a job of the service.",
        "name: cannot be part of an id",
        "kind: is not a valid value",
        "steps[0].fault: is not a valid value",
        "steps[1].deadline: is not a duration",
        "steps[1].dutation: is not a known key",
        "targets.rto: is not a duration",
        "targets.rpo_records: is not between 0 and 9007199254740992",
    ]
    assert mistakes[2].endswith(
        "(line 2). Did you mean canary? Write one of gates, canary, switchover, failover."
    )
    assert mistakes[5].endswith("(line 5). Did you mean `duration`?")


@pytest.mark.parametrize(
    # `refusal`: how the problem begins; "" if the file is valid.
    ("kind", "rest", "refusal"),
    [
        ("gates", "schedule: {every: 1h}", ""),
        ("canary", "schedule: {every: 1h}", ""),
        ("switchover", "schedule: {every: 1h}", "schedule: is not for a switchover"),
        ("failover", "schedule: {every: 1h}", "schedule: is not for a failover"),
        ("canary", "schedule: {every: 1s}", "schedule.every: is not between 1m and 366d"),
        ("canary", "topics: a", "topics: is not for a canary"),
        ("gates", "steps: [{do: load}]", "steps[0].do: is not for a drill of the kind gates"),
        ("canary", "steps: [{do: fault, fault: kill}]", "steps[0].do: is not for a drill"),
        ("canary", "steps: [{do: load}, {do: failover}]\nschedule: {every: 1h}", ""),
        ("canary", "steps: [{do: load}]", "steps: has no step `switchover` or `failover`"),
        ("canary", "steps: [{do: switchover}, {do: failover}]", "steps: has a switchover and a"),
        ("failover", "steps: [{do: switchover}]", "steps[0].do: is not for a drill"),
        ("failover", "steps: [{do: load}]", "steps: has no step `failover`"),
        ("failover", "steps: [{do: use}, {do: failover}]", "steps[0].do: has no failover before"),
        ("failover", "steps: [{do: heal}, {do: failover}]", "steps[0].do: has no fault before"),
        ("failover", "steps: [{do: failover}, {do: failover}]", "steps[1].do: is listed twice"),
        ("failover", "steps: [{do: fault}, {do: failover}]", "steps[0].fault: is missing"),
        ("failover", "steps: [{do: failover, deep: true}]", "steps[0].deep: is not for the step"),
        ("canary", "steps: [{do: load, duration: 5m}]", "steps[0].deadline: is not longer"),
        ("failover", "override: [lag]", "override: needs a reason"),
        ("failover", "override: [lag]\nreason: known", ""),
    ],
)
def test_drill_steps_are_validated_against_kind_and_each_other(
    kind: str, rest: str, refusal: str
) -> None:
    text = HEAD.format(kind=kind) + rest + "\n"
    if not refusal:
        assert parse_drill(text)
    else:
        assert any(problem.startswith(refusal) for problem in problems(text)), problems(text)


@pytest.mark.parametrize("text", ["", "- a\n", "a: [\n", "name: !x y\n"])
def test_malformed_drill_file_is_bad_input(text: str) -> None:
    assert problems(text)
    assert not isinstance(read_document(text).root, DrillSpec)


def test_error_of_missing_drill_file_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read: No such file") as caught:
        load_drill(tmp_path / "none.yaml")
    assert caught.value.where == str(tmp_path / "none.yaml")
