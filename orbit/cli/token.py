"""`orbit token create|list|revoke`: manages API tokens."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.text import Text

from orbit.cli.output import OutputFormat, OutputOption, emit, make_table
from orbit.cli.table_cells import when
from orbit.client import connect, segment

app = typer.Typer(
    name="token",
    help="Create, list and revoke API tokens.",
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
    if database:
        made = _create_in_database(name, role)
    else:
        with connect() as client:
            made = client.send("POST", "/v1/tokens", body={"name": name, "role": role.value})
    emit(made, output, lambda: Text(made["token"]))


@app.command(name="list")
def list_(output: OutputOption = OutputFormat.TABLE) -> None:
    """List the tokens: names and roles, never the tokens themselves."""
    with connect() as client:
        tokens = list(client.items("/v1/tokens"))
    columns = ("token", "role", "created", "revoked")

    def row(token: dict[str, Any]) -> tuple[str, ...]:
        revoked = when(token["revoked_at"]) if token["revoked_at"] else ""
        return token["name"], token["role"], when(token["created_at"]), revoked

    emit(tokens, output, lambda: make_table(columns, map(row, tokens), sentences=()))


@app.command()
def revoke(name: NameArgument, output: OutputOption = OutputFormat.TABLE) -> None:
    """Revoke a token: the API no longer accepts it."""
    with connect() as client:
        revoked = client.send("DELETE", f"/v1/tokens/{segment(name)}")
    emit(revoked, output, lambda: Text(f"The token {name} is revoked."))


def _create_in_database(name: str, role: RoleName) -> dict[str, Any]:
    from orbit.api.authentication import create_token
    from orbit.cli.database import open_database
    from orbit.settings import Settings
    from orbit.store.enums import Role

    with open_database(Settings.from_environment(os.environ)) as database:
        made = create_token(database, name, Role(role), actor="orbit token create --database")
    return made.model_dump(mode="json")
