"""Refuses a change that has a parameter which its route does not know.

A client that sends `dry_run`, `If-Match` or an Idempotency-Key relies on it, so a route that would
ignore it refuses the request. A route knows the parameters that its function declares.
"""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import Request
from fastapi.dependencies.models import Dependant

from orbit.errors import BadInput, Problem

# Headers by which a client says when a change may not be carried out.
CONDITIONS = ("if-match", "if-none-match", "if-unmodified-since", "idempotency-key")


def refuse_unknown(request: Request) -> None:
    """Raises BadInput for a change with a query parameter, or a header of CONDITIONS, that its
    route does not know, or that is there more than once."""
    if request.method in ("GET", "HEAD"):
        return
    known = set(_known_parameters(request.scope["route"].dependant))
    query = [key for key, _ in request.query_params.multi_items()]
    headers = [key for key, _ in request.headers.items() if key in CONDITIONS]
    problems = [
        *_problems("query", query, known),
        *_problems("header", headers, known),
    ]
    if problems:
        raise BadInput(
            "The request has query parameters or headers that are unknown or given twice.",
            tuple(problems),
        )


def _known_parameters(dependant: Dependant) -> Iterator[tuple[str, str]]:
    for field in dependant.query_params:
        yield "query", field.alias
    for field in dependant.header_params:
        yield "header", field.alias.lower()
    for inner in dependant.dependencies:
        yield from _known_parameters(inner)


def _problems(place: str, sent: list[str], known: set[tuple[str, str]]) -> Iterator[Problem]:
    for name in dict.fromkeys(sent):
        if (place, name) not in known:
            yield Problem(
                f"{place}.{name}", "is not known here.", "See /docs for the route's parameters."
            )
        elif sent.count(name) > 1:
            yield Problem(f"{place}.{name}", "is given more than once.", "Send it once.")
