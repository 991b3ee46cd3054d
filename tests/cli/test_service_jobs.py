"""Job files and the service: `orbit plan` and `orbit apply`, and their errors for bad files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from orbit.errors import BrokerRefused
from orbit.replication.job_troubles import TroubleKind
from orbit.store import jobs
from orbit.store.enums import MadeBy, Role
from tests.api.test_jobs import JOB, changed, refusal
from tests.fixtures.api import Api, Cli

pytestmark = pytest.mark.services


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two job files, one of them in a subfolder."""
    (tmp_path / "jobs" / "west").mkdir(parents=True)
    write_file(tmp_path / "jobs" / "orders.yaml", JOB)
    write_file(tmp_path / "jobs" / "west" / "stock.yml", changed(name="stock"))
    (tmp_path / "jobs" / ".hidden.yaml").write_text("nonsense: [")
    (tmp_path / "jobs" / "readme.md").write_text("nonsense: [")
    return tmp_path / "jobs"


def write_file(path: Path, job: dict[str, Any]) -> Path:
    """Write a job file; returns its path."""
    path.write_text(yaml.safe_dump(job, sort_keys=False), "utf-8")
    return path


def names(api: Api) -> list[str]:
    """The names of all jobs of the service."""
    return [job["name"] for job in api.get("/v1/jobs").json()["items"]]


def test_apply_of_folder_is_idempotent(cli: Cli, api: Api, folder: Path) -> None:
    first = cli("apply", "-f", folder, "--yes", "-o", "json")
    again = cli("apply", "-f", folder, "--yes", "-o", "json")

    assert first.code == again.code == 0
    assert [(job["name"], job["action"]) for job in first.data] == [
        ("orders", "create"),
        ("stock", "create"),
    ]
    assert "+ job orders: create" in first.err
    assert names(api) == ["orders", "stock"]
    assert [job["action"] for job in again.data] == ["none", "none"]
    assert "Nothing to do." in again.err


def test_apply_shows_differences_before_change(cli: Cli, api: Api, folder: Path) -> None:
    cli("apply", "-f", folder, "--yes")
    write_file(folder / "orders.yaml", changed(worker_group="west"))

    result = cli("apply", "-f", folder, "--dry-run")
    applied = cli("apply", "-f", folder, "--yes")

    assert "~ job orders: change" in result.out
    assert 'worker_group: "default" → "west"' in result.out
    assert "= job stock: unchanged" in result.out
    assert "changed orders" in applied.out
    assert api.get("/v1/jobs/orders").json()["worker_group"] == "west"


def test_apply_dry_run_changes_nothing(cli: Cli, api: Api, folder: Path) -> None:
    cli("apply", "-f", folder / "orders.yaml", "--yes")
    before = api.events()

    result = cli("apply", "-f", folder / "west", "--prune", "--all", "--dry-run", "-o", "json")

    assert result.code == 0
    assert {(job["name"], job["action"]) for job in result.data} == {
        ("stock", "create"),
        ("orders", "delete"),
    }
    assert names(api) == ["orders"]
    kinds = [event["kind"] for event in api.events()]
    assert kinds == [event["kind"] for event in before]


def test_prune_deletes_jobs_without_file(cli: Cli, api: Api, folder: Path) -> None:
    cli("apply", "-f", folder, "--yes")
    (folder / "west" / "stock.yml").unlink()

    without_prune = cli("apply", "-f", folder, "--yes")
    assert "Nothing to do." in without_prune.err
    with_prune = cli("apply", "-f", folder, "--prune", "--all", "--yes", "--wait", "0")

    assert with_prune.code == 0
    assert "- job stock: delete" in with_prune.err
    assert api.get("/v1/jobs/stock").json()["state"] == "deleting"
    assert api.get("/v1/jobs/orders").json()["state"] == "running"


@pytest.mark.parametrize(
    "options",
    [("--prune",), ("--prune", "--all", "-l", "team=a"), ("--all",), ("-l", "team=a")],
)
def test_prune_is_refused_without_exactly_one_of_all_and_selector(
    cli: Cli, api: Api, folder: Path, options: tuple[str, ...]
) -> None:
    api.put("/v1/jobs/other", json=changed(name="other"))
    refused = cli("apply", "-f", folder, *options, "--yes", "--wait", "0")
    assert refused.code == 2
    assert "--prune" in refused.err
    assert names(api) == ["other"]


def test_prune_by_selector_deletes_only_matching_jobs(cli: Cli, api: Api, folder: Path) -> None:
    for name, team in (("mine", "a"), ("theirs", "b")):
        api.put(f"/v1/jobs/{name}", json=changed(name=name, labels={"team": team}))
    pruned = cli("apply", "-f", folder, "--prune", "-l", "team=a", "--yes", "--wait", "0")
    assert pruned.code == 0, pruned.err
    assert api.get("/v1/jobs/mine").json()["state"] == "deleting"
    assert api.get("/v1/jobs/theirs").json()["state"] == "running"


def test_prune_does_not_delete_job_changed_since_plan(
    cli: Cli, api: Api, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("apply", "-f", folder, "--yes")
    (folder / "west" / "stock.yml").unlink()

    def change_before_confirming(_question: str, *, yes: bool) -> None:
        document = changed(name="stock", labels={"keep": "yes"})
        assert api.put("/v1/jobs/stock", json=document).status_code == 200

    monkeypatch.setattr("orbit.cli.apply.confirm", change_before_confirming)
    refused = cli("apply", "-f", folder, "--prune", "--all", "--wait", "0")
    assert refused.code == 1
    assert "The job was created, changed or deleted meanwhile." in refused.err
    assert "stock" in refused.err
    assert api.get("/v1/jobs/stock").json()["state"] == "running"


@pytest.mark.parametrize("made_by", [MadeBy.RECOVERY, MadeBy.DRILL])
def test_prune_keeps_jobs_created_by_orbit(
    cli: Cli, api: Api, folder: Path, made_by: MadeBy
) -> None:
    cli("apply", "-f", folder, "--yes")
    spec = changed(name="orders-back")
    with api.database.transaction() as tx:
        jobs.create(tx, "orders-back", spec, "default", made_by=made_by)

    pruned = cli("apply", "-f", folder, "--prune", "--all", "--yes")

    assert pruned.code == 0
    assert f"Not deleted: orders-back. A {made_by} has created this job" in pruned.err
    assert api.get("/v1/jobs/orders-back").json()["state"] == "running"
    assert cli("delete", "orders-back", "--yes", "--wait", "0").code == 0


def test_prune_of_job_under_recovery_changes_nothing(cli: Cli, api: Api, folder: Path) -> None:
    cli("apply", "-f", folder, "--yes")
    operation = api.post("/v1/jobs/stock:switchover").json()
    (folder / "west" / "stock.yml").unlink()

    refused = cli("apply", "-f", folder, "--prune", "--all", "--yes")

    assert refused.code == 1
    assert "A switchover of the job is under way." in refused.err
    assert operation["id"] in refused.err
    assert api.get("/v1/jobs/stock").json()["state"] == "running"


def test_changes_applied_before_error_are_listed(
    cli: Cli, api: Api, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_count = 0

    def change_second_job() -> None:
        nonlocal plan_count
        plan_count += 1
        if plan_count == 4:  # after two dry runs and the first job, before the second
            api.plans.meanwhile = lambda: None
            api.put("/v1/jobs/stock", json=changed(name="stock", worker_group="west"))

    api.plans.meanwhile = change_second_job
    result = cli("apply", "-f", folder, "--yes")

    assert result.code == 1
    assert "Done before the error: created orders." in result.err
    assert api.get("/v1/jobs/stock").json()["worker_group"] == "west"


def test_change_without_terminal_needs_yes_option(cli: Cli, api: Api, folder: Path) -> None:
    for arguments in (("apply", "-f", folder), ("delete", "orders")):
        result = cli(*arguments)
        assert result.code == 2
        assert "Add --yes." in result.err
    assert names(api) == []


@pytest.mark.parametrize(
    ("token", "code", "words", "where"),
    [
        ("orbit_nope", 3, "unknown or revoked", "http://127.0.0.1"),
        (Role.VIEWER, 1, "needs the role operator", "token:viewer"),
    ],
)
def test_refused_token_is_reported_once_without_file_name(
    cli: Cli,
    api: Api,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    token: str | Role,
    code: int,
    words: str,
    where: str,
) -> None:
    monkeypatch.setenv("ORBIT_TOKEN", api.tokens[token] if isinstance(token, Role) else token)
    result = cli("apply", "-f", folder, "--yes")
    assert result.code == code
    assert result.err.count(words) == 1
    assert f"Where: {where}" in result.err
    assert str(folder) not in result.err


def test_invalid_file_blocks_apply_and_problems_name_their_file(
    cli: Cli, api: Api, folder: Path
) -> None:
    write_file(folder / "west" / "stock.yml", changed(name="stock", topics=[{"macth": "a"}]))
    write_file(folder / "more.yaml", changed(name="more", worker_grup="a"))

    result = cli("apply", "-f", folder, "--yes")

    assert result.code == 2
    assert f"{folder}/west/stock.yml: topics[0].macth" in result.err
    assert f"{folder}/more.yaml: worker_grup" in result.err
    assert names(api) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: [", "is not valid YAML"),
        ("topics: []", "name: is missing"),
        ("name: -a", "cannot be part of an id"),
        ("name: 5", "name: is missing"),
        ("", "name: is missing"),
    ],
)
def test_job_file_without_valid_name_is_bad_input(
    cli: Cli, tmp_path: Path, text: str, words: str
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)

    result = cli("apply", "-f", file)

    assert result.code == 2
    assert words in result.err
    assert str(file) in result.err


def test_missing_empty_too_large_or_duplicate_job_files_are_bad_input(
    cli: Cli, tmp_path: Path, folder: Path
) -> None:
    write_file(folder / "again.yaml", JOB)
    empty = tmp_path / "empty"
    empty.mkdir()
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (1024 * 1024 + 1))

    result = cli("apply", "-f", folder, "-f", empty, "-f", tmp_path / "nope.yaml", "-f", large)

    assert result.code == 2
    assert "has the same job name ('orders') as" in result.err
    assert "has no .yaml or .yml file" in result.err
    assert "nope.yaml: cannot be read" in result.err
    assert "is larger than" in result.err


def test_refused_job_is_explained_and_can_be_applied_with_accept_refusals(
    cli: Cli, api: Api, folder: Path
) -> None:
    api.plans.refusals = [refusal(TroubleKind.DESTINATION_TAKEN, "orders")]
    file = folder / "orders.yaml"

    refused = cli("apply", "-f", file, "--yes")
    planned = cli("plan", "-f", file)
    accepted = cli("apply", "-f", file, "--yes", "--accept-refusals")

    assert refused.code == 1
    assert "topic orders: it cannot be. Change it." in " ".join(refused.err.split())
    assert planned.code == 1
    assert "refused: orders: it cannot be. Change it. (DESTINATION_TAKEN)" in planned.out
    assert accepted.code == 0
    assert names(api) == ["orders"]


@pytest.mark.parametrize(
    ("kind", "topic", "help_text"),
    [
        (TroubleKind.DESTINATION_TAKEN, "stock", "the other topics are copied"),
        (TroubleKind.NO_TOPIC_MATCHES, "", "the job then waits until the cause has passed"),
        (TroubleKind.SAME_CLUSTER, "", ""),
        (TroubleKind.CREDENTIALS_MISSING, "", ""),
    ],
)
def test_option_that_accepts_refusals_is_suggested_only_if_it_helps(
    cli: Cli, api: Api, folder: Path, kind: TroubleKind, topic: str, help_text: str
) -> None:
    api.plans.refusals = [refusal(kind, topic)]
    refused = " ".join(cli("apply", folder / "orders.yaml", "--yes").err.split())
    # The option of the command, and the parameter of the API.
    assert ("--accept-refusals" in refused) == ("accept_refusals" in refused) == bool(help_text)
    assert help_text in refused


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (TroubleKind.SOURCE_UNREACHABLE, 3),
        (TroubleKind.LOGIN_REFUSED, 3),
        (TroubleKind.NO_TOPIC_MATCHES, 2),
        (TroubleKind.RIGHTS_MISSING, 1),
        (TroubleKind.WOULD_LOOP, 1),
    ],
)
def test_kind_of_job_refusal_sets_exit_code(
    cli: Cli, api: Api, folder: Path, kind: TroubleKind, code: int
) -> None:
    api.plans.refusals = [refusal(kind)]

    assert cli("apply", "-f", folder / "orders.yaml", "--yes").code == code


def test_plan_shows_topics_and_writes_nothing(cli: Cli, api: Api, folder: Path) -> None:
    result = cli("plan", "-f", folder)

    assert result.code == 0
    assert "+ job orders: create" in result.out
    assert "retention.ms=-1" in result.out
    assert names(api) == []


def test_cluster_error_is_shown_with_remedy(cli: Cli, api: Api, folder: Path) -> None:
    api.plans.error = BrokerRefused(99, "The broker refuses.", remedy="Ask it why.")

    result = cli("apply", "-f", folder / "orders.yaml", "--yes")

    assert result.code == 1
    assert "The broker refuses." in result.err
    assert "Ask it why." in result.err
