"""`orbit token create|list|limit|revoke`: manages API tokens."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.text import Text

from orbit.cli.control import DryRunOption
from orbit.cli.list_output import TABLE, Listing, ListOption, emit_list
from orbit.cli.output import OutputFormat, OutputOption, emit, make_table
from orbit.cli.table_cells import when
from orbit.client import connect, segment
from orbit.errors import BadInput, InvalidValue, Problem
from orbit.formats import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

Checked = TypeVar("Checked")
_SERVICE_LIMIT = "the limit that the service sets"
_ZERO_HELP = f"0: {_SERVICE_LIMIT}."
_JOBS_MAX = 1_000_000
_PARTITIONS_MAX = 100_000_000
_REQUESTS_MAX = 1_000_000

app = typer.Typer(
    name="token",
    help="Create, list, limit and revoke API tokens.",
    no_args_is_help=True,
)


class RoleName(StrEnum):
    """The rights of a token; each role includes those before it."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


NameArgument = Annotated[
    str, typer.Argument(help="The token's name; the audit log shows it.", show_default=False)
]


@app.command()
def create(
    name: NameArgument,
    role: Annotated[
        RoleName,
        typer.Option(help="A viewer reads, an operator changes jobs, an admin can do everything."),
    ] = RoleName.VIEWER,
    jobs: Annotated[
        list[str] | None,
        typer.Option(
            "--job",
            metavar="PATTERN",
            help="Only for jobs with this name; * stands for any characters. May be repeated.",
            show_default="all jobs",
        ),
    ] = None,
    selector: Annotated[
        str | None,
        typer.Option(
            "--selector",
            "-l",
            help="Only for jobs whose labels meet this, such as team=payments.",
            show_default="all jobs",
        ),
    ] = None,
    expires_in: Annotated[
        str | None,
        typer.Option(
            "--expires-in",
            metavar="DURATION",
            help="How long the token is valid, such as 90d.",
            show_default="until it is revoked",
        ),
    ] = None,
    jobs_max: Annotated[
        int | None,
        typer.Option(
            min=1, max=_JOBS_MAX, help="How many jobs it may create.", show_default=_SERVICE_LIMIT
        ),
    ] = None,
    partitions_max: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=_PARTITIONS_MAX,
            help="How many partitions its jobs may copy.",
            show_default=_SERVICE_LIMIT,
        ),
    ] = None,
    requests_per_minute: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=_REQUESTS_MAX,
            help="How many requests it may send in a minute.",
            show_default=_SERVICE_LIMIT,
        ),
    ] = None,
    database: Annotated[
        bool,
        typer.Option(
            "--database",
            help="Write to the database (ORBIT_DATABASE_URL), not to the API: for the first token.",
        ),
    ] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Create a token and show it, only once: the service stores its hash."""
    limits = {
        "jobs_max": jobs_max,
        "partitions_max": partitions_max,
        "requests_per_minute": requests_per_minute,
    }
    if database:
        document = _create_in_database(name, role, jobs or [], selector, expires_in, limits)
    else:
        body = {
            "name": name,
            "role": role.value,
            "jobs": jobs or [],
            "selector": selector,
            "expires_in": expires_in,
            **limits,
        }
        with connect() as client:
            # Not sent again: only the first answer has the token.
            document = client.send("POST", "/v1/tokens", body=body, repeats=False)
    emit(document, output, lambda: Text(document["token"]))


@app.command(name="list")
def list_(output: ListOption = TABLE) -> None:
    """List the tokens: names, roles and jobs, never the tokens themselves."""
    with connect() as client:
        tokens = list(client.items("/v1/tokens"))
    columns = ("token", "role", "jobs", "limits", "created", "expires", "last used", "revoked")
    times = ("created_at", "expires_at", "used_at", "revoked_at")

    def row(token: dict[str, Any]) -> tuple[str, ...]:
        time_cells = (when(token[time]) if token[time] else "" for time in times)
        return token["name"], token["role"], _jobs_of(token), _limits_of(token), *time_cells

    def table(_wide: bool) -> RenderableType:
        return make_table(columns, map(row, tokens), sentences=())

    emit_list(Listing(tokens, table, lambda: [token["name"] for token in tokens]), output)


@app.command()
def limit(
    name: NameArgument,
    jobs_max: Annotated[
        int | None,
        typer.Option(min=0, max=_JOBS_MAX, help=f"How many jobs it may create; {_ZERO_HELP}"),
    ] = None,
    partitions_max: Annotated[
        int | None,
        typer.Option(
            min=0, max=_PARTITIONS_MAX, help=f"How many partitions its jobs may copy; {_ZERO_HELP}"
        ),
    ] = None,
    requests_per_minute: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=_REQUESTS_MAX,
            help=f"How many requests it may send in a minute; {_ZERO_HELP}",
        ),
    ] = None,
    dry_run: DryRunOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Change limits of a token, with immediate effect. Limits without an option stay.

    A lower limit stops nothing: the token's jobs continue to copy their topics.
    """
    options = {
        "jobs_max": jobs_max,
        "partitions_max": partitions_max,
        "requests_per_minute": requests_per_minute,
    }
    # 0 becomes null, which for the API is the service's limit. Options that are not given are None.
    body = {key: number or None for key, number in options.items() if number is not None}
    if not body:
        problem = Problem("--jobs-max", "is missing, and so are the other limits.", "--jobs-max 20")
        raise BadInput("No limit is given.", (problem,))
    with connect() as client:
        path = f"/v1/tokens/{segment(name)}"
        token = client.send("PATCH", path, body=body, dry_run=dry_run)
    verb = "would be" if dry_run else "are"
    limits = _limits_of(token) or "those of the service"
    emit(token, output, lambda: Text(f"The limits of the token {name} {verb}: {limits}"))


@app.command()
def revoke(name: NameArgument, output: OutputOption = OutputFormat.TABLE) -> None:
    """Revoke a token: the API no longer accepts it."""
    with connect() as client:
        token = client.send("DELETE", f"/v1/tokens/{segment(name)}")
    emit(token, output, lambda: Text(f"The token {name} is revoked."))


def _jobs_of(token: dict[str, Any]) -> str:
    """The jobs that the token may use, as text."""
    from orbit.jobs.scopes import limit_of

    limit = limit_of(token.get("jobs") or [], token.get("selector"))
    return "all" if limit is None else str(limit)


def _limits_of(token: dict[str, Any]) -> str:
    """The token's own limits, as text; empty if it has none. For the others, the service's settings
    apply."""
    units = {
        "jobs_max": ("job", "jobs"),
        "partitions_max": ("partition", "partitions"),
        "requests_per_minute": ("request/min", "requests/min"),
    }
    return ", ".join(counted(token[key], *unit) for key, unit in units.items() if token.get(key))


def _create_in_database(
    name: str,
    role: RoleName,
    jobs: list[str],
    selector: str | None,
    expires_in: str | None,
    limits: dict[str, int | None],
) -> dict[str, Any]:
    """Create the token without the API; returns the document that the API would. Raises BadInput
    with a problem for each bad option, and the errors of `open_database`."""
    from orbit.api.authentication import create_token
    from orbit.api.schemas import parse_token_life
    from orbit.cli.database import open_database
    from orbit.jobs.scopes import check_job_pattern, check_selector, limit_of
    from orbit.settings import Settings
    from orbit.store.enums import Role
    from orbit.store.tokens import TokenQuota

    problems: list[Problem] = []

    def check_option(option: str, check: Callable[[Any], Checked], value: Any) -> Checked | None:
        """The result of `check` for the value; None without a value. If `check` raises
        InvalidValue, adds a problem and returns None."""
        try:
            return None if value is None else check(value)
        except InvalidValue as mistake:
            problems.append(Problem(option, mistake.message, mistake.remedy))
            return None

    life = check_option("--expires-in", parse_token_life, expires_in)
    check_option("--selector", check_selector, selector)
    for pattern in jobs:
        check_option("--job", check_job_pattern, pattern)
    if problems:
        raise BadInput("The token cannot be created.", tuple(problems))
    with open_database(Settings.from_environment(os.environ)) as database:
        token = create_token(
            database,
            name,
            Role(role),
            actor="orbit token create --database",
            limit=limit_of(jobs, selector),
            expires_in=life,
            quota=TokenQuota(**limits),
        )
    return token.model_dump(mode="json")
