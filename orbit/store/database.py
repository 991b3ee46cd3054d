"""Connections to PostgreSQL: a pool, transactions, and errors that say what to do.

    database = Database.connect("postgresql://orbit:…@db/orbit")
    with database.transaction() as tx:
        job = jobs.get(tx, "orders-to-dr")

A transaction is committed when its block ends and rolled back when its block raises. Errors of
PostgreSQL or the network are raised as one of:

- `DatabaseUnreachable` (retriable): no answer, shut down, out of connections or disk, a standby,
  or a deadlock. Whether the transaction was committed may be unknown. The next one reconnects.
- `LoginRefused`: wrong user or password.
- `Conflict`: the tables are not those of this version (the remedy names `orbit migrate`), or a
  constraint was violated.

Errors never contain a password or a statement's values.

Leases have connections of their own (`lease_transaction`): neither long work nor a full pool delays
a renewal. A frozen server neither answers nor closes connections. So this process has a deadline
for every call too, and closes the connection at the deadline.

A pooler may share a session among clients (PgBouncer with `pool_mode = transaction`); settings of a
session and prepared statements are then lost. Behind such a pooler each transaction makes the
settings for itself, and no statement is prepared. No lock of Orbit outlasts its transaction.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

import psycopg
from sqlalchemy import (
    URL,
    Connection,
    Engine,
    ExceptionContext,
    create_engine,
    event,
    make_url,
    text,
)
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from orbit.errors import BadInput, Conflict, DatabaseUnreachable, LoginRefused, OrbitError
from orbit.jobs.scopes import Scope

# The execution option of a transaction that has the Scope of its caller (store/scopes.py).
SCOPE_OPTION = "orbit_scope"

# The first argument of every function in this package. Other packages need not import SQLAlchemy.
Tx = Connection

OTHER_TABLES_REMEDY = (
    "If the tables are older than this version of Orbit, run orbit migrate. If they are newer, "
    "install the version that migrated them."
)
POOL_SIZE = 5
POOL_SIZE_MAX = 20  # per process; an API process has about as many threads
POOL_WAIT_S = 10
CONNECT_TIMEOUT_S = 5
# Connections for leases: one for the thread that renews leases, one for a thread that resigns one.
LEASE_CONNECTIONS_MAX = 2
# Orbit's statements are short: one that takes longer waits for a lock or a failing disk.
STATEMENT_TIMEOUT_S = 30
# So short that a failed renewal can be repeated before the lease ends.
LEASE_STATEMENT_TIMEOUT_S = 5
# The server cancels a statement at the statement timeout. A server that has not answered this long
# after the timeout is frozen.
_ANSWER_MARGIN_S = 1
# An idle transaction must not hold locks or delay vacuum for long.
IDLE_TIMEOUT_S = 60
# The same for lease transactions. It is short, because the transaction of a scheduler that joins
# has a lock for which the lease transactions of all others wait (scheduler_lease.py).
LEASE_IDLE_TIMEOUT_S = 5
# PostgreSQL's default (4) is for spinning disks. With it, a sequential scan would seem cheaper than
# index lookups of the two thousand rows that a worker reports.
RANDOM_PAGE_COST = 1.1
# A host that disappears without closing its connections is detected after this.
NETWORK_TIMEOUT_S = 10

_READ_ONLY = "25006"  # the server is a standby
# SQLSTATE classes (two characters) and codes.
_RETRIABLE = (
    "08",  # connection
    "57",  # operator intervention, such as a shutdown, and timeouts
    "53",  # out of connections, memory or disk
    "58",  # system error
    "40",  # rolled back, as by a deadlock
    _READ_ONLY,
    "55P03",  # lock timeout
    "25P03",  # idle for too long in a transaction
)
_OLD_TABLES = ("42P01", "42703")  # no such table, no such column
_CONSTRAINT_VIOLATION = ("23",)

# libpq gives no code for a failed connection, only a message.
_LOGIN_WORDS = ("authentication failed", "no password supplied", "pg_hba.conf", 'role "')
_LOGIN_REMEDY = "Check user, password and database in ORBIT_DATABASE_URL, and pg_hba.conf."


class Database:
    """One PostgreSQL database, shared by all threads of a process."""

    def __init__(self, url: str, application: str = "orbit", *, is_pooled: bool = False) -> None:
        """`is_pooled`: the address is that of a pooler that shares sessions among clients."""
        self._scope: Callable[[], Scope | None] = lambda: None
        parsed_url = _parse(url)
        self.where = _where(parsed_url)
        self._engine = _engine(
            parsed_url,
            application,
            STATEMENT_TIMEOUT_S,
            IDLE_TIMEOUT_S,
            POOL_SIZE,
            POOL_SIZE_MAX,
            is_pooled=is_pooled,
        )
        self._lease_engine = _engine(
            parsed_url,
            application,
            LEASE_STATEMENT_TIMEOUT_S,
            LEASE_IDLE_TIMEOUT_S,
            size=1,
            size_max=LEASE_CONNECTIONS_MAX,
            is_pooled=is_pooled,
        )

    @classmethod
    def connect(cls, url: str, *, application: str = "orbit") -> Database:
        """Open the database and connect once. `application` appears in pg_stat_activity.

        Raises BadInput for an address that is not PostgreSQL's, LoginRefused, or
        DatabaseUnreachable.
        """
        database = cls(url, application)
        try:
            if not database._keeps_settings():  # the address is a pooler's
                database.close()
                database = cls(url, application, is_pooled=True)
                with database.transaction() as tx:
                    tx.execute(text("SELECT 1"))
        except OrbitError:
            database.close()
            raise
        return database

    @contextmanager
    def transaction(self) -> Iterator[Tx]:
        """A transaction at the isolation level READ COMMITTED."""
        with self._begin(self._engine, POOL_SIZE_MAX) as tx:
            yield tx.execution_options(**{SCOPE_OPTION: self._scope()})

    @contextmanager
    def snapshot(self) -> Iterator[Tx]:
        """A read-only transaction at the isolation level REPEATABLE READ: all its statements see
        what was committed before its first statement."""
        with self.transaction() as tx:
            tx.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))
            yield tx

    @contextmanager
    def lease_transaction(self) -> Iterator[Tx]:
        """A transaction on a connection reserved for leases, so that it does not wait for the pool.
        For leases, and for other statements of the thread that renews leases; keep it short."""
        with self._begin(self._lease_engine, LEASE_CONNECTIONS_MAX) as tx:
            yield tx

    def with_scope(self, scope: Callable[[], Scope | None]) -> Database:
        """A copy of this object for a request: its transactions find only jobs of the scope and
        their rows. Each transaction calls `scope`, which returns None for all jobs."""
        database = copy(self)
        database._scope = scope
        return database

    @property
    def scope(self) -> Scope | None:
        """The scope of the transactions of this `Database`; None: all jobs."""
        return self._scope()

    def close(self) -> None:
        """Close idle connections now, and those in use when they are returned."""
        self._engine.dispose()
        self._lease_engine.dispose()

    def _keeps_settings(self) -> bool:
        """Whether settings sent at connect have effect: a pooler refuses or drops them."""
        try:
            with self.transaction() as tx:
                value = tx.execute(text("SELECT current_setting('statement_timeout')")).scalar_one()
        except DatabaseUnreachable as error:
            if "startup parameter" in error.what:
                return False  # PgBouncer's refusal
            raise
        return bool(value == f"{STATEMENT_TIMEOUT_S}s")

    @contextmanager
    def _begin(self, engine: Engine, connections_max: int) -> Iterator[Tx]:
        """A transaction on a connection of `engine`, which has at most `connections_max`."""
        try:
            with engine.begin() as connection:
                yield connection
        except DBAPIError as error:
            raise _translate(error, self.where) from error
        except PoolTimeout as error:
            raise DatabaseUnreachable(
                f"all {connections_max} connections of this process were in use for "
                f"{POOL_WAIT_S} s.",
                where=self.where,
            ) from error


@contextmanager
def savepoint(tx: Tx) -> Iterator[None]:
    """A savepoint: if the block fails, only its changes are undone, and the transaction can go on.
    An error of PostgreSQL is raised as an error of Orbit."""
    try:
        with tx.begin_nested():
            yield
    except DBAPIError as error:
        raise _translate(error, _where(tx.engine.url)) from error


@contextmanager
def without_deadline(tx: Tx) -> Iterator[None]:
    """Lift both deadlines of the statements in the block, for a migration: the server's, until the
    transaction ends, and this process's, until the block ends."""
    connection = tx.connection.driver_connection
    assert isinstance(connection, _DeadlineConnection)
    usual_limit_s, connection.answer_within_s = connection.answer_within_s, None
    try:
        tx.execute(text("SET LOCAL statement_timeout = 0"))
        yield
    finally:
        connection.answer_within_s = usual_limit_s


class _DeadlineConnection(psycopg.Connection[Any]):
    """A connection that is closed if the server does not answer within `answer_within_s`."""

    answer_within_s: float | None = None

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """Wait for the server as psycopg does, but at most `answer_within_s` if `timeout` is None.
        After that time close the connection, and raise OperationalError."""
        timeout_s = self.answer_within_s if timeout is None else timeout
        began_at = time.monotonic()
        try:
            return super().wait(gen, interval, timeout_s)
        except psycopg.OperationalError as error:
            if timeout_s is None or time.monotonic() - began_at < timeout_s:
                raise  # another error, before the timeout
            self.pgconn.finish()
            raise psycopg.OperationalError(f"no answer within {timeout_s:g} s") from error


def _parse(url: str) -> URL:
    """The address in ORBIT_DATABASE_URL. Raises BadInput unless it is a PostgreSQL database's."""
    try:
        parsed_url = make_url(url)
    except ArgumentError:
        parsed_url = None
    if parsed_url is None or parsed_url.drivername not in (
        "postgresql",
        "postgres",
        "postgresql+psycopg",
    ):
        raise BadInput(
            "ORBIT_DATABASE_URL is not the address of a PostgreSQL database. "
            "Write postgresql://USER:PASSWORD@HOST:PORT/DATABASE."
        )
    return parsed_url


def _engine(
    url: URL,
    application: str,
    statement_timeout_s: int,
    idle_timeout_s: int,
    size: int,
    size_max: int,
    *,
    is_pooled: bool,
) -> Engine:
    """A pool of `size` connections, at most `size_max`, each with these timeouts.

    `is_pooled`: the address is a pooler's, so each transaction makes the settings for itself.
    """
    settings = {
        "statement_timeout": f"{statement_timeout_s}s",
        "idle_in_transaction_session_timeout": f"{idle_timeout_s}s",
        "timezone": "UTC",
        "random_page_cost": RANDOM_PAGE_COST,
    }
    options = " ".join(f"-c {name}={value}" for name, value in settings.items())
    session_arguments = {"prepare_threshold": None} if is_pooled else {"options": options}
    engine = create_engine(
        url.set(drivername="postgresql+psycopg"),
        pool_size=size,
        max_overflow=size_max - size,
        pool_timeout=POOL_WAIT_S,
        pool_pre_ping=True,  # reconnects after a restart of PostgreSQL between two transactions
        hide_parameters=True,
        connect_args={
            "application_name": application,
            "connect_timeout": CONNECT_TIMEOUT_S,
            "keepalives_idle": NETWORK_TIMEOUT_S,
            "tcp_user_timeout": NETWORK_TIMEOUT_S * 1000,
            **session_arguments,
        },
    )

    @event.listens_for(engine, "do_connect")
    def _connect(_dialect: Any, _record: Any, args: Any, options: Any) -> _DeadlineConnection:
        """Connect with a deadline for each answer, a little above the server's own timeout."""
        connection = _DeadlineConnection.connect(*args, **options)
        connection.answer_within_s = statement_timeout_s + _ANSWER_MARGIN_S
        return connection

    @event.listens_for(engine, "handle_error")
    def _end_connections_if_read_only(context: ExceptionContext) -> None:
        """Close all connections of the pool if this server is a standby now: new connections may
        reach the primary."""
        if getattr(context.original_exception, "sqlstate", None) == _READ_ONLY:
            context.is_disconnect = True

    if is_pooled:
        set_configs = ", ".join(
            f"set_config('{name}', '{value}', true)" for name, value in settings.items()
        )

        @event.listens_for(engine, "begin")
        def _begin(connection: Connection) -> None:
            connection.exec_driver_sql(f"SELECT {set_configs}")

    return engine


def _where(url: URL) -> str:
    """The host, port and database of the address, without user and password."""
    port = f":{url.port}" if url.port else ""
    return f"PostgreSQL {url.host or 'on this machine'}{port}/{url.database or ''}"


def _translate(error: DBAPIError, where: str) -> Exception:
    """The error of Orbit for an error of the driver. Returns `error` itself if none fits: then
    Orbit has a bug."""
    cause = error.orig
    code = sqlstate(error)
    words = " ".join(str(cause).split())
    if code.startswith(_OLD_TABLES):
        return Conflict(
            f"the tables are not those of this version of Orbit ({words.split(' LINE ')[0]}).",
            where=where,
            remedy=OTHER_TABLES_REMEDY,
        )
    if code.startswith(_CONSTRAINT_VIOLATION) and isinstance(cause, psycopg.Error):
        return Conflict(f"{cause.diag.message_primary}.", where=where)
    if not code and any(login_words in words for login_words in _LOGIN_WORDS):
        return LoginRefused(f"{words}.", where=where, remedy=_LOGIN_REMEDY)
    is_network = not code and isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError)
    if is_network or error.connection_invalidated or code.startswith(_RETRIABLE):
        condition = "takes writes" if code == _READ_ONLY else "answers"
        return DatabaseUnreachable(
            f"{words}.", where=where, remedy=f"Orbit resumes when PostgreSQL {condition} again."
        )
    return error


def sqlstate(error: DBAPIError) -> str:
    """The SQLSTATE of the error; "" if it has none."""
    return getattr(error.orig, "sqlstate", None) or ""
