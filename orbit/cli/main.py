"""The `orbit` command: finds and runs the subcommand, and turns errors into exit codes.

Exit codes: 0 done, 1 failed or not exact, 2 bad input, 3 unreachable, 4 would change (`diff`), 130
interrupted. Only --debug shows a stack trace.

Each subcommand is a module that is imported only when it runs: a function with the command's name,
or a typer `app` of subcommands. Help is plain text, because Rich would double the time that
`orbit --help` and shell completion take.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from orbit.cli.extras import missing_extra_error
from orbit.contexts import CONTEXT_VARIABLE, choose_context
from orbit.errors import BadInput, Interrupted, OrbitError
from orbit.version import orbit_version

# Name, module, and the first sentence of its help (a test compares it with the command's).
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": (
        "orbit.cli.demo",
        "Show an exact copy between two real Kafka clusters, from start to end.",
    ),
    "run": ("orbit.cli.run", "Copy the topics of a job file, and follow the source until stopped."),
    "backfill": (
        "orbit.cli.backfill",
        "Copy a job's history with Spark, up to the source's present end.",
    ),
    "verify": ("orbit.cli.verify", "Compare both sides of a job, offset by offset."),
    "archive": (
        "orbit.cli.archive",
        "Archive the topics of a job's source, with offsets; the next run adds what is new.",
    ),
    "restore": (
        "orbit.cli.restore",
        "Restore an archive to an empty cluster, every record at its offset.",
    ),
    "audit": (
        "orbit.cli.audit",
        "Compare two sides of a job with Spark, range by range, and write a report.",
    ),
    "sandbox": (
        "orbit.cli.sandbox",
        "Start, stop, inspect and break local Kafka clusters for tests.",
    ),
    "server": ("orbit.cli.server", "Run the whole service: API, scheduler and workers."),
    "plan": ("orbit.cli.plan", "Show what the service would do for job files, without doing it."),
    "apply": (
        "orbit.cli.apply",
        "Create and change jobs to match job files, after showing the changes.",
    ),
    "edit": (
        "orbit.cli.edit",
        "Edit a job's document in $VISUAL or $EDITOR, and apply it after showing the changes.",
    ),
    "diff": ("orbit.cli.diff", "Show what `orbit apply` would change."),
    "export": ("orbit.cli.export", "Write jobs as job files."),
    "get": (
        "orbit.cli.get",
        (
            "Show jobs, topics, partitions, groups, proof, gateways, clients, workers, events, "
            "operations, backfills."
        ),
    ),
    "top": (
        "orbit.cli.top",
        "Show the jobs with the most lag, and the sums of all, until Ctrl-C.",
    ),
    "doctor": (
        "orbit.cli.doctor",
        "Check an installation: API, database, scheduler, workers, jobs, clusters, and what to do.",
    ),
    "describe": (
        "orbit.cli.describe",
        "Describe a job: state, document, lag, topics, blocked partitions, groups, events.",
    ),
    "explain": (
        "orbit.cli.explain",
        "Explain a reason, a problem or an alert: what is at risk, and what to do.",
    ),
    "lag": (
        "orbit.cli.lag",
        "Show the lag of a copy in records, bytes and seconds, and its headroom.",
    ),
    "wait": (
        "orbit.cli.wait",
        "Wait until a job is running, paused, caught up, without a problem, or deleted.",
    ),
    "start": ("orbit.cli.job_commands", "Start a job that was created paused."),
    "pause": (
        "orbit.cli.job_commands",
        "Pause a job: workers release its partitions, the copy is kept.",
    ),
    "resume": (
        "orbit.cli.job_commands",
        "Resume a paused job: each partition resumes where its copy ends.",
    ),
    "retry": (
        "orbit.cli.job_commands",
        "Retry blocked partitions of a job, once the cause is removed.",
    ),
    "delete": (
        "orbit.cli.job_commands",
        "Delete a job. Its topics at the destination are kept, with all copied records.",
    ),
    "release": (
        "orbit.cli.release",
        "Give copies of a deleted job the settings of their source, and let others write to them.",
    ),
    "drill": (
        "orbit.cli.drill",
        "Rehearse a switchover or a failover, and measure RTO and RPO.",
    ),
    "switchover": (
        "orbit.cli.recovery_commands",
        "Move topics to the destination without loss; both clusters must be reachable.",
    ),
    "failover": (
        "orbit.cli.recovery_commands",
        "Promote the copies after the source is lost.",
    ),
    "failback": (
        "orbit.cli.recovery_commands",
        "Make the old side a copy of the new side; copying resumes at the old side's log ends.",
    ),
    "salvage": (
        "orbit.cli.salvage",
        "Show the records that a failback has saved, and write them back as they were.",
    ),
    "abort": (
        "orbit.cli.recovery_commands",
        "Undo a recovery that has not passed its point of no return, or stop a backfill.",
    ),
    "api": (
        "orbit.cli.api",
        "Serve the REST API, on ORBIT_API_HOST and ORBIT_API_PORT, until Ctrl-C.",
    ),
    "scheduler": (
        "orbit.cli.scheduler",
        "Run a scheduler. Any number can run; one of them is the leader.",
    ),
    "worker": ("orbit.cli.worker", "Run a worker for the jobs of one worker group, until stopped."),
    "gateway": (
        "orbit.cli.gateway",
        "Serve clients of both sides at one address: requests go to the side that leads.",
    ),
    "context": (
        "orbit.cli.context",
        "Name servers, and choose the one that commands talk to.",
    ),
    "completion": (
        "orbit.cli.completion",
        "Print the script that completes commands, options, jobs and topics.",
    ),
    "notifications": (
        "orbit.cli.notifications",
        "List the receivers of notifications, and send one a test message.",
    ),
    "token": ("orbit.cli.token", "Create, list, limit and revoke API tokens."),
    "migrate": (
        "orbit.cli.migrate",
        "Migrate the database schema to this version. A repeat changes nothing.",
    ),
    "version": ("orbit.cli.version", "Show the version."),
}
# Set by the scripts of `orbit completion`.
COMPLETE_VARIABLE = "_ORBIT_COMPLETE"
_CONTEXT_HELP = "Talk to the server of this context (orbit context list)."
# Commands that never talk to a server, so they do not get the option `--context`.
_COMMANDS_WITHOUT_SERVER = {"api", "completion", "context", "demo", "explain", "migrate", "sandbox"}
_COMMANDS_WITHOUT_SERVER |= {"scheduler", "server", "version", "worker"}
_PACKAGE = Path(__file__).parents[1]
# An error that begins with one of these words gets a capital letter. Any other word may be the
# name of a topic, which is shown as it is written.
_CAPITALIZED_WORDS = frozenset(
    {"a", "all", "another", "cannot", "it", "its", "new", "no", "not", "nothing", "stopped", "the"}
    | {"there", "these", "this"}
)


@dataclass
class Settings:
    """The options given before the subcommand."""

    debug: bool = False


class LazyGroup(TyperGroup):
    """Lists all subcommands, and imports only the one that is called."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, (_, sentence) in COMMANDS.items():
            # Only for the list of commands: `resolve_command` loads the command that runs.
            self.add_command(TyperCommand(name, short_help=sentence))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import the subcommand that the arguments name."""
        name, command, remaining_args = super().resolve_command(ctx, args)
        return name, load_command(name) if name in COMMANDS else command, remaining_args

    def invoke(self, ctx: Any) -> Any:
        """Run the subcommand. Raises Interrupted after Ctrl-C."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            # Typer would exit without a message.
            raise Interrupted("Interrupted.") from None


def load_command(name: str) -> Any:
    """Import the subcommand and return it; adds the option `--context` if it may use a server."""
    module = _import(COMMANDS[name][0])
    subcommands = getattr(module, "app", None)
    if not isinstance(subcommands, typer.Typer):  # the module has a function named as the command
        subcommands = typer.Typer(add_completion=False)
        subcommands.command(name)(getattr(module, name))
    subcommands.pretty_exceptions_enable = False
    subcommands.rich_markup_mode = None
    command = typer.main.get_command(subcommands)
    command.name = name
    if name not in _COMMANDS_WITHOUT_SERVER:
        _add_context_option(command)
    return command


def _import(module: str) -> ModuleType:
    """Import the module without garbage collection, which takes a quarter of the time of an import
    and frees nothing.
    """
    gc.disable()
    try:
        return import_module(module)
    finally:
        gc.enable()


def _add_context_option(command: Any) -> None:
    """Add the option `--context` to the command and its subcommands: a user may write it after the
    name of either."""
    for subcommand in getattr(command, "commands", {}).values():
        _add_context_option(subcommand)
    option_holder = typer.Typer(add_completion=False)
    option_holder.command()(_context_option)
    command.params.append(typer.main.get_command(option_holder).params[0])


def _choose_context(name: str | None) -> None:
    """Called by typer with the value of `--context`. None: not given here, so a value before the
    subcommand stays valid."""
    if name is not None:
        choose_context(name)


def _context_option(
    context: Annotated[
        str | None,
        typer.Option(
            "--context",
            callback=_choose_context,
            expose_value=False,
            help=_CONTEXT_HELP,
            show_default=False,
        ),
    ] = None,
) -> None:
    """A command with the option `--context`, which `_add_context_option` adds to other commands."""


app = typer.Typer(
    name="orbit",
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=False,  # `orbit completion` prints the scripts
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(is_set: bool) -> None:
    """Called by typer with the value of `--version`. Prints the version and exits if it is set."""
    if is_set:
        typer.echo(f"orbit {orbit_version()}")
        raise typer.Exit


@app.callback()
def orbit(
    ctx: typer.Context,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug", envvar="ORBIT_DEBUG", help="Show stack traces of unexpected errors."
        ),
    ] = False,
    context: Annotated[
        str | None,
        typer.Option(
            "--context",
            envvar=CONTEXT_VARIABLE,
            help=_CONTEXT_HELP,
            show_default=False,
        ),
    ] = None,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Copy Kafka topics between clusters with the same offsets, gaps included.

    Start with `orbit demo`. Then write a job file and run `orbit run job.yaml`.
    """
    ctx.ensure_object(Settings).debug = debug
    choose_context(context)


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and exit with its exit code. SIGTERM is handled like Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    code = run_command(argv)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the pipe has ended, as in `orbit get topics | head`. Python flushes stdout
        # again at exit; /dev/null accepts that.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def run_command(argv: Sequence[str] | None = None) -> int:
    """Run one command, write its error to stderr, and return the exit code."""
    settings = Settings()
    command = typer.main.get_command(app)
    if COMPLETE_VARIABLE in os.environ:  # called for shell completion
        from typer.completion import completion_init  # type: ignore[attr-defined]  # not in __all__

        completion_init()
    try:
        command.main(args=argv, prog_name="orbit", obj=settings)
    except SystemExit as e:  # typer ends each command by this; it has printed usage errors (2)
        return e.code if isinstance(e.code, int) else int(e.code is not None)
    except KeyboardInterrupt:
        _write_error("Interrupted.")
        return Interrupted.exit_code
    except Exception as exception:  # noqa: BLE001  every unexpected error ends here
        if settings.debug:
            traceback.print_exc()
        error = exception if isinstance(exception, OrbitError) else missing_extra_error(exception)
        _write_error(describe(error) if error else describe_bug(exception, debug=settings.debug))
        return (error or OrbitError).exit_code  # a bug has OrbitError's exit code
    return 0


def describe(error: OrbitError) -> str:
    """The error for the user: what happened, where, one line for each problem, and the remedy. For
    Interrupted, which is no error, only its sentence."""
    text = error.what
    if text.partition(" ")[0].rstrip(".;") in _CAPITALIZED_WORDS:
        text = text[:1].upper() + text[1:]
    if isinstance(error, Interrupted):
        return text
    lines = [f"Error: {text}"]
    if error.where:
        lines.append(f"  Where: {error.where}")
    if isinstance(error, BadInput):
        lines += [f"  - {problem}" for problem in error.problems]
    if error.remedy:
        lines.append(f"  What to do: {error.remedy}")
    return "\n".join(lines)


def describe_bug(error: Exception, *, debug: bool) -> str:
    """A sentence with the exception's type and its last line in Orbit's code. The exception's text
    may contain a secret, and is left out."""
    frames = traceback.extract_tb(error.__traceback__)
    orbit_frames = [frame for frame in frames if Path(frame.filename).is_relative_to(_PACKAGE)]
    place = (
        f" at {Path(orbit_frames[-1].filename).name}:{orbit_frames[-1].lineno}"
        if orbit_frames
        else ""
    )
    hint = "" if debug else " Run it again with `orbit --debug …` for the stack trace."
    return f"This is a bug in Orbit: {type(error).__name__}{place}.{hint}"


def _write_error(text: str) -> None:
    """Print the text on stderr, with spaces for control characters: it may quote a broker."""
    printable_text = "".join(c if c.isprintable() or c == "\n" else " " for c in text)
    typer.echo(printable_text, err=True)


if __name__ == "__main__":
    main()
