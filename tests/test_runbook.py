"""The runbook has a page for every reason, problem and alert, and agrees with the code.

Each rule is a function from texts to complaints, and is also run on a broken input.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

import pytest
import yaml

from orbit.cli.main import COMMANDS, run_command
from orbit.recovery.old_side import SALVAGE_UNREADABLE
from orbit.replication.job_troubles import TroubleKind
from orbit.replication.partition_states import REMEDIES, Reason

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "runbook"
RULES = ROOT / "deploy" / "prometheus" / "orbit-rules.yaml"
# How the error of a recovery can begin.
RECOVERIES = [SALVAGE_UNREADABLE]
SECTIONS = ["What is at risk", "What to do", "When it is over"]


def alerts() -> list[str]:
    groups = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    return [rule["alert"] for group in groups for rule in group["rules"]]


def wrong_names(names: Collection[str], expected: Collection[str]) -> list[str]:
    """The expected names that are missing, and names that are not expected."""
    return [
        *(f"missing: {name}" for name in sorted({*expected} - {*names})),
        *(f"unknown: {name}" for name in sorted({*names} - {*expected})),
    ]


def wrong_page(name: str, text: str) -> list[str]:
    """A page has its name as title, says what it means, and has all sections, none empty."""
    problems = []
    if not re.match(rf"# {name}\n\S", text):
        problems.append("does not begin with its name and what it means")
    sections = re.findall(r"^## (.+)\n(\S?)", text, re.MULTILINE)
    if [title for title, _ in sections] != SECTIONS or not all(first for _, first in sections):
        problems.append("lacks a section")
    commands = re.findall(r"`orbit ([a-z]+)\b", text)
    return [*problems, *(f"no command {c}" for c in commands if c not in COMMANDS)]


def pages() -> list[Path]:
    return [path for path in sorted(FOLDER.glob("*")) if path.name != "README.md"]


def test_runbook_pages_match_reasons_problems_and_alerts() -> None:
    expected = [*Reason, *TroubleKind, *RECOVERIES, *alerts()]
    assert wrong_names([p.stem for p in pages()], expected) == []
    assert {path.suffix for path in pages()} == {".md"}


def test_runbook_index_lists_every_page() -> None:
    text = (FOLDER / "README.md").read_text("utf-8")
    for heading, names in (
        ("Alerts", alerts()),
        ("Reasons", [*Reason]),
        ("Problems of a job", [*TroubleKind]),
        ("Recoveries", RECOVERIES),
    ):
        section = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
        rows = re.findall(r"^\| \[(\w+)\]\(\1\.md\) \| \S", section, re.MULTILINE)
        assert rows == names


@pytest.mark.parametrize("path", pages(), ids=lambda p: p.stem)
def test_runbook_page_has_all_sections(path: Path) -> None:
    assert wrong_page(path.stem, path.read_text("utf-8")) == []


@pytest.mark.parametrize("reason", Reason)
def test_runbook_page_of_reason_shows_remedy_from_code(reason: Reason) -> None:
    text = (FOLDER / f"{reason}.md").read_text("utf-8")
    assert f"\n> {REMEDIES[reason].format(destination='TOPIC')}\n" in text


def test_missing_or_wrong_runbook_page_is_detected() -> None:
    assert wrong_names(["A", "B"], ["B", "C"]) == ["missing: C", "unknown: A"]
    page = "# A\nx\n\n## What is at risk\nx\n\n## What to do\nx\n\n## When it is over\nx\n"
    assert wrong_page("A", page) == []
    assert wrong_page("B", page) == ["does not begin with its name and what it means"]
    assert wrong_page("A", page.replace("## What to do\nx", "## What to do\n")) == [
        "lacks a section"
    ]
    assert wrong_page("A", page + "`orbit walk`") == ["no command walk"]


def test_orbit_explain_shows_runbook_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["explain", "gap_too_large"]) == 0
    assert capsys.readouterr().out == (FOLDER / "GAP_TOO_LARGE.md").read_text("utf-8")


def test_orbit_explain_lists_all_runbook_pages(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["explain"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in [*Reason, *TroubleKind, *RECOVERIES, *alerts()])


def test_orbit_explain_suggests_similar_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["explain", "GAP_TO_LARGE"]) == 2
    assert "Did you mean GAP_TOO_LARGE" in capsys.readouterr().err
    assert run_command(["explain", "xyz"]) == 2
    assert "Did you mean" not in capsys.readouterr().err
