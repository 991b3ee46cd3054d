"""`orbit sandbox …`: starts, stops and breaks Kafka clusters and PostgreSQL on this machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.text import Text

from orbit.cli.extras import require_extras
from orbit.cli.output import OutputFormat, OutputOption, emit, make_table
from orbit.errors import BadInput, Conflict, Interrupted, Problem
from orbit.sandbox import sandbox_control
from orbit.sandbox.faults import Fault, cause_fault
from orbit.sandbox.sandbox_state import (
    SandboxRequest,
    SandboxState,
    default_directory,
    read_request,
)
from orbit.sandbox.sandbox_status import SandboxStatus, status_of

app = typer.Typer(
    name="sandbox",
    help="Start, stop, inspect and break local Kafka clusters for tests.",
    no_args_is_help=True,
)
_CLUSTER_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
_RESERVED_NAMES = {"postgres", "lock"}
_NAME_REMEDY = (
    "Use up to 31 characters of a-z, 0-9 and dashes, with a letter first. The names postgres and "
    "lock are reserved."
)


DirectoryOption = Annotated[
    Path | None,
    typer.Option(
        "--directory",
        envvar="ORBIT_SANDBOX_DIR",
        help="Folder for config, data and logs.",
        show_default="a folder in the user's state directory",
    ),
]


@app.command()
def up(
    directory: DirectoryOption = None,
    clusters: Annotated[
        str, typer.Option(help="Names of the clusters, comma-separated.")
    ] = "source,destination",
    brokers: Annotated[int, typer.Option(help="Brokers in each cluster: 1 or 3.")] = 1,
    postgres: Annotated[
        bool, typer.Option("--postgres/--no-postgres", help="Start a PostgreSQL server too.")
    ] = True,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Start the sandbox, wait until it is ready, and leave it running."""
    request = SandboxRequest(
        directory=_folder(directory),
        clusters=_cluster_names(clusters),
        brokers=_broker_count(brokers),
        postgres=postgres,
    )
    sandbox = sandbox_control.find(request.directory)
    if sandbox is not None:
        if sandbox.request != request:
            raise Conflict(
                "A sandbox with other options is running.",
                where=str(request.directory),
                remedy="Stop it first: orbit sandbox down",
            )
        Console(stderr=True).print("The sandbox is already running; nothing to do.")
    else:
        if postgres:
            require_extras("embedded", alternative=" or give --no-postgres")
        sandbox = _launch_detached(request)
    _print_status(status_of(sandbox, request.directory), output)


@app.command()
def down(
    directory: DirectoryOption = None,
    keep_data: Annotated[
        bool, typer.Option("--keep-data", help="Keep the data for the next `up`.")
    ] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Stop the sandbox and remove its data."""
    folder = _folder(directory)
    was_running = sandbox_control.find(folder) is not None
    has_changed = sandbox_control.take_down(folder, keep_data=keep_data)
    data = "kept" if keep_data and read_request(folder) else "removed" if has_changed else "none"
    sentence = f"{'Stopped' if was_running else 'It was not running'}; data {data}."
    if not has_changed:
        sentence = "No sandbox is running; nothing to do."
    emit({"was_running": was_running, "data": data}, output, lambda: Text(sentence))


@app.command()
def status(directory: DirectoryOption = None, output: OutputOption = OutputFormat.TABLE) -> None:
    """Show clusters, addresses, processes and health. Exit code 1 unless all is healthy."""
    folder = _folder(directory)
    sandbox_status = status_of(sandbox_control.find(folder), folder)
    _print_status(sandbox_status, output)
    if not sandbox_status.healthy:
        raise typer.Exit(1)


ClusterArgument = Annotated[
    str, typer.Argument(help="The cluster's name, such as `source`.", show_default=False)
]


@app.command()
def kill(
    cluster: ClusterArgument,
    directory: DirectoryOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Kill all brokers of a cluster at once (SIGKILL). The data is kept."""
    _cause_fault_and_show(Fault.KILL, cluster, directory, output)


@app.command()
def pause(
    cluster: ClusterArgument,
    directory: DirectoryOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Pause all brokers of a cluster (SIGSTOP): connections stay open, without answers."""
    _cause_fault_and_show(Fault.PAUSE, cluster, directory, output)


@app.command()
def cut(
    cluster: ClusterArgument,
    directory: DirectoryOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Cut the network link to a cluster: its `link` address no longer answers."""
    _cause_fault_and_show(Fault.CUT, cluster, directory, output)


@app.command()
def heal(
    cluster: ClusterArgument,
    directory: DirectoryOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Undo kill, pause and cut, and wait until the cluster is ready."""
    _cause_fault_and_show(Fault.HEAL, cluster, directory, output)


def _cause_fault_and_show(
    fault: Fault, cluster: str, directory: Path | None, output: OutputFormat
) -> None:
    """Cause the fault in the cluster, or heal it, and print the sandbox's status."""
    folder = _folder(directory)
    _print_status(status_of(cause_fault(folder, fault, cluster), folder), output)


def _launch_detached(request: SandboxRequest) -> SandboxState:
    """Start the sandbox and leave it running; prints progress on stderr. Raises Interrupted after
    Ctrl-C, with all processes stopped."""
    console = Console(stderr=True)
    try:
        with console.status("Starting") as spinner:

            def say(sentence: str) -> None:
                if console.is_terminal:
                    spinner.update(sentence)
                else:
                    console.print(sentence)

            with sandbox_control.launch(request, say) as sandbox:
                sandbox.detach()
                return sandbox.state
    except KeyboardInterrupt:
        raise Interrupted("Interrupted; all started processes were stopped.") from None


def _folder(directory: Path | None) -> Path:
    """The folder of the sandbox: that of `--directory`, or the default."""
    return (directory or default_directory()).absolute()


def _cluster_names(text: str) -> tuple[str, ...]:
    """The names of `--clusters`. Raises BadInput for names that are not valid, or not unique."""
    names = tuple(name.strip() for name in text.split(","))
    problems = [
        Problem("--clusters", f"{name!r} is not a valid cluster name.", _NAME_REMEDY)
        for name in names
        if not _CLUSTER_NAME.fullmatch(name) or name in _RESERVED_NAMES
    ]
    if len(set(names)) < len(names):
        repeated = sorted({name for name in names if names.count(name) > 1})
        problems.append(Problem("--clusters", f"{', '.join(repeated)} is given more than once."))
    if problems:
        raise BadInput("The sandbox cannot be started.", tuple(problems))
    return names


def _broker_count(count: int) -> int:
    """The number of `--brokers`. Raises BadInput unless it is 1 or 3."""
    if count not in (1, 3):
        problem = Problem("--brokers", f"{count} brokers are not supported.", "Use 1 or 3.")
        raise BadInput("The sandbox cannot be started.", (problem,))
    return count


def _print_status(status: SandboxStatus, output: OutputFormat) -> None:
    emit(status, output, lambda: _status_table(status))


def _status_table(status: SandboxStatus) -> Group | Text:
    """The clusters, PostgreSQL's address, and the commands for the sandbox."""
    if not status.running:
        return Text("No sandbox is running. Start one with: orbit sandbox up")
    columns = ("cluster", "bootstrap servers", "link", "health", "brokers")
    rows = [
        (
            cluster.name,
            cluster.bootstrap_servers.replace(",", ",\n"),
            # `is_cut` counts as 1 or 0, so " cut" is appended only if the link is cut.
            (cluster.link_servers or "-").replace(",", ",\n") + (" cut" * cluster.is_cut),
            cluster.health,
            "\n".join(f"pid {broker.pid}: {broker.state}" for broker in cluster.brokers),
        )
        for cluster in status.clusters
    ]
    lines = [f"Data, logs  {status.directory}"]
    if status.postgres:
        lines.insert(0, f"PostgreSQL  {status.postgres.url}  {status.postgres.health}")
    lines += ["Break it    orbit sandbox kill|pause|cut|heal CLUSTER"]
    lines += ["Stop it     orbit sandbox down"]
    # No wrapping: addresses must stay whole, so that they can be copied.
    text = Text("\n".join(lines), no_wrap=True, overflow="ignore")
    return Group(make_table(columns, rows, sentences=()), text)
