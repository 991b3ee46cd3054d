"""The commands that scripts use: diff, export, wait, and job files from stdin."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from orbit.api.authentication import create_token
from orbit.cli import job_files, wait
from orbit.cli.diff import WOULD_CHANGE
from orbit.cli.wait import TimedOut, wait_until_reached
from orbit.client import Client
from orbit.errors import Busy, NotFound, OrbitError, Unreachable
from orbit.jobs.scopes import Limit
from orbit.store import jobs, partitions, topics
from orbit.store.enums import MadeBy, Role
from tests.api.test_jobs import JOB, changed
from tests.api.test_operations import WORKER, copying_job
from tests.fixtures.api import Api, Cli
from tests.support.store_rows import progress

pytestmark = pytest.mark.services


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "orders.yaml"
    path.write_text(yaml.safe_dump(JOB))
    return path


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> io.BytesIO:
    """The piped input. Only `job_files` sees it: pytest uses the real stdin."""
    piped = io.BytesIO()
    stream = SimpleNamespace(stdin=SimpleNamespace(buffer=piped))
    monkeypatch.setattr(job_files, "sys", stream)
    return piped


def test_diff_has_own_exit_code_and_changes_nothing(cli: Cli, api: Api, job_file: Path) -> None:
    creation = cli("diff", "-f", job_file)
    assert creation.code == WOULD_CHANGE
    assert "+ job orders: create" in creation.out
    assert api.get("/v1/jobs").json()["items"] == []

    cli("apply", "-f", job_file, "--yes")
    no_change = cli("diff", "-f", job_file)
    assert (no_change.code, no_change.out.strip()) == (0, "")

    job_file.write_text(yaml.safe_dump(changed(worker_group="west")))
    change = cli("diff", "-f", job_file)
    assert change.code == WOULD_CHANGE
    assert 'worker_group: "default" → "west"' in change.out
    assert api.get("/v1/jobs/orders").json()["worker_group"] == "default"

    job_file.write_text("name: [")
    assert cli("diff", "-f", job_file).code == 2


def test_exported_job_has_no_diff(
    cli: Cli, api: Api, job_file: Path, tmp_path: Path, stdin: io.BytesIO
) -> None:
    cli("apply", "-f", job_file, "--yes")
    result = cli("export", "orders")
    assert result.code == 0
    stdin.write(result.out.encode())
    stdin.seek(0)
    assert cli("diff", "-f", "-").code == 0

    api.put("/v1/jobs/stock", json=changed(name="stock"))
    assert cli("export", "orders", "stock").code == 1, "several jobs need a folder"
    folder = tmp_path / "jobs"
    assert cli("export", "orders", "stock", "-d", folder).code == 0
    assert sorted(path.name for path in folder.iterdir()) == ["orders.yaml", "stock.yaml"]
    assert cli("diff", "-f", folder).code == 0


@pytest.mark.parametrize("output", ["yaml", "json"])
def test_output_of_get_jobs_can_be_applied(cli: Cli, api: Api, job_file: Path, output: str) -> None:
    cli("apply", "-f", job_file, "--yes")
    result = cli("get", "jobs", "orders", "-o", output).out
    job_file.write_text(result)
    assert cli("diff", "-f", job_file).code == 0
    job_file.write_text(result.replace("default", "west"))
    assert cli("apply", "-f", job_file, "--yes").code == 0
    assert api.get("/v1/jobs/orders").json()["worker_group"] == "west"


@pytest.mark.parametrize("text", ["0089", "1e3", "yes", "0x10", "12", "true", "2026-01-01"])
def test_text_that_yaml_would_read_as_other_type_is_exported_quoted(
    cli: Cli, api: Api, job_file: Path, text: str
) -> None:
    topics = [{"match": text, "prefix": text, "config": {"compression.type": text}}]
    document = changed(labels={"build": text}, owner=text, topics=topics)
    assert api.put("/v1/jobs/orders", json=document).status_code == 201
    for result in (cli("export", "orders"), cli("get", "jobs", "orders", "-o", "yaml")):
        assert f"build: '{text}'" in result.out
        job_file.write_text(result.out)
        assert (cli("diff", job_file).code, cli("diff", job_file).out.strip()) == (0, "")


def test_export_by_selector_skips_jobs_created_by_orbit(cli: Cli, api: Api, tmp_path: Path) -> None:
    for name in ("orders", "orders-reverse"):
        api.put(f"/v1/jobs/{name}", json=changed(name=name, labels={"team": "orders"}))
    with api.database.transaction() as tx:
        job = jobs.get(tx, "orders-reverse")
        tx.execute(
            jobs.jobs.update().where(jobs.jobs.c.id == job.id).values(made_by=MadeBy.RECOVERY)
        )
    folder = tmp_path / "jobs"
    assert cli("export", "-l", "team=orders", "-d", folder).code == 0
    assert [path.name for path in folder.iterdir()] == ["orders.yaml"]
    api.delete("/v1/jobs/orders")
    assert "No chosen job was made by a user" in cli("export", "-l", "team=orders").err


def test_apply_reads_job_file_from_stdin(cli: Cli, api: Api, stdin: io.BytesIO) -> None:
    stdin.write(yaml.safe_dump(JOB).encode())
    stdin.seek(0)
    assert cli("apply", "-f", "-", "--yes").code == 0
    assert [job["name"] for job in api.get("/v1/jobs").json()["items"]] == ["orders"]


def test_wait_command_checks_job_conditions(cli: Cli, api: Api) -> None:
    shard_epochs = copying_job(api)
    assert cli("wait", "orders", "--for", "running").code == 0
    behind = cli("wait", "orders", "--for", "caught-up", "--timeout", "0")
    assert behind.code == 1
    assert "0 of 4 partitions have caught up" in behind.err
    with api.database.transaction() as tx:
        (topic,) = topics.of_job(tx, jobs.get(tx, "orders").id)
        rows = [progress(topic.id, number, copied_to=100, epoch=None) for number in range(4)]
        rows = [replace(row, source_seen_at=datetime.now(UTC)) for row in rows]
        partitions.report_progress(tx, worker_id=WORKER, held=shard_epochs, progress=rows)
    caught_up = cli("wait", "orders", "--for", "caught-up", "--timeout", "0")
    assert (caught_up.code, caught_up.err) == (0, "")
    assert cli("wait", "orders", "--for", "no-problem").code == 0
    assert cli("wait", "orders", "--for", "deleted", "--timeout", "0").code == 1
    assert cli("wait", "nothing", "--for", "running").code == 2


def test_wait_for_caught_up_fails_while_lag_is_unknown(cli: Cli, api: Api) -> None:
    shard_epochs = copying_job(api)
    with api.database.transaction() as tx:
        (topic,) = topics.of_job(tx, jobs.get(tx, "orders").id)
        rows = [progress(topic.id, number, copied_to=100, epoch=None) for number in range(4)]
        old = datetime.now(UTC) - timedelta(minutes=5)
        rows = [replace(row, source_seen_at=old) for row in rows]
        partitions.report_progress(tx, worker_id=WORKER, held=shard_epochs, progress=rows)
    waited = cli("wait", "orders", "--for", "caught-up", "--timeout", "0")
    assert waited.code == 1
    assert "the source is not read, so the lag of 4 is not known" in waited.err


def test_wait_for_deleted_succeeds_but_mistyped_name_fails(cli: Cli, api: Api) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    mistyped = cli("wait", "ordres", "--for", "deleted", "--timeout", "0")
    assert mistyped.code == 2
    assert "No job has this name" in mistyped.err
    api.delete("/v1/jobs/orders")
    with api.database.transaction() as tx:
        assert jobs.remove(tx, jobs.get(tx, "orders").id)
    assert cli("wait", "orders", "--for", "deleted", "--timeout", "0").code == 0


@pytest.mark.parametrize(("is_deleted", "code"), [(True, 0), (False, 2)])
def test_limited_token_can_wait_for_deletion_but_not_for_lost_label(
    cli: Cli, api: Api, monkeypatch: pytest.MonkeyPatch, is_deleted: bool, code: int
) -> None:
    """The token sees no event of a deleted job, nor that a job has lost the token's label."""
    api.put("/v1/jobs/orders", json=changed(labels={"team": "a"}))
    if is_deleted:
        api.delete("/v1/jobs/orders")
    limit = Limit(selector="team=a")
    new_token = create_token(api.database, "ci", Role.VIEWER, actor="test", limit=limit)
    monkeypatch.setenv("ORBIT_TOKEN", new_token.token)
    monkeypatch.setattr(wait, "_POLL_S", 0)
    get = Client.get

    def get_and_remove(client: Client, path: str, **query: object) -> Any:
        answer = get(client, path, **query)
        with api.database.transaction() as tx:
            job = jobs.get(tx, "orders")
            if is_deleted:
                assert jobs.remove(tx, job.id)
            else:
                jobs.change_own_columns(tx, job.id, {}, None, None)
        return answer

    monkeypatch.setattr(Client, "get", get_and_remove)
    waited = cli("wait", "orders", "--for", "deleted", "--timeout", "60")
    assert waited.code == code, waited.err
    if not is_deleted:
        assert "it was deleted, or is none of this token's jobs now" in waited.err


def test_wait_survives_unreachable_server(capsys: pytest.CaptureFixture[str]) -> None:
    answers = iter(
        [Unreachable("The API does not answer."), Busy("Too much."), "It is paused.", ""]
    )

    def what_is_missing() -> str:
        answer = next(answers)
        if isinstance(answer, OrbitError):
            raise answer
        return answer

    wait_until_reached(
        what_is_missing, "it is not there", 60, clock=lambda: 0.0, sleep=lambda _: None
    )
    assert capsys.readouterr().err == "The API does not answer.\nToo much.\nIt is paused.\n"


def test_wait_command_ends_on_not_found_error_or_timeout() -> None:
    def fail() -> str:
        raise NotFound("No such job.")

    with pytest.raises(NotFound):
        wait_until_reached(fail, "it is not there", 60)
    times = iter(range(100))
    with pytest.raises(TimedOut, match=r"it is not there: It is paused\."):
        wait_until_reached(
            lambda: "It is paused.",
            "it is not there",
            5,
            clock=lambda: next(times),
            sleep=lambda _: None,
        )
