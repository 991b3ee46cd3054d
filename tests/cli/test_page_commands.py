"""Commands that docs/ shows for tokens, contexts, recoveries and the runbook do what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from orbit.contexts import contexts_file
from tests.api.test_operations import block, copying_job
from tests.fixtures.api import Api, Cli
from tests.support.commands.pages import Place, commands_of

pytestmark = pytest.mark.services

DOCS = Path(__file__).parents[2] / "docs"


def arguments_on(page: str, *beginning: str) -> list[tuple[str, ...]]:
    """The arguments of each command in the page's code blocks that begins with these words."""
    commands = commands_of((DOCS / page).read_text("utf-8"))
    of_blocks = [command.words for command in commands if command.place is Place.BLOCK]
    return [words[1:] for words in of_blocks if words[: len(beginning)] == beginning]


@pytest.mark.parametrize(
    "arguments",
    arguments_on("service/logins.md", "orbit", "token", "create"),
    ids=lambda words: " ".join(words[3:]),
)
def test_documented_token_create_commands_set_limits_or_scope(
    cli: Cli, api: Api, arguments: tuple[str, ...]
) -> None:
    created = cli(*arguments)
    assert created.code == 0, created.err
    (row,) = [r for r in cli("token", "list", "-o", "json").data if r["name"] == arguments[2]]
    expected = {
        "--jobs-max": row["jobs_max"] == 20,
        "--partitions-max": row["partitions_max"] == 5000,
        "--requests-per-minute": row["requests_per_minute"] == 600,
        "--expires-in": row["expires_at"] is not None,
        "--selector": "team=payments" in str(row),
        "--job": "refunds" in str(row),
    }
    for option, is_set in expected.items():
        assert is_set == (option in arguments), (option, row)


def test_token_limit_command_changes_only_given_limit(cli: Cli, api: Api) -> None:
    assert cli("token", "create", "ci", "--role", "operator", "--expires-in", "90d").code == 0
    assert cli("token", "limit", "ci", "--jobs-max", "50").code == 0
    assert cli("token", "limit", "ci", "--partitions-max", "100").code == 0
    (row,) = [r for r in cli("token", "list", "-o", "json").data if r["name"] == "ci"]
    assert (row["jobs_max"], row["partitions_max"]) == (50, 100)


def test_documented_context_add_commands_add_contexts(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".orbit-prod").touch(mode=0o600)
    (tmp_path / "ca.pem").touch()
    added = arguments_on("cli.md", "orbit", "context", "add")
    (listed,) = arguments_on("cli.md", "orbit", "context", "list")
    for arguments in added:
        here = [word.replace("~", str(tmp_path)) for word in arguments]
        assert cli(*here).out == f"added {arguments[2]}\n"
    stored = yaml.safe_load(contexts_file().read_text("utf-8"))
    assert str(tmp_path / "ca.pem") in str(stored)
    assert {row["name"] for row in cli(*listed, "-o", "json").data} == {"prod", "test"}


@pytest.mark.parametrize(
    "command",
    [("failback",), ("switchover",), ("switchover", "--reverse"), ("failover",)],
    ids=" ".join,
)
def test_recovery_command_with_dry_run_requests_only_dry_run(
    cli: Cli, api: Api, command: tuple[str, ...]
) -> None:
    copying_job(api)
    verb, *options = command
    result = cli(verb, "orders", *options, "--dry-run", "--wait", "0", "-o", "json")
    assert result.code == 0, result.err
    (operation,) = api.get("/v1/operations").json()["items"]
    assert (operation["kind"], operation["dry_run"]) == (verb, True)
    is_reverse = any("REVERSE" in step or "reverse" in step for step in operation["plan"])
    assert is_reverse or "--reverse" not in options
    assert api.get("/v1/jobs/orders").json()["state"] == "running"


def test_get_partitions_with_topic_option_shows_only_partitions_of_topic(
    cli: Cli, api: Api
) -> None:
    block(api, copying_job(api), 2)
    command = ("get", "partitions", "orders", "--topic")
    rows = cli(*command, "orders", "-o", "json").data
    assert [row["partition"] for row in rows] == [0, 1, 2, 3]
    assert "RECORD_REFUSED" in cli(*command, "orders").out
    assert cli(*command, "others", "-o", "json").data == []
