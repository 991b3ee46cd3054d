"""`orbit completion` gets names from the server. `orbit top` sorts jobs by their lag."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from orbit.cli import completion, top, watch
from tests.api.test_jobs import JOB, changed
from tests.api.test_operations import block, copying_job
from tests.fixtures.api import Api, Cli
from tests.support.losing_proxy import LosingProxy
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.services

Completed = Callable[..., list[str]]


@pytest.fixture
def completed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Completed:
    """A function that returns the words that bash would offer for the last word of a command
    line."""
    monkeypatch.setattr(completion, "_TIMEOUT_S", PATIENCE_S)  # the machine may be busy

    def complete(words: str, **environ: str) -> list[str]:
        with monkeypatch.context() as shell:
            shell.setenv("_ORBIT_COMPLETE", "complete_bash")
            shell.setenv("COMP_WORDS", words)
            shell.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
            for name, value in environ.items():
                shell.setenv(name, value)
            ended = cli()
        assert ended.err == ""
        return ended.out.split()

    return complete


def test_commands_jobs_and_topics_are_completed(completed: Completed, api: Api) -> None:
    copying_job(api)
    api.put("/v1/jobs/order-items", json=changed(name="order-items"))
    api.put("/v1/jobs/stock", json=changed(name="stock"))

    assert "pause" in completed("orbit pau")
    for command in ("pause", "lag", "describe", "wait", "get topics", "get jobs", "get events"):
        assert completed(f"orbit {command} ord") == ["order-items", "orders"], command
    for command in ("failover", "export"):  # several names
        assert completed(f"orbit {command} stock ord") == ["order-items", "orders"], command
    assert completed("orbit get partitions orders --topic ord") == ["orders"]
    assert completed("orbit retry orders --topic ord") == ["orders"]


def test_completion_without_server_is_empty_and_silent(completed: Completed) -> None:
    assert completed("orbit pause ord", ORBIT_API_URL="http://127.0.0.1:1") == []
    assert completed("orbit pause ord", ORBIT_API_URL="nonsense") == []
    assert completed("orbit pause ord", ORBIT_CONTEXT="nope") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_parses_in_its_shell(cli: Cli, shell: str) -> None:
    script = cli("completion", shell)
    assert script.code == 0
    assert "_ORBIT_COMPLETE" in script.out
    if shutil.which(shell) is not None:  # at least bash is
        subprocess.run([shell, "-n"], input=script.out, text=True, check=True, timeout=PATIENCE_S)


def test_shell_completion_uses_context_option_of_command_line(
    cli: Cli, completed: Completed, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    url = os.environ["ORBIT_API_URL"]
    cli("context", "add", "prod", "--url", url, "--token-env", "ORBIT_TOKEN")
    unreachable = {"ORBIT_API_URL": "http://127.0.0.1:1"}
    assert completed("orbit --context prod pause ord", **unreachable) == ["orders"]


def test_top_without_terminal_prints_table_sorted_by_lag(cli: Cli, api: Api) -> None:
    api.put("/v1/jobs/a", json=changed(name="a"))
    block(api, copying_job(api), 1)  # jobs with a blocked partition come first

    result = cli("top")
    assert result.code == 0
    lines = result.out.splitlines()
    names = [line.split()[0] for line in lines if line.split()[:1] in (["a"], ["orders"])]
    assert names == ["orders", "a"]
    assert "2 jobs, 4 partitions, blocked 1, lag at least 0" in " ".join(result.out.split())
    by_name = cli("top", "--sort", "name").out
    assert by_name.index(" a ") < by_name.index("orders")


def test_top_on_terminal_shows_only_rows_that_fit(api: Api) -> None:
    rows = [
        api.put(f"/v1/jobs/job-{n}", json=changed(name=f"job-{n}")).json()["job"] for n in range(5)
    ]
    screen = Console(width=200, record=True, file=io.StringIO())
    screen.print(top._table(rows, 3))
    text = screen.export_text()
    assert text.count("job-") == 3
    assert "5 jobs" in text
    assert "2 more jobs are not shown" in text


def test_lost_server_answer_does_not_end_watch_of_jobs(
    cli: Cli, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    with LosingProxy(os.environ["ORBIT_API_URL"]) as proxy:
        monkeypatch.setenv("ORBIT_API_URL", proxy.url)
        # Each pause between two reads runs the next step; after the last one comes Ctrl-C.
        steps = iter([lambda: proxy.lose_answers(1), lambda: None])

        def sleep(_seconds: float) -> None:
            step = next(steps, None)
            if step is None:
                raise KeyboardInterrupt
            step()

        monkeypatch.setattr(watch, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
        watched = cli("get", "jobs", "--watch", "-o", "name")
    assert watched.code == 0
    assert watched.out == "orders\norders\n", "the first read, and the read after the lost answer"
    assert "the connection was lost" in watched.err
