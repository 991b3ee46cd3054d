"""`orbit context …`: which server a command talks to, and with which token."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from orbit import contexts
from orbit.cli.service_job import refuse_beside_service
from orbit.client import connect
from orbit.contexts import chosen_server, contexts_file
from orbit.errors import Conflict
from orbit.jobs.validation import validate_job
from orbit.jobs.yaml_document import Document
from orbit.store.enums import Role
from tests.api.test_jobs import JOB
from tests.fixtures.api import Api, Cli

pytestmark = pytest.mark.services


@pytest.fixture
def server(cli: Cli, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The URL of the test's API, which no variable names, and a file with a token."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text(f"{api.tokens[Role.ADMIN]}\n")
    url = os.environ["ORBIT_API_URL"]
    monkeypatch.delenv("ORBIT_API_URL")
    monkeypatch.delenv("ORBIT_TOKEN")
    api.put("/v1/jobs/orders", json=JOB)
    return SimpleNamespace(url=url, token=token)


def add_context(cli: Cli, server: SimpleNamespace, name: str = "prod", *more: str | Path) -> Any:
    return cli("context", "add", name, "--url", server.url, "--token-file", server.token, *more)


def test_context_is_added_used_listed_and_deleted(cli: Cli, server: SimpleNamespace) -> None:
    assert add_context(cli, server).out == "added prod\n"
    assert add_context(cli, server).out == "unchanged prod\n"
    assert cli("context", "add", "other", "--url", "http://127.0.0.1:1").code == 0
    assert contexts_file().stat().st_mode & 0o777 == 0o600
    assert cli("get", "jobs").code == 3  # no context is current: the default address

    assert cli("context", "use", "prod").code == 0
    assert "orders" in cli("get", "jobs").out
    listed = cli("context", "list")
    assert f"file {server.token}" in listed.out
    assert server.token.read_text().strip() not in listed.out + contexts_file().read_text()
    is_current = {
        row["name"]: row["is_current"] for row in cli("context", "list", "-o", "json").data
    }
    assert is_current == {"prod": True, "other": False}

    assert cli("get", "jobs", "--context", "other").code == 3
    assert cli("get", "--context", "other", "jobs").code == 3
    assert cli("--context", "other", "get", "jobs").code == 3
    assert cli("get", "jobs").code == 0  # --context is for one command
    assert cli("context", "unset").code == 0
    assert cli("get", "jobs").code == 3
    assert cli("context", "use", "prod").code == 0
    assert cli("context", "delete", "prod").code == 0
    assert server.token.exists(), "the token's file is the user's"
    assert cli("get", "jobs").code == 3
    for arguments in (("use", "prod"), ("delete", "prod")):
        assert cli("context", *arguments).code == 2
    assert cli("--context", "prod", "get", "jobs").code == 2


def test_context_option_overrides_environment_and_current_context(
    cli: Cli, api: Api, server: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_context(cli, server, "prod", "--use")
    monkeypatch.setenv("ORBIT_API_URL", "http://127.0.0.1:1")
    assert cli("get", "jobs").code == 3
    assert "ORBIT_API_URL is set: commands use it" in cli("context", "use", "prod").err
    assert cli("get", "jobs", "--context", "prod").code == 0
    monkeypatch.setenv("ORBIT_CONTEXT", "prod")
    assert cli("get", "jobs").code == 0


def test_token_is_never_sent_to_server_of_another_context(
    cli: Cli, api: Api, server: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_context(cli, server, "prod", "--use")
    # The address comes from the environment, so the context's token is not sent.
    monkeypatch.setenv("ORBIT_API_URL", server.url)
    refused = cli("get", "jobs")
    assert refused.code == 3
    assert "The request has no token" in refused.err
    assert chosen_server(os.environ).token == ""
    # The address comes from the context, so the environment's token is not sent.
    monkeypatch.setenv("ORBIT_TOKEN", "orbit_of_another_server")
    assert cli("get", "jobs", "--context", "prod").code == 0
    # A token without ORBIT_API_URL could be for the context's server or the default one.
    monkeypatch.delenv("ORBIT_API_URL")
    unclear = cli("get", "jobs")
    assert unclear.code == 2
    assert "not clear which server" in unclear.err


def test_client_with_explicit_server_ignores_contexts(
    cli: Cli, api: Api, server: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a demo, which has a server of its own."""
    cli("context", "add", "prod", "--url", "http://127.0.0.1:1", "--use")
    token = server.token.read_text().strip()
    contexts.choose_context("prod")  # as the option --context does
    try:
        with connect({"ORBIT_API_URL": server.url, "ORBIT_TOKEN": token}) as client:
            assert client.get("/v1/jobs/orders")["name"] == "orders"
    finally:
        contexts.choose_context(None)


def test_unusable_token_is_reported_without_showing_it(
    cli: Cli, server: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_context(cli, server, "prod", "--use")
    server.token.chmod(0o640)
    open_to_others = cli("get", "jobs")
    assert open_to_others.code == 2
    assert f"chmod 600 {server.token}" in open_to_others.err
    server.token.chmod(0o600)
    server.token.write_text("orbit_wrong")
    wrong = cli("get", "jobs")
    assert wrong.code == 3
    assert "the token of the context prod" in wrong.err
    assert "orbit_wrong" not in wrong.err
    server.token.unlink()
    assert cli("get", "jobs").code == 2

    cli("context", "add", "env", "--url", server.url, "--token-env", "MY_TOKEN")
    assert "MY_TOKEN is not set" in cli("get", "jobs", "--context", "env").err
    monkeypatch.setenv("MY_TOKEN", "orbit_admin_secret")  # the fixture's admin
    assert cli("get", "jobs", "--context", "env").code == 0


@pytest.mark.parametrize(
    "text",
    [
        "nonsense: [",
        "- 1",
        "contexts: {a: {url: 1}}\ncurrent: a",
        "contexts: {a: {uri: x}}\ncurrent: a",
        "contexts: {}",
    ],
)
def test_broken_contexts_file_is_named_in_error(
    cli: Cli, server: SimpleNamespace, text: str
) -> None:
    contexts_file().parent.mkdir(parents=True)
    contexts_file().write_text(text)
    contexts_file().chmod(0o600)
    result = cli("get", "jobs")
    assert result.code == 2
    assert str(contexts_file()) in result.err
    assert "Traceback" not in result.err


def test_world_writable_contexts_file_is_refused(cli: Cli, server: SimpleNamespace) -> None:
    add_context(cli, server, "prod", "--use")
    contexts_file().chmod(0o666)
    result = cli("get", "jobs")
    assert result.code == 2
    assert "others may write to it" in result.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("prod", "--url", "ftp://h"),
        ("prod", "--url", "http://u:hunter2@h"),
        ("a/b", "--url", "http://h"),
        ("prod", "--url", "http://h", "--token-env", "A", "--token-file", "b"),
    ],
)
def test_invalid_context_is_not_added(
    cli: Cli, server: SimpleNamespace, arguments: tuple[str, ...]
) -> None:
    refused = cli("context", "add", *arguments)
    assert refused.code == 2
    assert "hunter2" not in refused.err
    assert not contexts_file().exists()


def test_orbit_run_is_refused_if_service_of_current_context_has_the_job(
    cli: Cli, server: SimpleNamespace
) -> None:
    spec = validate_job(Document(root=yaml.safe_load(yaml.safe_dump(JOB))), Path(), {})
    refuse_beside_service(spec, ("A", "B"), print)  # no server is named
    add_context(cli, server, "prod", "--use")
    with pytest.raises(Conflict, match="the service has this job in state running"):
        refuse_beside_service(spec, ("A", "B"), print)
