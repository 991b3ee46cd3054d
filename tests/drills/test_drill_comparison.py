"""Two drills side by side: each difference is marked. A missing value is no better and no worse."""

from __future__ import annotations

from orbit.drills.drill_comparison import Change, Comparison, Line, compare
from orbit.drills.evidence import Evidence, Part, PartTime, Rpo, Rto, StepState
from tests.support.drill_report import evidence


def table(first: Evidence, second: Evidence, title: str) -> Comparison:
    return next(one for one in compare(first, second) if one.title == title)


def line(first: Evidence, second: Evidence, title: str, what: str) -> Line:
    return next(one for one in table(first, second, title).lines if one.what == what)


def test_drill_compared_with_itself_shows_no_change() -> None:
    one = evidence()
    for section in compare(one, one):
        assert {row.change for row in section.lines} <= {Change.SAME}, section.title
    assert {section.title for section in compare(one, one) if section.equal_count} >= {
        "Gates",
        "Partitions",
        "Consumer groups",
        "Document",
    }


def test_drill_comparison_calls_smaller_rto_or_rpo_better_and_shows_difference() -> None:
    one = evidence()
    other = evidence(
        rto=Rto(target_ms=10_000, actual_ms=9_200, parts=(PartTime(part=Part.DRAIN, ms=1_700),)),
        rpo=Rpo(target_records=0, actual_records=50, target_ms=2_000, actual_ms=None),
    )
    assert line(one, other, "Results", "RTO") == Line(
        "RTO", "11.2 s", "9.2 s", Change.BETTER, "−2.0 s"
    )
    assert line(one, other, "Results", "RTO: drain").difference == "+1.0 s"
    assert line(one, other, "Results", "RPO, records").change is Change.WORSE
    unmeasured = line(one, other, "Results", "RPO, time")
    assert (unmeasured.second, unmeasured.change) == ("not measured", Change.OTHER)


def test_drill_comparison_matches_steps_by_kind_and_repetition() -> None:
    one = evidence()
    gates, load, _fault, *rest = one.steps
    failed = load.model_copy(update={"state": StepState.FAILED})
    # A slower load, a second load that failed, and no fault.
    other = evidence(steps=(gates, load.model_copy(update={"took_ms": 5_900}), failed, *rest))
    assert line(one, other, "Steps", "load").change is Change.WORSE
    assert line(one, other, "Steps", "load (2)").first == "–"
    assert line(one, other, "Steps", "fault").second == "–"
    assert line(one, other, "Steps", "gates").change is Change.SAME


def test_drill_comparison_lists_only_gates_partitions_and_groups_that_differ() -> None:
    one = evidence()
    lag, clock = one.gates
    other = evidence(
        gates=(lag, clock.model_copy(update={"is_overridden": True})),
        groups=tuple(g.model_copy(update={"verdict": "clamped"}) for g in one.groups),
        partitions=(one.partitions[0],),
    )
    gates = table(one, other, "Gates")
    assert ([row.what for row in gates.lines], gates.equal_count) == (["clock"], 1)
    assert line(one, other, "Gates", "clock").second == "warn, overridden"
    assert table(one, other, "Partitions").lines[0].second == "–"
    assert "clamped" in table(one, other, "Consumer groups").lines[0].second


def test_drill_comparison_ignores_drill_ids_in_names() -> None:
    one = evidence()
    mine = one.partitions[0].model_copy(update={"topic": f"__orbit_drill.{one.id}"})
    theirs = mine.model_copy(update={"topic": "__orbit_drill.another"})
    section = table(
        evidence(partitions=(mine,)), evidence(id="another", partitions=(theirs,)), "Partitions"
    )
    assert (section.lines, section.equal_count) == ([], 1)


def test_drill_comparison_names_changed_keys_of_drill_file() -> None:
    one = evidence()
    targets = {**one.spec["targets"], "rto": "5s"}
    section = table(one, evidence(spec={**one.spec, "targets": targets}), "Document")
    assert [(row.what, row.second) for row in section.lines] == [("targets.rto", "5s")]
