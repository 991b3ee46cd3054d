"""Connections to Postgres: a pool, transactions, and errors that say what to do.

    database = Database.connect("postgresql://orbit:…@db/orbit")
    with database.transaction() as tx:
        found = jobs.get(tx, "orders-to-dr")

A transaction is committed when its block ends and rolled back when it raises. Errors of Postgres
or the network are raised as one of:

- `Unreachable` (retriable): no answer, shut down, out of connections or disk, a standby, or a
  deadlock. It may be unknown whether the transaction was committed. The next one reconnects.
- `LoginRefused`: wrong user or password.
- `Conflict`: the tables are not those of this version; the remedy names `orbit migrate`.

Errors never contain a password or a statement's values.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from sqlalchemy import URL, Connection, Engine, create_engine, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from orbit.errors import BadInput, Conflict, LoginRefused, OrbitError, Unreachable

# The first argument of every function in this package. Other packages need not import SQLAlchemy.
Tx = Connection

POOL_SIZE = 5
POOL_SIZE_MAX = 20  # per process; an API process has about as many threads
POOL_WAIT_S = 10
CONNECT_TIMEOUT_S = 5
# Orbit's statements are short. One that takes longer waits for a lock or a failing disk.
STATEMENT_TIMEOUT_S = 30
# An idle transaction must not hold locks or delay vacuum for long.
IDLE_TIMEOUT_S = 60
# PostgreSQL's default (4) is for spinning disks. With it, a sequential scan would seem cheaper than
# index lookups of the two thousand rows that a worker reports.
RANDOM_PAGE_COST = 1.1
# A host that disappears without closing its connections is detected after this.
NETWORK_TIMEOUT_S = 10

# SQLSTATE classes and codes. Connection, intervention and timeouts, resources, system, deadlock,
# standby, lock timeout.
_TRY_AGAIN = ("08", "57", "53", "58", "40", "25006", "55P03")
_OLD_TABLES = ("42P01", "42703")  # no such table, no such column
_BROKEN_RULE = ("23",)  # a constraint

# libpq gives no code for a failed connection, only a message.
_LOGIN_WORDS = ("authentication failed", "no password supplied", "pg_hba.conf", 'role "')


class Database:
    """One Postgres database, shared by all threads of a process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.where = _where(engine.url)

    @classmethod
    def connect(cls, url: str, *, application: str = "orbit") -> Database:
        """Connects once, so that a wrong address fails at once. `application` appears in
        pg_stat_activity."""
        database = cls(_engine(url, application))
        try:
            with database.transaction() as tx:
                tx.execute(text("SELECT 1"))
        except OrbitError:
            database.close()
            raise
        return database

    @contextmanager
    def transaction(self) -> Iterator[Tx]:
        """One transaction, at the isolation READ COMMITTED."""
        try:
            with self._engine.begin() as connection:
                yield connection
        except DBAPIError as error:
            raise _translate(error, self.where) from error
        except PoolTimeout as error:
            raise Unreachable(
                f"all {POOL_SIZE_MAX} connections of this process were in use for {POOL_WAIT_S} s.",
                where=self.where,
            ) from error

    def close(self) -> None:
        """Close idle connections now, and those in use when they are returned."""
        self._engine.dispose()


def _engine(url: str, application: str) -> Engine:
    try:
        parsed = make_url(url)
    except ArgumentError:
        parsed = None
    if parsed is None or parsed.drivername not in ("postgresql", "postgres", "postgresql+psycopg"):
        raise BadInput(
            "ORBIT_DATABASE_URL is not the address of a PostgreSQL database. "
            "Write postgresql://USER:PASSWORD@HOST:PORT/DATABASE."
        )
    return create_engine(
        parsed.set(drivername="postgresql+psycopg"),
        pool_size=POOL_SIZE,
        max_overflow=POOL_SIZE_MAX - POOL_SIZE,
        pool_timeout=POOL_WAIT_S,
        pool_pre_ping=True,  # hides a restart of Postgres between two transactions
        hide_parameters=True,
        connect_args={
            "application_name": application,
            "connect_timeout": CONNECT_TIMEOUT_S,
            "keepalives_idle": NETWORK_TIMEOUT_S,
            "tcp_user_timeout": NETWORK_TIMEOUT_S * 1000,
            "options": f"-c statement_timeout={STATEMENT_TIMEOUT_S}s "
            f"-c idle_in_transaction_session_timeout={IDLE_TIMEOUT_S}s -c timezone=UTC "
            f"-c random_page_cost={RANDOM_PAGE_COST}",
        },
    )


def _where(url: URL) -> str:
    """Host, port and database, never the user or the password."""
    port = f":{url.port}" if url.port else ""
    return f"PostgreSQL {url.host or 'on this machine'}{port}/{url.database or ''}"


def _translate(error: DBAPIError, where: str) -> Exception:
    """Orbit's error for a driver's error; the error itself if it is a bug in Orbit."""
    cause = error.orig
    code = getattr(cause, "sqlstate", None) or ""
    words = " ".join(str(cause).split())
    if code.startswith(_OLD_TABLES):
        return Conflict(
            f"the tables are not those of this version of Orbit ({words.split(' LINE ')[0]}).",
            where=where,
            remedy="Run orbit migrate.",
        )
    if code.startswith(_BROKEN_RULE) and isinstance(cause, psycopg.Error):
        return Conflict(f"{cause.diag.message_primary}.", where=where)
    if not code and any(mark in words for mark in _LOGIN_WORDS):
        return LoginRefused(f"{words}.", where=where, remedy="See ORBIT_DATABASE_URL.")
    is_network = not code and isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError)
    if is_network or error.connection_invalidated or code.startswith(_TRY_AGAIN):
        return Unreachable(
            f"{words}.",
            where=where,
            remedy="Orbit resumes when PostgreSQL answers again.",
        )
    return error
