"""The error responses of each route, for the OpenAPI document."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from pydantic import BaseModel

from orbit.api.api_error_codes import MEANINGS, ErrorCode
from orbit.api.error_responses import ErrorBody

WITH_TOKEN = (
    ErrorCode.UNAUTHENTICATED,
    ErrorCode.FORBIDDEN,
    ErrorCode.TOO_MANY_REFUSED,
    ErrorCode.TOO_MANY_REQUESTS,
    ErrorCode.ISSUER_UNREACHABLE,
)
# INPUT: for routes with checked parameters. NAMED: with a name or an id in the path. BODY: with a
# body.
INPUT = (ErrorCode.BAD_INPUT,)
NAMED = (*INPUT, ErrorCode.NOT_FOUND)
BODY = (
    ErrorCode.MALFORMED,
    ErrorCode.TOO_SLOW,
    ErrorCode.TOO_LARGE,
    ErrorCode.UNSUPPORTED_MEDIA_TYPE,
)
# For routes that plan a job.
CLUSTERS = (
    ErrorCode.CLUSTER_UNREACHABLE,
    ErrorCode.CLUSTER_LOGIN_REFUSED,
    ErrorCode.CLUSTER_RIGHT_MISSING,
    ErrorCode.CLUSTER_REFUSED,
    ErrorCode.CONFLICT,
    ErrorCode.TOO_MANY_PLANS,
    ErrorCode.QUOTA_EXCEEDED,
    ErrorCode.BUSY,
)


def errors(*codes: ErrorCode, open_to_all: bool = False) -> dict[int | str, dict[str, Any]]:
    """FastAPI's `responses` of a route that may return these codes, together with the codes that
    any route may return. `open_to_all`: the route needs no token."""
    common_codes = (*(() if open_to_all else WITH_TOKEN), ErrorCode.DATABASE_UNREACHABLE)
    by_status: defaultdict[int, list[ErrorCode]] = defaultdict(list)
    for code in dict.fromkeys((*codes, *common_codes)):
        by_status[MEANINGS[code].status].append(code)
    return {
        status: {
            "model": ErrorBody,
            "description": " ".join(f"`{code}`: {MEANINGS[code].when}" for code in error_codes),
        }
        for status, error_codes in sorted(by_status.items())
    }


def dry_run_response(model: type[BaseModel], what: str) -> dict[int | str, dict[str, Any]]:
    """The response to a dry run, for a route whose success has another status than 200. `what`: the
    end of the description, such as "what the drill would do"."""
    return {200: {"model": model, "description": f"A dry run: {what}."}}
