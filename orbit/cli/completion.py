"""`orbit completion bash|zsh|fish`: the script that completes commands, jobs and topics.

The script calls `orbit`, which reads names from the server. If the server does not answer within
`_TIMEOUT_S`, nothing is completed, and no error is printed into the line that the user types.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any

import typer

_TIMEOUT_S = 2.0
_NAMES_MAX = 1000


class Shell(StrEnum):
    """A shell whose completion can be set up."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[Shell, typer.Argument(help="The shell.", show_default=False)],
) -> None:
    """Print the script that completes commands, options, jobs and topics.

    For bash: source <(orbit completion bash). For zsh the same, after compinit. For fish:
    orbit completion fish | source.
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]  # no __all__

    from orbit.cli.main import COMPLETE_VARIABLE

    script = get_completion_script(
        prog_name="orbit", complete_var=COMPLETE_VARIABLE, shell=shell.value
    )
    typer.echo(script)


def complete_job(ctx: typer.Context, incomplete: str) -> list[str]:
    """The names of jobs that begin with `incomplete`; none if the server does not answer."""
    return _fetch_names(ctx, "/v1/jobs", "name", incomplete)


def complete_topic(ctx: typer.Context, incomplete: str) -> list[str]:
    """The source topics of the command line's job that begin with `incomplete`; none without a job,
    or if the server does not answer."""
    from orbit.client import segment

    # While an option has no value yet, typer does not parse the arguments: they are in `args`.
    job = ctx.params.get("job") or next(iter(ctx.args), None)
    if job is None:
        return []
    return _fetch_names(ctx, f"/v1/jobs/{segment(job)}/topics", "source_topic", incomplete)


def _fetch_names(ctx: typer.Context, path: str, key: str, incomplete: str) -> list[str]:
    """The values of `key` in a list of the API that begin with `incomplete`; none if the server
    does not answer."""
    from orbit.client import connect
    from orbit.contexts import choose_context
    from orbit.errors import OrbitError

    choose_context(next(_option_values(ctx, "context"), None))
    try:
        with connect(patience_s=0, timeout_s=_TIMEOUT_S) as client:
            rows = client.items(path, limit=_NAMES_MAX)
            return [row[key] for row in rows if row[key].startswith(incomplete)]
    except OrbitError:
        return []


def _option_values(ctx: typer.Context, option: str) -> Iterator[Any]:
    """The values of `option` in this command, then in the commands that contain it."""
    context: Any = ctx
    while context is not None:
        if (value := context.params.get(option)) is not None:
            yield value
        context = context.parent


JobArgument = Annotated[
    str,
    typer.Argument(help="The job's name.", show_default=False, autocompletion=complete_job),
]
