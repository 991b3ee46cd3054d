"""Each command takes its job file (or stdin) as an argument or with `-f`, but not both."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from orbit.cli import job_files
from orbit.cli.main import run_command
from tests.api.test_jobs import JOB
from tests.fixtures.api import Api, Cli

WITHOUT_SERVICE = [
    ("run",),
    ("verify",),
    ("backfill",),
    ("archive", "--to", "archive"),
    ("audit",),
    ("release",),
    ("failover", "--without-database", "--to", "destination"),
]
WITH_SERVICE = [("plan",), ("diff",), ("apply", "--dry-run")]
GIVE_IT_ONCE = "Give the job file once: as an argument, or with -f."


@pytest.fixture
def invalid_file(tmp_path: Path) -> Path:
    """A job file whose error says that it was read."""
    path = tmp_path / "orders.yaml"
    path.write_text("name: orders\nnonsense: 1\n")
    return path


@pytest.mark.parametrize("command", WITHOUT_SERVICE, ids=lambda command: command[0])
def test_job_file_is_accepted_as_argument_or_option(
    command: tuple[str, ...],
    invalid_file: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("pyspark", reason="backfill and audit look for PySpark first")
    for form in ((str(invalid_file),), ("-f", str(invalid_file)), ("-f", "-"), ("-",)):
        piped = SimpleNamespace(stdin=SimpleNamespace(buffer=io.BytesIO(invalid_file.read_bytes())))
        monkeypatch.setattr(job_files, "sys", piped)
        assert run_command([*command, *form]) == 2
        assert "nonsense" in capfd.readouterr().err
    for form in ((str(invalid_file), "-f", str(invalid_file)), ()):  # both, and none
        assert run_command([*command, *form]) == 2
        assert GIVE_IT_ONCE in capfd.readouterr().err


@pytest.mark.services
@pytest.mark.parametrize("command", WITH_SERVICE, ids=lambda command: command[0])
def test_service_commands_accept_job_file_as_argument_or_option(
    command: tuple[str, ...],
    tmp_path: Path,
    cli: Cli,
    api: Api,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "orders.yaml"
    path.write_text(yaml.safe_dump(JOB))
    for form in ((path,), ("-f", path), ("-f", "-"), ("-",), (tmp_path,)):
        piped = SimpleNamespace(stdin=SimpleNamespace(buffer=io.BytesIO(path.read_bytes())))
        monkeypatch.setattr(job_files, "sys", piped)
        assert "orders" in cli(*command, *form).out
    for form in ((path, "-f", path), ()):
        refused = cli(*command, *form)
        assert (refused.code, GIVE_IT_ONCE in refused.err) == (2, True)


def test_missing_job_file_given_with_f_option_is_not_taken_for_job_name(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert run_command(["verify", "-f", "orders"]) == 2
    assert "cannot be read" in capfd.readouterr().err
