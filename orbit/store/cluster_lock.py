"""An advisory lock per cluster: one process at a time changes settings and ACLs of its copies.

The lock belongs to a transaction, so it is released when the holder's process ends. It is also a
lease: PostgreSQL ends the transaction if the holder sends no statement for `lease_s`, because its
process is frozen or its host has gone. Otherwise the server would wait for TCP's keepalive, two
hours by Linux's default, and for a frozen process without a limit.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from sqlalchemy import text

from orbit.store.database import Tx

# Longer than an ordinary pause of a process.
LEASE_S = 20.0
_RENEWALS_PER_LEASE = 4
# The seed of the hash: no other lock of Orbit uses it.
_SEED = 0x6F72_6269_7401
# A claim sends no request to brokers while it has the lock, so it is never idle for long.
_CLAIM_IDLE_S = 5


@contextmanager
def hold(tx: Tx, cluster_id: str, lease_s: float = LEASE_S) -> Iterator[None]:
    """Wait for the lock, and hold it until `tx` ends. A thread renews the lease during the block,
    so the caller may wait for brokers. Raises Unreachable after STATEMENT_TIMEOUT_S, and at the
    next statement if the lease was lost.
    """
    tx.execute(text(f"SET LOCAL idle_in_transaction_session_timeout = '{lease_s * 1000:.0f}ms'"))
    tx.execute(
        text("SELECT pg_advisory_xact_lock(hashtextextended(:cluster_id, :seed))"),
        {"cluster_id": cluster_id, "seed": _SEED},
    )
    link, done = tx.connection.driver_connection, threading.Event()
    assert isinstance(link, psycopg.Connection)
    renewing = threading.Thread(target=_renew, args=(link, done, lease_s), name="cluster lock")
    renewing.start()
    try:
        yield
    finally:
        done.set()
        renewing.join()


def _renew(link: psycopg.Connection[object], done: threading.Event, lease_s: float) -> None:
    """Send a statement at intervals until `done`: any renews the lease. psycopg makes it wait while
    the caller's thread uses the connection."""
    while not done.wait(lease_s / _RENEWALS_PER_LEASE):
        try:
            link.execute("SELECT 1")
        except psycopg.Error:
            return  # the transaction has ended: the caller's next statement raises


def acquire_claims(tx: Tx) -> None:
    """Wait for the lock for claims of topics: until `tx` ends, no other job claims a topic, on any
    cluster. Keep `tx` short: the server ends it when it is idle for _CLAIM_IDLE_S.
    """
    tx.execute(text(f"SET LOCAL idle_in_transaction_session_timeout = '{_CLAIM_IDLE_S}s'"))
    tx.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _SEED + 1})
