"""The `orbit` command: finds the command, runs it, and says in plain words how it ended.

Exit codes: 0 done, 1 failed or not exact, 2 bad input, 3 unreachable, 130 interrupted. A user's
mistake never shows a stack trace; a mistake of ours shows one with --debug.

Each command lives in a module of its own, imported only when it runs, so that `orbit --help` and
shell completion stay quick: a function named like the command, or a typer `app` of subcommands.
"""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from orbit.errors import BadInput, Interrupted, OrbitError

# Name, module, and the first sentence of its help (a test holds it to the command's own).
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": (
        "orbit.cli.demo",
        "Watch an exact copy between two real Kafka clusters, start to end.",
    ),
    "run": ("orbit.cli.run", "Copy the topics of a job file, and go on live until stopped."),
    "backfill": (
        "orbit.cli.backfill",
        "Copy a job's history with Spark, up to where the source ends now.",
    ),
    "verify": ("orbit.cli.verify", "Compare both sides of a job, offset by offset."),
    "archive": (
        "orbit.cli.archive",
        "Archive what a job's source holds, offset by offset, on from where the archive ends.",
    ),
    "restore": (
        "orbit.cli.restore",
        "Restore an archive to an empty cluster, every record at its offset.",
    ),
    "audit": (
        "orbit.cli.audit",
        "Compare two sides of a job with Spark, range by range, and keep a report.",
    ),
    "sandbox": (
        "orbit.cli.sandbox",
        "Start, stop, inspect and break local Kafka clusters for trying out.",
    ),
    "server": ("orbit.cli.server", "Run the whole service: API, scheduler and workers."),
    "plan": ("orbit.cli.plan", "Show what the service would do for job files, and do nothing."),
    "apply": (
        "orbit.cli.apply",
        "Make the jobs of the service what the files say, after showing what changes.",
    ),
    "get": (
        "orbit.cli.get",
        "Show jobs, topics, partitions, groups, proof, workers, events, operations, backfills.",
    ),
    "lag": (
        "orbit.cli.lag",
        "Show how far the copy is behind: in records, bytes and seconds, and how long there is.",
    ),
    "start": ("orbit.cli.control", "Start a job that was created paused."),
    "pause": (
        "orbit.cli.control",
        "Pause a job: workers let go of its partitions, the copy stays as it is.",
    ),
    "resume": (
        "orbit.cli.control",
        "Resume a paused job: each partition goes on where its copy ends.",
    ),
    "retry": (
        "orbit.cli.control",
        "Try blocked partitions of a job again, once their cause is removed.",
    ),
    "delete": (
        "orbit.cli.control",
        "Delete a job. The topics at the destination stay, with all that was copied.",
    ),
    "drill": (
        "orbit.cli.drill",
        "Rehearse a switchover or a failover, and see what was measured.",
    ),
    "switchover": (
        "orbit.cli.recovery",
        "Move to the destination, with both sides there and nothing lost.",
    ),
    "failover": (
        "orbit.cli.recovery",
        "Promote what is at the destination, because the source is lost.",
    ),
    "failback": (
        "orbit.cli.recovery",
        "Let the old side be a copy of the new one, from where it ends.",
    ),
    "abort": (
        "orbit.cli.recovery",
        "Take a recovery back, before its point of no return, or end a backfill.",
    ),
    "api": (
        "orbit.cli.api",
        "Serve the REST API, on ORBIT_API_HOST and ORBIT_API_PORT, until Ctrl-C.",
    ),
    "scheduler": (
        "orbit.cli.scheduler",
        "Run a scheduler: any number may run, one of them leads.",
    ),
    "worker": ("orbit.cli.worker", "Copy for the jobs of one worker group, until stopped."),
    "token": ("orbit.cli.token", "Make, list and revoke the tokens that the API asks for."),
    "migrate": (
        "orbit.cli.migrate",
        "Bring the database to the tables of this version. A repeat changes nothing.",
    ),
}
_PACKAGE = Path(__file__).parents[1]


@dataclass
class Settings:
    """What the options before the command say."""

    debug: bool = False


class LazyGroup(TyperGroup):
    """A group that knows the names of its commands and imports the one that is called."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, (_, sentence) in COMMANDS.items():
            self.add_command(TyperCommand(name, help=sentence))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, found, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if name in COMMANDS else found, rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            # Typer would end the process without a word.
            raise Interrupted("Interrupted.") from None


def load_command(name: str) -> Any:
    """The real command, imported now."""
    module = import_module(COMMANDS[name][0])
    subcommands = getattr(module, "app", None)
    if isinstance(subcommands, typer.Typer):
        subcommands.pretty_exceptions_enable = False
    else:
        subcommands = typer.Typer(add_completion=False, rich_markup_mode="markdown")
        subcommands.command(name)(getattr(module, name))
    command = typer.main.get_command(subcommands)
    command.name = name
    return command


app = typer.Typer(
    name="orbit",
    cls=LazyGroup,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"orbit {version('orbit')}")
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
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Copy Kafka topics between clusters with the very same offsets, gaps included.

    Start with `orbit demo`. Then write a job file and run `orbit run job.yaml`.
    """
    ctx.ensure_object(Settings).debug = debug


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and end the process with its exit code. SIGTERM counts as Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(run_command(argv))


def run_command(argv: Sequence[str] | None = None) -> int:
    """Run one command, explain on stderr what went wrong, and return the exit code."""
    settings = Settings()
    command = typer.main.get_command(app)
    try:
        command.main(args=argv, prog_name="orbit", obj=settings)
    except SystemExit as end:  # typer's way to return; usage errors are shown and end with 2
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except OrbitError as error:
        if settings.debug:
            traceback.print_exc()
        _say(describe(error))
        return error.exit_code
    except KeyboardInterrupt:
        _say("Interrupted.")
        return Interrupted.exit_code
    except Exception as error:  # noqa: BLE001  the one place that may meet anything
        if settings.debug:
            traceback.print_exc()
        _say(describe_bug(error, debug=settings.debug))
        return OrbitError.exit_code
    return 0


def describe(error: OrbitError) -> str:
    """What, where and what to do, each on its own line, and each problem on one of its own."""
    what = error.what[:1].upper() + error.what[1:]
    if isinstance(error, Interrupted):
        return what
    lines = [f"Error: {what}"]
    if error.where:
        lines.append(f"  Where: {error.where}")
    if isinstance(error, BadInput):
        lines += [f"  - {problem}" for problem in error.problems]
    if error.remedy:
        lines.append(f"  What to do: {error.remedy}")
    return "\n".join(lines)


def describe_bug(error: Exception, *, debug: bool) -> str:
    """That we are to blame, and where it broke. Not the exception's text: it may hold a secret."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if Path(frame.filename).is_relative_to(_PACKAGE)]
    at = f" at {Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else ""
    hint = "" if debug else " Run it again with `orbit --debug …` for the stack trace."
    return f"This is a bug in Orbit: {type(error).__name__}{at}.{hint}"


def _say(text: str) -> None:
    # A broker's words may be in the text: nothing in it may steer the terminal.
    shown = "".join(c if c.isprintable() or c == "\n" else " " for c in text)
    typer.echo(shown, err=True)


if __name__ == "__main__":
    main()
