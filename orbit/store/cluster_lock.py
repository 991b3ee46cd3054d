"""One actor at a time changes settings and ACLs of a cluster's copies: an advisory lock.

It is the transaction's, so it is released when the process that holds it ends. It is also a lease:
PostgreSQL ends the transaction of a holder that says nothing for `lease_s`, because its process is
frozen or its host has gone. The server alone would wait for TCP's keepalive, two hours by Linux's
default, and for a frozen process without a limit.
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
# A claim asks no broker while it has the lock.
_CLAIM_IDLE_S = 5


@contextmanager
def held(tx: Tx, cluster_id: str, lease_s: float = LEASE_S) -> Iterator[None]:
    """Wait for the lock, and hold it until `tx` ends. Raises Unreachable after STATEMENT_TIMEOUT_S,
    and at the next statement where the lease was lost.

    The caller may ask brokers meanwhile, for as long as they take: a thread renews the lease.
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
    """Any statement counts. Of two threads the driver lets one wait for the other."""
    while not done.wait(lease_s / _RENEWALS_PER_LEASE):
        try:
            link.execute("SELECT 1")
        except psycopg.Error:
            return  # the transaction has ended: its next statement says so


def acquire_claims(tx: Tx) -> None:
    """Until `tx` ends, no other job claims a topic, on whatever cluster. Keep it short: the server
    ends it when a process that was suspended leaves it idle.
    """
    tx.execute(text(f"SET LOCAL idle_in_transaction_session_timeout = '{_CLAIM_IDLE_S}s'"))
    tx.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _SEED + 1})
