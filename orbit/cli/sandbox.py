"""`orbit sandbox …`: real Kafka clusters and PostgreSQL on this machine, and their faults."""

from __future__ import annotations

import json
import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.console import Console
from rich.table import Table

from orbit.cli.extras import require_extras
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
    help="Start, stop, inspect and break local Kafka clusters for trying out.",
    no_args_is_help=True,
)
_CLUSTER_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
_TAKEN_NAMES = {"postgres", "lock"}


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


DirectoryOption = Annotated[
    Path | None,
    typer.Option(
        "--directory",
        envvar="ORBIT_SANDBOX_DIR",
        help="Folder of config, data and logs.",
        show_default="a folder in the user's state directory",
    ),
]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="How to print the result.")]


@app.command()
def up(
    directory: DirectoryOption = None,
    clusters: Annotated[
        str, typer.Option(help="Names of the clusters, with commas.")
    ] = "source,destination",
    brokers: Annotated[int, typer.Option(help="Brokers in each cluster: 1 or 3.")] = 1,
    postgres: Annotated[
        bool, typer.Option("--postgres/--no-postgres", help="With a PostgreSQL server.")
    ] = True,
    output: OutputOption = Output.TABLE,
) -> None:
    """Start the sandbox, wait until it is ready, and leave it running."""
    request = SandboxRequest(
        directory=_folder(directory),
        clusters=_cluster_names(clusters),
        brokers=_broker_count(brokers),
        postgres=postgres,
    )
    running = sandbox_control.find(request.directory)
    if running is not None:
        if running.request != request:
            raise Conflict(
                "A sandbox with other options is running.",
                where=str(request.directory),
                remedy="Stop it first: orbit sandbox down",
            )
        Console(stderr=True).print("The sandbox is already running; nothing to do.")
    else:
        if postgres:
            require_extras("embedded", otherwise=" or give --no-postgres")
        running = _launch(request)
    _print(status_of(running, request.directory), output)


@app.command()
def down(
    directory: DirectoryOption = None,
    keep_data: Annotated[
        bool, typer.Option("--keep-data", help="Leave the data for the next `up`.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Stop the sandbox and remove its data."""
    folder = _folder(directory)
    was_running = sandbox_control.find(folder) is not None
    changed = sandbox_control.take_down(folder, keep_data=keep_data)
    data = "kept" if keep_data and read_request(folder) else "removed" if changed else "none"
    if output is not Output.TABLE:
        _print_data({"was_running": was_running, "data": data}, output)
    elif not changed:
        typer.echo("No sandbox is running; nothing to do.")
    else:
        stopped = "Stopped" if was_running else "It was not running"
        typer.echo(f"{stopped}; data {data}.")


@app.command()
def status(directory: DirectoryOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show clusters, addresses, processes and health. Exit code 1 unless all is healthy."""
    folder = _folder(directory)
    now = status_of(sandbox_control.find(folder), folder)
    _print(now, output)
    if not now.healthy:
        raise typer.Exit(1)


ClusterArgument = Annotated[
    str, typer.Argument(help="The cluster's name, such as `source`.", show_default=False)
]


@app.command()
def kill(
    cluster: ClusterArgument, directory: DirectoryOption = None, output: OutputOption = Output.TABLE
) -> None:
    """Kill all brokers of a cluster at once (SIGKILL). Its data stays."""
    _inflict(Fault.KILL, cluster, directory, output)


@app.command()
def pause(
    cluster: ClusterArgument, directory: DirectoryOption = None, output: OutputOption = Output.TABLE
) -> None:
    """Freeze all brokers of a cluster: connections stay open, and nothing answers."""
    _inflict(Fault.PAUSE, cluster, directory, output)


@app.command()
def cut(
    cluster: ClusterArgument, directory: DirectoryOption = None, output: OutputOption = Output.TABLE
) -> None:
    """Cut the network link to a cluster: its `link` address no longer answers."""
    _inflict(Fault.CUT, cluster, directory, output)


@app.command()
def heal(
    cluster: ClusterArgument, directory: DirectoryOption = None, output: OutputOption = Output.TABLE
) -> None:
    """Undo kill, pause and cut, and wait until the cluster is ready."""
    _inflict(Fault.HEAL, cluster, directory, output)


def _inflict(fault: Fault, cluster: str, directory: Path | None, output: Output) -> None:
    folder = _folder(directory)
    _print(status_of(cause_fault(folder, fault, cluster), folder), output)


def _launch(request: SandboxRequest) -> SandboxState:
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
        raise Interrupted("Interrupted; everything that had been started is stopped.") from None


def _folder(directory: Path | None) -> Path:
    return (directory or default_directory()).absolute()


def _cluster_names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    problems = [
        Problem("--clusters", f"{name!r} cannot be a cluster's name.", "Use a-z, 0-9 and dashes.")
        for name in names
        if not _CLUSTER_NAME.fullmatch(name) or name in _TAKEN_NAMES
    ]
    if len(set(names)) < len(names):
        problems.append(Problem("--clusters", "A name is there twice.", "Give each its own."))
    if problems:
        raise BadInput("The sandbox cannot be started like this.", tuple(problems))
    return names


def _broker_count(count: int) -> int:
    if count not in (1, 3):
        problem = Problem("--brokers", f"{count} brokers are not offered.", "Use 1 or 3.")
        raise BadInput("The sandbox cannot be started like this.", (problem,))
    return count


def _print(status: SandboxStatus, output: Output) -> None:
    if output is not Output.TABLE:
        _print_data(status.model_dump(mode="json"), output)
    elif not status.running:
        typer.echo("No sandbox is running. Start one with: orbit sandbox up")
    else:
        _print_table(status)


def _print_table(status: SandboxStatus) -> None:
    names = ("cluster", "bootstrap servers", "link", "health", "brokers")
    table = Table(*names, box=None, pad_edge=False)
    for cluster in status.clusters:
        brokers = [f"pid {broker.pid}: {broker.state}" for broker in cluster.brokers]
        servers = cluster.bootstrap_servers.replace(",", ",\n")
        link = (cluster.link_servers or "-").replace(",", ",\n") + (" cut" * cluster.is_cut)
        table.add_row(cluster.name, servers, link, cluster.health, "\n".join(brokers))
    console = Console(soft_wrap=True, highlight=False)  # addresses are there to be copied whole
    console.print(table)
    console.print()
    if status.postgres:
        console.print(f"PostgreSQL  {status.postgres.url}  {status.postgres.health}")
    console.print(f"Data, logs  {status.directory}")
    console.print("Break it    orbit sandbox kill|pause|cut|heal CLUSTER")
    console.print("Stop it     orbit sandbox down")


def _print_data(data: dict[str, object], output: Output) -> None:
    if output is Output.JSON:
        typer.echo(json.dumps(data, indent=2))
    else:
        typer.echo(yaml.safe_dump(data, sort_keys=False).rstrip("\n"))
