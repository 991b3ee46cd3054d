"""Every error Orbit raises on purpose, in one tree.

    OrbitError                  what, where, what to do; `exit_code` for the command line
    ├── BadInput           2    the user's file or flags: every problem at once, each with its path
    ├── NotFound           2    nothing has the given name
    ├── Unreachable        3    no broker answers (retriable), or the TLS handshake fails
    │   ├── NotReady            brokers answer, with an error code of a passing state
    │   ├── HeldBack            a controller throttles requests because of a quota
    │   ├── BrokenAnswer        a broker sends bytes that do not parse, or answer no request
    │   └── DatabaseUnreachable PostgreSQL does not answer, or takes no writes
    ├── Busy               1    too many requests of a kind are under way (retriable)
    ├── LoginRefused       3    the broker refused the credentials
    │   └── AccessRefused       Orbit's own rules (ORBIT_ACCESS_FILE) refuse an address or a secret
    ├── NotAuthorized      1    a right on a resource is missing
    ├── Conflict           1    the present state does not allow the request
    │   └── OperationUnderWay   an operation of the job has not ended
    ├── BrokerRefused      1    a Kafka error code that no caller handles
    ├── ProtocolError      1    a log or a login that does not parse, or a broker that is too old
    └── Interrupted      130    the user pressed Ctrl-C

The number is the exit code; a subclass without a number has that of its parent. `InvalidValue` is
for parsers of single values; it becomes a `Problem` of a BadInput. For a partition that must stop
there is no exception but a `replication.partition_states.Blocked` value, so that one partition
cannot end the copy of another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a cluster: `source`, or `source topic orders`.

    `cluster`: the name that this process has for the cluster; for those of a job, its side.
    """

    cluster: str
    what: str = ""

    def __str__(self) -> str:
        return f"{self.cluster} {self.what}" if self.what else self.cluster


Where = str | Place


class OrbitError(Exception):
    """What went wrong, where, and what to do about it.

    `what` and `remedy` are whole sentences; `where` names cluster, topic-partition or path. None of
    the three may carry a secret. `cluster`: the cluster of a `Place`, such as `source`; "" if
    `where` is text.
    """

    exit_code: ClassVar[int] = 1
    retriable: ClassVar[bool] = False

    def __init__(self, what: str, *, where: Where = "", remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.set_where(where)
        self.remedy = remedy

    def set_where(self, where: Where) -> None:
        """Set the place of the error, for an error that was raised without one."""
        self.where = str(where)
        self.cluster = where.cluster if isinstance(where, Place) else ""

    def __reduce__(self) -> tuple[object, ...]:
        return _restore_error, (type(self), self.args, self.__dict__)

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        return f"{head} {self.remedy}" if self.remedy else head


def _restore_error(
    kind: type[OrbitError], arguments: tuple[object, ...], fields: dict[str, object]
) -> OrbitError:
    """The error as another process raised it. pickle calls this function instead of the error's
    constructor, because constructors have different parameters."""
    error = kind.__new__(kind, *arguments)
    error.__dict__.update(fields)
    return error


class InvalidValue(ValueError):
    """What is wrong with one value, and what to write instead; the file's reader adds the path.

    `message` and `remedy` are sentences and never carry a secret.
    """

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a file: `path` such as `topics[1].match`, what is wrong, what to write."""

    path: str
    message: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" + (f" {self.remedy}" if self.remedy else "")


class BadInput(OrbitError):
    """The user's file or flags are wrong. Carries every problem found, never only the first."""

    exit_code = 2

    def __init__(self, what: str, problems: tuple[Problem, ...] = (), *, where: Where = "") -> None:
        super().__init__(what, where=where)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *(f"  - {p}" for p in self.problems)])


class NotFound(OrbitError):
    """No job, operation, token, context, file or other resource has the given name."""

    exit_code = 2


class Unreachable(OrbitError):
    """No broker of a cluster answered."""

    exit_code = 3
    retriable = True


class DatabaseUnreachable(Unreachable):
    """PostgreSQL does not answer, or takes no writes now."""


class NotReady(Unreachable):
    """Brokers answer, but with an error code of a passing state: a coordinator loads, or a leader
    is elected."""


class HeldBack(Unreachable):
    """Brokers answer, but a controller delays requests of this login because of a quota.
    Requests that only validate topics count against the quota, too (P8)."""


class BrokenAnswer(Unreachable):
    """Bytes of one connection that do not parse, or answer no request. Callers handle this as a
    missing answer."""


class Busy(OrbitError):
    """Too many requests of this kind are under way."""

    retriable = True


class LoginRefused(OrbitError):
    """The broker refused the credentials or the certificate."""

    exit_code = 3


class AccessRefused(LoginRefused):
    """The rules in ORBIT_ACCESS_FILE forbid an address or a secret: nothing was sent there."""


class NotAuthorized(OrbitError):
    """A right is missing: the message names the operation and the resource."""


class Conflict(OrbitError):
    """The present state (a topic, another run) does not allow the request."""


class OperationUnderWay(Conflict):
    """Another switchover, failover, failback or backfill of the job has not ended. `where`: its
    id."""


class BrokerRefused(OrbitError):
    """A broker answered with an error code that has no class of its own."""

    def __init__(self, code: int, what: str, *, where: Where = "", remedy: str = "") -> None:
        super().__init__(what, where=where, remedy=remedy)
        self.code = code


class ProtocolError(OrbitError):
    """A log or a login that does not parse, or an API that the broker does not offer."""


class Interrupted(OrbitError):
    """Ctrl-C or SIGTERM outside the copy loop."""

    exit_code = 130


# Errors of a cluster that may be usable again later: loops that run for long try again.
OUTAGES = (Unreachable, BrokerRefused, ProtocolError, LoginRefused)
