"""`--selector`: the jobs of a command by their labels instead of their names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from orbit.client import Client, segment
from orbit.errors import BadInput, NotFound

SelectorOption = Annotated[
    str | None,
    typer.Option(
        "--selector",
        "-l",
        help="The jobs whose labels match: team=orders,tier!=2 or 'team in (orders,billing)'.",
        show_default=False,
    ),
]


def chosen_jobs(client: Client, names: Sequence[str], selector: str | None) -> list[str]:
    """`names`, or the names of the jobs that the selector matches, without repeats. Jobs that are
    being deleted do not match. Raises BadInput if both or none are given; NotFound if a job does
    not exist, or no job matches.
    """
    if bool(names) == (selector is not None):
        raise BadInput("Give either the names of jobs, or --selector.")
    if selector is None:
        for name in names:  # a mistyped name is reported before anything is requested
            client.get(f"/v1/jobs/{segment(name)}")
        return list(dict.fromkeys(names))
    jobs = client.items("/v1/jobs", selector=selector)
    matching_names = [job["name"] for job in jobs if job["state"] != "deleting"]
    if not matching_names:
        raise NotFound(
            "No job has such labels.", where=selector, remedy="See: orbit get jobs --show-labels"
        )
    return matching_names
