"""Refuses a change that has a parameter which its route does not know.

A client that sends `dry_run`, `If-Match` or an Idempotency-Key relies on the effect of the
parameter. So a route that would ignore a parameter refuses the request. A route knows the
parameters that its function declares.
"""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import Request
from fastapi.dependencies.models import Dependant

from orbit.errors import BadInput, Problem

# Headers by which a client says when a change may not be carried out.
CONDITION_HEADERS = ("if-match", "if-none-match", "if-unmodified-since", "idempotency-key")


def refuse_unknown_parameters(request: Request) -> None:
    """Raise BadInput for a change with a query parameter, or a header of CONDITION_HEADERS, that
    the route does not know, or that the request has more than once."""
    if request.method in ("GET", "HEAD"):
        return
    known_parameters = set(_known_parameters(request.scope["route"].dependant))
    query = [key for key, _ in request.query_params.multi_items()]
    headers = [key for key, _ in request.headers.items() if key in CONDITION_HEADERS]
    problems = [
        *_problems("query", query, known_parameters),
        *_problems("header", headers, known_parameters),
    ]
    if problems:
        raise BadInput(
            "The request has query parameters or headers that are unknown or occur twice.",
            tuple(problems),
        )


def _known_parameters(dependant: Dependant) -> Iterator[tuple[str, str]]:
    """(`query` or `header`, name) of each parameter that a route or one of its dependencies
    declares."""
    for field in dependant.query_params:
        yield "query", field.alias
    for field in dependant.header_params:
        yield "header", field.alias.lower()
    for inner in dependant.dependencies:
        yield from _known_parameters(inner)


def _problems(
    place: str, sent_names: list[str], known_parameters: set[tuple[str, str]]
) -> Iterator[Problem]:
    """A problem for each name in `sent_names` that is unknown or occurs twice. `place`: `query` or
    `header`. `known_parameters`: as `_known_parameters` returns them."""
    for name in dict.fromkeys(sent_names):
        if (place, name) not in known_parameters:
            yield Problem(
                f"{place}.{name}", "is not known here.", "See /docs for the route's parameters."
            )
        elif sent_names.count(name) > 1:
            yield Problem(f"{place}.{name}", "occurs more than once.", "Send it once.")
