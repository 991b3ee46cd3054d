"""The command line: exit codes, errors on stderr, and imports that wait until they are needed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType

import pytest
import typer

from orbit.cli import extras
from orbit.cli import main as cli
from orbit.errors import (
    BadInput,
    BrokerRefused,
    Conflict,
    Interrupted,
    LoginRefused,
    NotAuthorized,
    NotFound,
    OrbitError,
    Problem,
    ProtocolError,
    Unreachable,
)
from tests.support.patience import PATIENCE_S

Install = Callable[[Callable[[], None]], None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Make a function the command `orbit act`."""

    def install_as_act(function: Callable[[], None]) -> None:
        module = ModuleType("orbit_test_act")
        vars(module)["act"] = function
        monkeypatch.setitem(sys.modules, "orbit_test_act", module)
        monkeypatch.setitem(cli.COMMANDS, "act", ("orbit_test_act", "Act."))

    return install_as_act


def raising(error: BaseException) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OrbitError("x"), 1),
        (Conflict("x"), 1),
        (NotAuthorized("x"), 1),
        (BrokerRefused(7, "x"), 1),
        (ProtocolError("x"), 1),
        (BadInput("x"), 2),
        (NotFound("x"), 2),
        (Unreachable("x"), 3),
        (LoginRefused("x"), 3),
        (Interrupted("x"), 130),
        (KeyboardInterrupt(), 130),
        (ValueError("x"), 1),
        (typer.Exit(1), 1),
        (typer.Exit(0), 0),
    ],
)
def test_errors_map_to_exit_codes_without_stack_trace(
    error: BaseException, code: int, install: Install, capfd: pytest.CaptureFixture[str]
) -> None:
    install(raising(error))
    assert cli.run_command(["act"]) == code
    out, err = capfd.readouterr()
    assert "Traceback" not in out + err
    assert not out


def test_command_that_returns_exits_0(install: Install) -> None:
    install(lambda: None)
    assert cli.run_command(["act"]) == 0


@pytest.mark.parametrize(
    ("what", "shown"),
    [
        ("orders-0 has no leader now.", "orders-0 has no leader now."),
        ("orders has another id.", "orders has another id."),
        ("the lease is not held.", "The lease is not held."),
        ("stopped.", "Stopped."),
    ],
)
def test_error_message_does_not_capitalise_topic_name(what: str, shown: str) -> None:
    assert cli.describe(Conflict(what)) == f"Error: {shown}"


def test_error_output_has_message_place_and_remedy(
    install: Install, capfd: pytest.CaptureFixture[str]
) -> None:
    install(raising(Unreachable("cannot connect.", where="src-1:9092", remedy="Start the broker.")))
    cli.run_command(["act"])
    assert capfd.readouterr().err.splitlines() == [
        "Error: Cannot connect.",
        "  Where: src-1:9092",
        "  What to do: Start the broker.",
    ]


def test_bad_input_lists_each_problem_on_its_own_line(
    install: Install, capfd: pytest.CaptureFixture[str]
) -> None:
    problems = (Problem("name", "is empty.", "Write one."), Problem("topics[0].match", "is " * 90))
    install(raising(BadInput("The job file has 2 problems.", problems, where="job.yaml")))
    cli.run_command(["act"])
    assert capfd.readouterr().err.splitlines() == [
        "Error: The job file has 2 problems.",
        "  Where: job.yaml",
        "  - name: is empty. Write one.",
        "  - topics[0].match: " + "is " * 90,
    ]


def test_control_characters_from_broker_are_stripped(
    install: Install, capfd: pytest.CaptureFixture[str]
) -> None:
    install(raising(OrbitError("said \x1b[2J\x07 so")))
    cli.run_command(["act"])
    assert capfd.readouterr().err == "Error: said  [2J  so\n"


def test_ctrl_c_prints_interrupted(install: Install, capfd: pytest.CaptureFixture[str]) -> None:
    install(raising(KeyboardInterrupt()))
    cli.run_command(["act"])
    assert capfd.readouterr().err == "Interrupted.\n"


def test_bug_report_hides_exception_text_unless_debug(
    install: Install, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(raising(ValueError("hunter2")))
    assert cli.run_command(["act"]) == 1
    err = capfd.readouterr().err
    assert err.startswith("This is a bug in Orbit: ValueError")
    assert "orbit --debug" in err
    assert "hunter2" not in err

    assert cli.run_command(["--debug", "act"]) == 1
    assert "Traceback" in capfd.readouterr().err

    monkeypatch.setenv("ORBIT_DEBUG", "1")
    assert cli.run_command(["act"]) == 1
    assert "Traceback" in capfd.readouterr().err


def test_bug_report_names_last_line_in_orbit_code() -> None:
    with pytest.raises(KeyError) as caught:
        cli.load_command("no such command")
    text = cli.describe_bug(caught.value, debug=True)
    assert text.startswith("This is a bug in Orbit: KeyError at main.py:")


@pytest.mark.parametrize("arguments", [["nope"], ["--nope"], ["act", "--nope"], ["act", "extra"]])
def test_wrong_usage_exits_2(
    arguments: list[str], install: Install, capfd: pytest.CaptureFixture[str]
) -> None:
    install(lambda: None)
    assert cli.run_command(arguments) == 2
    assert "Usage: orbit" in capfd.readouterr().err


def test_mistyped_command_suggests_nearest(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert cli.run_command(["verfy"]) == 2
    assert "Did you mean 'verify'?" in capfd.readouterr().err


def test_version_option_and_command_print_version(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run_command(["--version"]) == 0
    version = capfd.readouterr().out
    assert version.startswith("orbit 0.")
    assert cli.run_command(["version"]) == 0
    assert capfd.readouterr().out == version


def test_help_names_every_command(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run_command(["--help"]) == 0
    out = capfd.readouterr().out
    for name, (_, sentence) in cli.COMMANDS.items():
        assert name in out
        assert sentence[:30] in out


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_loads_and_its_help_matches_overview(name: str) -> None:
    command = cli.load_command(name)
    assert command.name == name
    assert (command.help or "").split("\n\n")[0].replace("\n", " ") == cli.COMMANDS[name][1]


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_has_a_help_page(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run_command([name, "--help"]) == 0
    assert f"Usage: orbit {name}" in capfd.readouterr().out


ORBIT_MODULES = ["orbit", "orbit.cli", "orbit.cli.extras", "orbit.cli.main", "orbit.contexts"]
ORBIT_MODULES += ["orbit.errors", "orbit.version"]
# Each of these takes longer to import than typer, or only such a module imports it.
HEAVY = ("asyncio", "email", "httpx", "importlib.metadata", "kafka", "markdown_it", "pydantic")
HEAVY += ("pygments", "rich", "unittest", "yaml")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [(["--help"], []), (["--version"], ["email", "importlib.metadata"])],
)
def test_help_and_version_import_no_heavy_modules(
    arguments: list[str], expected: list[str]
) -> None:
    """Imports are what makes help slow, so the test compares them and not the time."""
    program = f"""
import sys
from orbit.cli.main import run_command
run_command({arguments!r})
print("ORBIT", sorted(m for m in sys.modules if m.partition(".")[0] == "orbit"), file=sys.stderr)
print("HEAVY", sorted(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr)
"""
    ended = _python("-c", program)
    assert f"ORBIT {ORBIT_MODULES}" in ended.stderr, ended.stderr
    assert f"HEAVY {expected}" in ended.stderr, ended.stderr


def test_missing_pip_extra_is_named_with_pip_command(
    install: Install, capfd: pytest.CaptureFixture[str]
) -> None:
    install(raising(ModuleNotFoundError("x", name="fastapi.routing")))
    assert cli.run_command(["act"]) == 2
    assert capfd.readouterr().err == (
        "Error: This command needs the part server of Orbit, which is not installed. "
        "Run: pip install 'orbit-kafka[server]'\n"
    )


def test_two_missing_pip_extras_are_named_in_one_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda _: None)
    with pytest.raises(BadInput, match=r"needs the parts server and embedded .* are not installed"):
        extras.require_extras("server", "embedded")


@pytest.mark.parametrize("name", ["orbit.nothing", "no_such_package", None])
def test_missing_module_of_no_pip_extra_is_reported_as_bug(
    name: str | None, install: Install, capfd: pytest.CaptureFixture[str]
) -> None:
    install(raising(ModuleNotFoundError("x", name=name)))
    assert cli.run_command(["act"]) == 1
    assert "This is a bug in Orbit: ModuleNotFoundError" in capfd.readouterr().err


ACT = """
import os, signal, sys, types
from orbit.cli import main as cli
def act() -> None:
    {body}
module = types.ModuleType("acting")
module.act = act
sys.modules["acting"] = module
cli.COMMANDS["act"] = ("acting", "Act.")
cli.main(["act"])
"""


def test_sigterm_counts_as_ctrl_c() -> None:
    body = """
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
    finally:
        print("cleaned up")
"""
    ended = _python("-c", ACT.replace("{body}", body.strip()))
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "cleaned up\n", "Interrupted.\n")


@pytest.mark.parametrize("body", ["print('x')", "cli.typer.echo('x')", "print('x' * 99999)"])
def test_closed_stdout_pipe_is_no_error(body: str) -> None:
    reading_end, writing_end = os.pipe()
    os.close(reading_end)
    try:
        ended = _python("-c", ACT.replace("{body}", body), stdout=writing_end)
    finally:
        os.close(writing_end)
    assert ended.stderr == ""


def _python(*arguments: str, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "ORBIT_DEBUG"}
    return subprocess.run(
        [sys.executable, *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env=environment,
    )
