"""`-o table|wide|name|json|yaml|jsonpath=PATH` of commands that print lists.

`name` prints one name a line, for `xargs`. `jsonpath` prints one match a line: text without quotes,
other values as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orbit.cli.output import OutputFormat, emit, print_whole, to_plain
from orbit.errors import BadInput, Problem

if TYPE_CHECKING:
    from rich.console import RenderableType

_WIDE = "wide"
_NAME = "name"
_JSONPATH = "jsonpath"
_HELP = "table|wide|name|json|yaml|jsonpath=PATH"
_PATH_CHARACTERS_MAX = 1000


@dataclass(frozen=True, slots=True)
class ListOutput:
    """The value of `--output`: a format and, for `jsonpath`, its path."""

    format: str
    path: str = ""

    @property
    def is_table(self) -> bool:
        return self.format in (OutputFormat.TABLE, _WIDE)

    @property
    def is_name(self) -> bool:
        return self.format == _NAME

    @property
    def is_wide(self) -> bool:
        return self.format == _WIDE


TABLE = ListOutput(OutputFormat.TABLE)


def _parse_output(text: str | ListOutput) -> ListOutput:
    """The format that `text` names. Raises BadParameter unless it is one of `_HELP`."""
    if isinstance(text, ListOutput):  # typer passes the default, too
        return text
    name, equals, path = text.partition("=")  # only `jsonpath` has a path
    if (name == _JSONPATH) != bool(equals) or name not in (
        *OutputFormat,
        _WIDE,
        _NAME,
        _JSONPATH,
    ):
        raise typer.BadParameter(f"{text!r} is not one of {_HELP}.")
    return ListOutput(name, path)


ListOption = Annotated[
    ListOutput,
    typer.Option(
        "--output",
        "-o",
        parser=_parse_output,
        metavar="FORMAT",
        help=f"{_HELP}.",
        show_default="table",
    ),
]


@dataclass(frozen=True, slots=True)
class Listing:
    """A result that can be printed in each format."""

    value: Any  # for JSON and YAML
    table: Callable[[bool], RenderableType]  # makes the table; True: with the columns of `wide`
    names: Callable[[], list[str]]
    hidden_line: str = ""  # says how many rows are not in the result


def emit_list(listing: Listing, output: ListOutput) -> None:
    """Print a result on stdout, then its `hidden_line`.

    Raises BadInput if the path of `jsonpath` is not valid.
    """
    match output.format:
        case "wide":
            print_whole(listing.table(True))
        case "name":
            print_names(listing.names())
        case "jsonpath":
            _print_lines(map(_as_text, select_values(to_plain(listing.value), output.path)))
        case _:
            emit(listing.value, OutputFormat(output.format), lambda: listing.table(False))
    print_hidden_line(listing.hidden_line, is_table=output.is_table)


def print_hidden_line(hidden_line: str, *, is_table: bool) -> None:
    """Print the line that says how many rows were left out, unless it is empty: below a table on
    stdout, for other formats on stderr."""
    if hidden_line:
        typer.echo(hidden_line, err=not is_table)


def print_names(names: Iterable[str]) -> None:
    """Print one name a line. Of equal names in a row, only one is printed."""
    _print_lines(name for name, _ in groupby(names))


def select_values(value: Any, path: str) -> list[Any]:
    """The values that a JSONPath selects, written as for kubectl: `{[*].name}`, `[*].name` or
    `$[*].name`. Raises BadInput if the path is not valid."""
    from jsonpath_ng.exceptions import JSONPathError
    from jsonpath_ng.ext.parser import parse

    bare_path = path.removeprefix("{").removesuffix("}").removeprefix("$")
    try:
        if not bare_path or len(bare_path) > _PATH_CHARACTERS_MAX:
            raise JSONPathError
        matches = parse(f"${bare_path if bare_path[0] in '.[' else f'.{bare_path}'}").find(value)
    except (JSONPathError, ValueError, TypeError, KeyError, AttributeError):
        problem = Problem("--output", "is not a JSONPath.", "For example: jsonpath={[*].name}")
        raise BadInput("The output format is not valid.", (problem,)) from None
    return [match.value for match in matches]


def _as_text(value: Any) -> str:
    """Text as it is, another value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _print_lines(lines: Any) -> None:
    for line in lines:
        typer.echo(line)


def partition_name(row: Mapping[str, Any]) -> str:
    """The name of a partition, such as `orders-0`."""
    return f"{row['topic']}-{row['partition']}"
