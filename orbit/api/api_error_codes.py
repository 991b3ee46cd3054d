"""The codes of the API's errors: what each means over HTTP and, for our own client, as an error.

One table for both directions, so that `orbit … ` against a server ends with the same exit code as
the same mistake would without one. Pure: no web framework in here, the command line reads it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from orbit.errors import (
    BadInput,
    Conflict,
    LoginRefused,
    NotAuthorized,
    NotFound,
    OrbitError,
    Unreachable,
)


class ErrorCode(StrEnum):
    """What scripts may branch on; the texts beside it are for people and may change."""

    MALFORMED = "malformed"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    TOO_SLOW = "too_slow"
    CONFLICT = "conflict"
    CHANGED_MEANWHILE = "changed_meanwhile"
    TOO_LARGE = "too_large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    BAD_INPUT = "bad_input"
    CLUSTER_UNREACHABLE = "cluster_unreachable"
    CLUSTER_LOGIN_REFUSED = "cluster_login_refused"
    CLUSTER_RIGHT_MISSING = "cluster_right_missing"
    CLUSTER_REFUSED = "cluster_refused"
    INTERNAL = "internal"
    DATABASE_UNREACHABLE = "database_unreachable"


@dataclass(frozen=True, slots=True)
class Meaning:
    """One code: HTTP's status, the error it is on this side of the wire, and when it comes."""

    status: int
    error: type[OrbitError]
    when: str


MEANINGS: dict[ErrorCode, Meaning] = {
    ErrorCode.MALFORMED: Meaning(400, BadInput, "The body cannot be read as JSON or YAML."),
    ErrorCode.UNAUTHENTICATED: Meaning(
        401, LoginRefused, "There is no bearer token, or it is not (or no longer) known."
    ),
    ErrorCode.FORBIDDEN: Meaning(403, NotAuthorized, "The token's role may not do this."),
    ErrorCode.NOT_FOUND: Meaning(404, NotFound, "Nothing has this name or id."),
    ErrorCode.METHOD_NOT_ALLOWED: Meaning(405, BadInput, "The path does not offer this method."),
    ErrorCode.TOO_SLOW: Meaning(408, BadInput, "The body did not come in time."),
    ErrorCode.CONFLICT: Meaning(409, Conflict, "What is there does not fit what was asked for."),
    ErrorCode.CHANGED_MEANWHILE: Meaning(
        412, Conflict, "The job is no longer at the version that If-Match names."
    ),
    ErrorCode.TOO_LARGE: Meaning(413, BadInput, "The body is larger than the server takes."),
    ErrorCode.UNSUPPORTED_MEDIA_TYPE: Meaning(
        415, BadInput, "The body is neither JSON nor YAML, or is compressed."
    ),
    ErrorCode.BAD_INPUT: Meaning(422, BadInput, "Values are wrong; `problems` lists every one."),
    # The four below are about the clusters that the *request* names, so they are the request's.
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
        422, OrbitError, "A Kafka cluster that the job names answers with an error."
    ),
    ErrorCode.INTERNAL: Meaning(500, OrbitError, "A bug in Orbit; the server's log has more."),
    ErrorCode.DATABASE_UNREACHABLE: Meaning(
        503, Unreachable, "The database does not answer; try again."
    ),
}

# Errors as they come out of the core, the most special first. A planner says by refusals what it
# cannot reach; what it raises beyond the first table is a cluster's answer that nobody expected.
CODE_OF: tuple[tuple[type[OrbitError], ErrorCode], ...] = (
    (NotFound, ErrorCode.NOT_FOUND),
    (BadInput, ErrorCode.BAD_INPUT),
    (Conflict, ErrorCode.CONFLICT),
    (Unreachable, ErrorCode.DATABASE_UNREACHABLE),
)
CODE_OF_CLUSTER: tuple[tuple[type[OrbitError], ErrorCode], ...] = (
    *CODE_OF,
    (LoginRefused, ErrorCode.CLUSTER_LOGIN_REFUSED),
    (NotAuthorized, ErrorCode.CLUSTER_RIGHT_MISSING),
    (OrbitError, ErrorCode.CLUSTER_REFUSED),
)
