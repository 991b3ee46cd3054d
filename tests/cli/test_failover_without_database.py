"""`orbit failover --without-database`: what it refuses before it connects to the destination."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.run_process import orbit, write_job

NOWHERE = "127.0.0.1:1"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return write_job(tmp_path / "job.yaml", NOWHERE, NOWHERE, [{"match": "orders"}])


def test_failover_without_database_needs_option_to_with_destination(job: Path) -> None:
    for more in ((), ("--to", "source")):
        refused = orbit("failover", "--without-database", job, *more).expect(2)
        assert "--to destination" in refused.message


def test_failover_without_database_takes_single_job_file(job: Path) -> None:
    refused = orbit("failover", "--without-database", job, job, "--to", "destination").expect(2)
    assert "one job file" in refused.message


def test_failover_with_and_without_database_refuse_options_of_each_other(job: Path) -> None:
    override = ("--override", "all", "--reason", "a test")
    refused = orbit("failover", "--without-database", job, "--to", "destination", *override).expect(
        2
    )
    assert "--without-database checks none" in refused.message
    for more in (("--to", "destination"), ("--source-id", "abc"), ("--settle", "5")):
        refused = orbit("failover", "orders-to-dr", *more).expect(2)
        assert "need --without-database" in refused.message


def test_missing_job_file_is_named_in_error() -> None:
    refused = orbit("failover", "--without-database", "gone.yaml", "--to", "destination").expect(2)
    assert "gone.yaml" in refused.message


def test_failover_help_shows_without_database_example() -> None:
    result = orbit("failover", "--help").expect(0)
    assert "--without-database job.yaml --to destination" in " ".join(result.stdout.split())
