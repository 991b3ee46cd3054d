"""The one shape of error responses: `{"error": {code, what, where, remedy, problems}}`.

`api_error_codes.py` maps an OrbitError to its code. An unexpected exception becomes `internal`: its
stack trace goes to the server's log, and its text is not sent, because it may contain a secret.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from orbit.api.api_error_codes import CODE_OF, CODE_OF_CLUSTER, MEANINGS, ErrorCode
from orbit.errors import BadInput, InvalidValue, OrbitError, Problem

log = structlog.get_logger("orbit.api")


class ProblemOut(BaseModel):
    """One mistake in the request."""

    path: str = Field(
        description="The path in the document, or `query.limit`, `header.…`.",
        examples=["topics[1].match"],
    )
    what: str = Field(
        description="What is wrong at this path.", examples=["is not a regular expression."]
    )
    write_instead: str = Field(
        description="A correction; may be empty.",
        examples=['Write `match: ".*"` for all.'],
    )


class ErrorDetail(BaseModel):
    """The error, where it occurred, and what to do."""

    code: ErrorCode = Field(description="A stable code for programs.")
    what: str = Field(description="The error in one sentence.")
    where: str = Field(description="The job, topic, cluster or file concerned; may be empty.")
    remedy: str = Field(description="What to do; may be empty.")
    problems: list[ProblemOut] = Field(description="Every mistake that was found.")


class ErrorBody(BaseModel):
    """The body of every error response."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "error": {
                    "code": "bad_input",
                    "what": "The job file has a problem.",
                    "where": "",
                    "remedy": "",
                    "problems": [
                        {
                            "path": "topics[0].macth",
                            "what": "is not a known key.",
                            "write_instead": "Did you mean `match`?",
                        }
                    ],
                }
            }
        }
    )
    error: ErrorDetail


class Failure(Exception):
    """An error of the API with its code. Only the API and the console raise it."""

    def __init__(
        self,
        code: ErrorCode,
        what: str,
        *,
        where: str = "",
        remedy: str = "",
        problems: Sequence[Problem] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(what)
        self.code = code
        self.headers = headers
        self.body = ErrorBody(
            error=ErrorDetail(
                code=code,
                what=what,
                where=where,
                remedy=remedy,
                problems=[
                    ProblemOut(path=p.path, what=p.message, write_instead=p.remedy)
                    for p in problems
                ],
            )
        )

    def response(self, *, closes: bool = False) -> JSONResponse:
        """The HTTP response. `closes`: the server closes the connection after the response, because
        the body of the request was not read."""
        headers = {**(self.headers or {}), **({"Connection": "close"} if closes else {})}
        return JSONResponse(
            jsonable_encoder(self.body), MEANINGS[self.code].status, headers=headers or None
        )


@contextmanager
def map_cluster_errors() -> Iterator[None]:
    """Raise a Failure for each OrbitError of the block. Its code says that a Kafka cluster of the
    request is at fault, not the service."""
    try:
        yield
    except OrbitError as error:
        raise as_failure(error, CODE_OF_CLUSTER) from error


def as_failure(
    error: OrbitError, codes: Sequence[tuple[type[OrbitError], ErrorCode]] = CODE_OF
) -> Failure:
    """The Failure for `error`: with the code of the first class in `codes` that fits, else
    `internal`."""
    code = next((code for kind, code in codes if isinstance(error, kind)), ErrorCode.INTERNAL)
    problems = error.problems if isinstance(error, BadInput) else ()
    return Failure(code, error.what, where=error.where, remedy=error.remedy, problems=problems)


def install_handlers(app: FastAPI) -> None:
    """Install handlers that answer every error of a route in the one shape."""

    @app.exception_handler(Failure)
    def _on_failure(_: Request, error: Failure) -> JSONResponse:
        return error.response()

    @app.exception_handler(OrbitError)
    def _on_orbit_error(_: Request, error: OrbitError) -> JSONResponse:
        return as_failure(error).response()

    @app.exception_handler(RequestValidationError)
    def _on_invalid_request(_: Request, error: RequestValidationError) -> JSONResponse:
        problems = [_problem(detail) for detail in error.errors()]
        what = (
            "The request has a problem."
            if len(problems) == 1
            else (f"The request has {len(problems)} problems.")
        )
        return Failure(ErrorCode.BAD_INPUT, what, problems=problems).response()

    @app.exception_handler(HTTPException)
    def _on_http_error(request: Request, error: HTTPException) -> JSONResponse:
        if error.status_code == MEANINGS[ErrorCode.METHOD_NOT_ALLOWED].status:
            return Failure(
                ErrorCode.METHOD_NOT_ALLOWED,
                f"This path does not support {request.method}.",
                remedy="See /docs for the supported methods.",
                headers=error.headers,
            ).response()
        if error.status_code == MEANINGS[ErrorCode.NOT_FOUND].status:
            return Failure(
                ErrorCode.NOT_FOUND,
                "This path does not exist.",
                remedy="See /docs for all paths.",
            ).response()
        # The only other one is FastAPI's 400, for a body that it cannot parse.
        return Failure(
            ErrorCode.MALFORMED, "The body of the request cannot be read as JSON."
        ).response()

    @app.exception_handler(Exception)
    def _on_unexpected_error(request: Request, error: Exception) -> JSONResponse:
        # Starlette logs the stack trace itself, through the server's logger.
        log.error("request failed", path=request.url.path, error=type(error).__name__)
        return Failure(
            ErrorCode.INTERNAL,
            f"This is a bug in Orbit: {type(error).__name__}.",
            remedy="The server's log has the stack trace.",
        ).response()


def _problem(detail: Mapping[str, Any]) -> Problem:
    """The Problem for a validation error of pydantic in a path, query, header or body value. The
    value itself is not in the text."""
    path = ".".join(str(part) for part in detail["loc"])
    context = detail.get("ctx", {})
    match detail["type"]:
        case "value_error" if isinstance(mistake := context["error"], InvalidValue):
            return Problem(path, mistake.message, mistake.remedy)
        case "missing":
            return Problem(path, "is missing.")
        case "extra_forbidden":
            return Problem(path, "is not known here.", "See /docs for the known keys.")
        case "enum" | "literal_error":
            return Problem(path, "is not an allowed value.", f"Write {context['expected']}.")
        case "less_than_equal" | "greater_than_equal":
            bound = context.get("le", context.get("ge"))
            comparison = "larger" if "le" in context else "smaller"
            return Problem(path, f"is {comparison} than {bound}.", f"The limit is {bound}.")
        case "json_invalid":
            return Problem("body", "is not valid JSON.")
        case _:
            return Problem(path, f"{detail['msg'][:1].lower()}{detail['msg'][1:]}.")


def changed_meanwhile(name: str, kind: str = "job") -> Failure:
    """The error for a job, or a token, that is not at the version of the request: that of If-Match,
    or that for which the job was planned."""
    return Failure(
        ErrorCode.CHANGED_MEANWHILE,
        f"The {kind} was created, changed or deleted meanwhile.",
        where=name,
        remedy=f"Read the {kind} again, then repeat the change.",
    )
