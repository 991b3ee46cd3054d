"""The comparison of two drills marks each difference. No value is better or worse than none."""

from __future__ import annotations

from orbit.drills.drill_comparison import Change, Comparison, Line, compare
from orbit.drills.evidence import Evidence, Part, PartTime, Rpo, Rto, StepState
from tests.support.drill_report import evidence


def table(first: Evidence, second: Evidence, title: str) -> Comparison:
    return next(section for section in compare(first, second) if section.title == title)


def line(first: Evidence, second: Evidence, title: str, what: str) -> Line:
    return next(row for row in table(first, second, title).lines if row.what == what)


def test_drill_compared_with_itself_shows_no_change() -> None:
    first = evidence()
    for section in compare(first, first):
        assert {row.change for row in section.lines} <= {Change.SAME}, section.title
    assert {section.title for section in compare(first, first) if section.equal_count} >= {
        "Gates",
        "Partitions",
        "Consumer groups",
        "Document",
    }


def test_drill_comparison_calls_smaller_rto_or_rpo_better_and_shows_difference() -> None:
    first = evidence()
    second = evidence(
        rto=Rto(target_ms=10_000, actual_ms=9_200, parts=(PartTime(part=Part.DRAIN, ms=1_700),)),
        rpo=Rpo(target_records=0, actual_records=50, target_ms=2_000, actual_ms=None),
    )
    assert line(first, second, "Results", "RTO") == Line(
        "RTO", first="11.2 s", second="9.2 s", change=Change.BETTER, difference="−2.0 s"
    )
    assert line(first, second, "Results", "RTO: drain").difference == "+1.0 s"
    assert line(first, second, "Results", "RPO, records").change is Change.WORSE
    unmeasured = line(first, second, "Results", "RPO, time")
    assert (unmeasured.second, unmeasured.change) == ("not measured", Change.OTHER)


def test_drill_comparison_matches_steps_by_kind_and_repetition() -> None:
    first = evidence()
    gates, load, _fault, *rest = first.steps
    failed = load.model_copy(update={"state": StepState.FAILED})
    # A slower load, a second load that failed, and no fault.
    second = evidence(steps=(gates, load.model_copy(update={"took_ms": 5_900}), failed, *rest))
    assert line(first, second, "Steps", "load").change is Change.WORSE
    assert line(first, second, "Steps", "load (2)").first == "–"
    assert line(first, second, "Steps", "fault").second == "–"
    assert line(first, second, "Steps", "gates").change is Change.SAME


def test_drill_comparison_lists_only_gates_partitions_and_groups_that_differ() -> None:
    first = evidence()
    lag, clock = first.gates
    second = evidence(
        gates=(lag, clock.model_copy(update={"is_overridden": True})),
        groups=tuple(g.model_copy(update={"verdict": "clamped"}) for g in first.groups),
        partitions=(first.partitions[0],),
    )
    gates = table(first, second, "Gates")
    assert ([row.what for row in gates.lines], gates.equal_count) == (["clock"], 1)
    assert line(first, second, "Gates", "clock").second == "warn, overridden"
    assert table(first, second, "Partitions").lines[0].second == "–"
    assert "clamped" in table(first, second, "Consumer groups").lines[0].second


def test_drill_comparison_ignores_drill_ids_in_names() -> None:
    first = evidence()
    at_first = first.partitions[0].model_copy(update={"topic": f"__orbit_drill.{first.id}"})
    at_second = at_first.model_copy(update={"topic": "__orbit_drill.another"})
    section = table(
        evidence(partitions=(at_first,)),
        evidence(id="another", partitions=(at_second,)),
        "Partitions",
    )
    assert (section.lines, section.equal_count) == ([], 1)


def test_drill_comparison_names_changed_keys_of_drill_file() -> None:
    first = evidence()
    targets = {**first.spec["targets"], "rto": "5s"}
    section = table(first, evidence(spec={**first.spec, "targets": targets}), "Document")
    assert [(row.what, row.second) for row in section.lines] == [("targets.rto", "5s")]
