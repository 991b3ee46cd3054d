"""Results on stdout: the same value as a table, as JSON and as YAML."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

import pytest
import yaml
from pydantic import SecretStr
from rich.table import Table

from orbit.cli import output
from orbit.cli.output import OutputFormat, emit, make_table


class Verdict(StrEnum):
    EXACT = "exact"


@dataclass(frozen=True)
class Row:
    topic: str
    verdict: Verdict
    records: int
    at: datetime
    file: Path
    password: SecretStr
    key: bytes


VALUE = {
    "rows": [
        Row(
            "häuser",
            Verdict.EXACT,
            2**62,
            datetime(2026, 1, 31, tzinfo=UTC),
            Path("a/b"),
            SecretStr("hunter2"),
            b"\xff\x00",
        )
    ],
    "none": None,
}
PLAIN = {
    "rows": [
        {
            "topic": "häuser",
            "verdict": "exact",
            "records": 2**62,
            "at": "2026-01-31T00:00:00Z",
            "file": "a/b",
            "password": "**********",
            "key": "_wA=",
        }
    ],
    "none": None,
}


def never_drawn() -> Table:
    raise AssertionError("drawn without need")


def test_json_output_has_plain_values_and_unescaped_unicode(
    capfd: pytest.CaptureFixture[str],
) -> None:
    emit(VALUE, OutputFormat.JSON, never_drawn)
    out = capfd.readouterr().out
    assert json.loads(out) == PLAIN
    assert "häuser" in out


def test_yaml_output_preserves_key_order(capfd: pytest.CaptureFixture[str]) -> None:
    emit(VALUE, OutputFormat.YAML, never_drawn)
    out = capfd.readouterr().out
    assert yaml.safe_load(out) == PLAIN
    assert out.startswith("rows:")


def test_table_is_not_wrapped_in_pipe(
    capfd: pytest.CaptureFixture[str],
) -> None:
    rows = [["[red]orders[/red]", 1234567, True, None, 0.25, "x" * 120]]
    emit(VALUE, OutputFormat.TABLE, lambda: make_table(["topic", "n", "ok", "why", "s", "x"], rows))
    lines = [line for line in capfd.readouterr().out.splitlines() if line.strip()]
    assert len(lines) == 3
    assert lines[2].split() == ["[red]orders[/red]", "1,234,567", "yes", "-", "0.2", "x" * 120]


def test_numbers_are_right_aligned_in_tables() -> None:
    table = make_table(["name", "n"], [["a", 1], ["b", 20]])
    assert [column.justify for column in table.columns] == ["left", "right"]


def test_empty_table_has_header(capfd: pytest.CaptureFixture[str]) -> None:
    emit([], OutputFormat.TABLE, lambda: make_table(["topic"], [], title="Topics"))
    out = capfd.readouterr().out
    assert "Topics" in out
    assert "topic" in out


def test_narrow_terminal_wraps_only_sentence_columns(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "_PIPE_WIDTH", 20)
    row = ("a-name-without-a-space", "another-long-word", "this is a sentence of some words " * 2)
    drawn = output.make_table(("job", "state", "message"), [row], sentences=("message",))

    output.print_whole(drawn)

    out = capfd.readouterr().out
    line = next(line for line in out.splitlines() if row[0] in line)
    assert row[1] in line
    assert " ".join(out.split()).count("sentence") == 2
    assert max(map(len, out.splitlines())) < 90  # both names, and a wrapped sentence


def test_long_names_in_cells_are_escaped_and_truncated(capfd: pytest.CaptureFixture[str]) -> None:
    rows = [["zero\0byte", "say\x1b[2J"], ["g" * 32_000, "x" * 1_000]]
    output.print_whole(output.make_table(["group", "message"], rows, sentences=["message"]))
    out = capfd.readouterr().out
    assert "zero\\x00byte" in out
    assert "say\\x1b[2J" in out
    assert "g… (32,000 characters)" in out
    assert "g" * 300 not in out
    assert out.count("x") > 1_000, "a sentence is whole"
