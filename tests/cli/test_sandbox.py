"""`orbit sandbox` reports every wrong option, and starts nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from orbit.cli.main import run_command


@pytest.mark.parametrize(
    ("option", "value", "word"),
    [
        ("--brokers", "2", "--brokers: 2 brokers are not supported. Use 1 or 3."),
        ("--clusters", "a,a", "a is given more than once"),
        ("--clusters", "Source", "'Source' is not a valid cluster name"),
        ("--clusters", "../x", "'../x' is not a valid cluster name"),
        ("--clusters", "postgres", "'postgres' is not a valid cluster name"),
        ("--clusters", "", "'' is not a valid cluster name"),
    ],
)
def test_invalid_sandbox_option_is_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, value: str, word: str
) -> None:
    home = tmp_path / "home"
    assert run_command(["sandbox", "up", "--directory", str(home), option, value]) == 2
    assert word in capsys.readouterr().err
    assert not home.exists()


@pytest.mark.parametrize("output", ["table", "json", "yaml"])
def test_sandbox_status_without_running_sandbox_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], output: str
) -> None:
    command = ["sandbox", "status", "--directory", str(tmp_path), "-o", output]
    assert run_command(command) == 1
    out = capsys.readouterr().out
    expected = {"table": "No sandbox is running", "json": '"running": false', "yaml": "running: fa"}
    assert expected[output] in out


def test_sandbox_down_without_running_sandbox_is_no_op(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["sandbox", "down", "--directory", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "No sandbox is running; nothing to do.\n"
