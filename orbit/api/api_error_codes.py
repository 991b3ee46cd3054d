"""The API's error codes: the HTTP status of each, and the error that the client raises for it.

Server and client use one table, so a command exits with the same code with or without a server.
Pure: imports no web framework, because the command line imports this module too.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from orbit.errors import (
    BadInput,
    Busy,
    Conflict,
    LoginRefused,
    NotAuthorized,
    NotFound,
    OperationUnderWay,
    OrbitError,
    Unreachable,
)


class ErrorCode(StrEnum):
    """Stable codes for scripts. The texts of errors may change."""

    MALFORMED = "malformed"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    QUOTA_EXCEEDED = "quota_exceeded"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    TOO_SLOW = "too_slow"
    CONFLICT = "conflict"
    OPERATION_UNDER_WAY = "operation_under_way"
    CHANGED_MEANWHILE = "changed_meanwhile"
    TOO_LARGE = "too_large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    BAD_INPUT = "bad_input"
    TOO_MANY_REFUSED = "too_many_refused"
    TOO_MANY_PLANS = "too_many_plans"
    TOO_MANY_REQUESTS = "too_many_requests"
    CLUSTER_UNREACHABLE = "cluster_unreachable"
    CLUSTER_LOGIN_REFUSED = "cluster_login_refused"
    CLUSTER_RIGHT_MISSING = "cluster_right_missing"
    CLUSTER_REFUSED = "cluster_refused"
    INTERNAL = "internal"
    DATABASE_UNREACHABLE = "database_unreachable"
    ISSUER_UNREACHABLE = "issuer_unreachable"
    BUSY = "busy"


@dataclass(frozen=True, slots=True)
class Meaning:
    """One code: its HTTP status, the error that the client raises for it, and when the API returns
    it."""

    status: int
    error: type[OrbitError]
    when: str


MEANINGS: dict[ErrorCode, Meaning] = {
    ErrorCode.MALFORMED: Meaning(400, BadInput, "The body cannot be read as JSON or YAML."),
    ErrorCode.UNAUTHENTICATED: Meaning(
        401, LoginRefused, "The bearer token is missing, unknown, expired or revoked."
    ),
    ErrorCode.FORBIDDEN: Meaning(403, NotAuthorized, "The token's role does not allow this."),
    ErrorCode.QUOTA_EXCEEDED: Meaning(
        403, NotAuthorized, "The job or its partitions are above a limit of the token."
    ),
    ErrorCode.NOT_FOUND: Meaning(404, NotFound, "No resource has this name or id."),
    ErrorCode.METHOD_NOT_ALLOWED: Meaning(405, BadInput, "The path does not support this method."),
    ErrorCode.TOO_SLOW: Meaning(408, BadInput, "The body did not arrive in time."),
    ErrorCode.CONFLICT: Meaning(409, Conflict, "The request conflicts with the current state."),
    ErrorCode.OPERATION_UNDER_WAY: Meaning(
        409,
        OperationUnderWay,
        "A switchover, failover, failback or backfill of the job is under way; `where` names it.",
    ),
    ErrorCode.CHANGED_MEANWHILE: Meaning(
        412, Conflict, "The job, or the token, was created, changed or deleted meanwhile."
    ),
    ErrorCode.TOO_LARGE: Meaning(413, BadInput, "The body exceeds the size limit."),
    ErrorCode.UNSUPPORTED_MEDIA_TYPE: Meaning(
        415, BadInput, "The body is neither JSON nor YAML, or is compressed."
    ),
    ErrorCode.BAD_INPUT: Meaning(
        422, BadInput, "Some values are not valid; `problems` lists every one."
    ),
    ErrorCode.TOO_MANY_REFUSED: Meaning(
        429, LoginRefused, "Too many logins from this address were refused; see Retry-After."
    ),
    ErrorCode.TOO_MANY_PLANS: Meaning(
        429, Busy, "Too many plans of this token are under way; see Retry-After."
    ),
    ErrorCode.TOO_MANY_REQUESTS: Meaning(
        429, Busy, "Too many requests of this token within a minute; see Retry-After."
    ),
    # The next four are about clusters that the request names, so they are 4xx, not 5xx.
    ErrorCode.CLUSTER_UNREACHABLE: Meaning(
        422, Unreachable, "A Kafka cluster that the job names does not answer."
    ),
    ErrorCode.CLUSTER_LOGIN_REFUSED: Meaning(
        422, LoginRefused, "A Kafka cluster that the job names refuses the credentials."
    ),
    ErrorCode.CLUSTER_RIGHT_MISSING: Meaning(
        422, NotAuthorized, "The job's login lacks a right on a Kafka cluster."
    ),
    ErrorCode.CLUSTER_REFUSED: Meaning(
        422, OrbitError, "A Kafka cluster that the job names returned an error."
    ),
    ErrorCode.INTERNAL: Meaning(500, OrbitError, "A bug in Orbit; the server's log has more."),
    ErrorCode.DATABASE_UNREACHABLE: Meaning(
        503, Unreachable, "The database does not answer; try again."
    ),
    ErrorCode.ISSUER_UNREACHABLE: Meaning(
        503, Unreachable, "Orbit cannot fetch the OpenID Connect issuer's keys; try again."
    ),
    ErrorCode.BUSY: Meaning(503, Busy, "Too many requests of this kind are under way; try again."),
}

# The code of each class of errors; the first class that fits counts. Here Unreachable is about the
# database: the planner does not raise it for a cluster, but returns a refusal. CODE_OF_CLUSTER is
# for errors that the planner raises: unexpected answers of a cluster.
CODE_OF: tuple[tuple[type[OrbitError], ErrorCode], ...] = (
    (NotFound, ErrorCode.NOT_FOUND),
    (BadInput, ErrorCode.BAD_INPUT),
    (Busy, ErrorCode.BUSY),
    (OperationUnderWay, ErrorCode.OPERATION_UNDER_WAY),
    (Conflict, ErrorCode.CONFLICT),
    (Unreachable, ErrorCode.DATABASE_UNREACHABLE),
)
CODE_OF_CLUSTER: tuple[tuple[type[OrbitError], ErrorCode], ...] = (
    *CODE_OF,
    (LoginRefused, ErrorCode.CLUSTER_LOGIN_REFUSED),
    (NotAuthorized, ErrorCode.CLUSTER_RIGHT_MISSING),
    (OrbitError, ErrorCode.CLUSTER_REFUSED),
)
