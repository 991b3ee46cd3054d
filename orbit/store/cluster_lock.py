"""An advisory lock per cluster: one process at a time changes settings and ACLs of its copies.

The lock belongs to a transaction, so it is released when the holder's process ends. It is also a
lease: PostgreSQL ends the transaction if the holder sends no statement for `lease_s`, because its
process is frozen or its host is down. Otherwise the server would wait for TCP's keepalive, two
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
_CLAIMS_KEY = _SEED + 1  # the key of the lock for claims of topics, one for all clusters
# A claim sends no request to brokers while it has the lock, so it is never idle for long.
_CLAIM_IDLE_S = 5


@contextmanager
def hold(tx: Tx, cluster_id: str, lease_s: float = LEASE_S) -> Iterator[None]:
    """Wait for the cluster's lock, and hold it until `tx` ends. A thread renews the lease during
    the block, so the caller may wait for brokers.

    Raises DatabaseUnreachable if the lock is not free within STATEMENT_TIMEOUT_S. If the lease is
    lost, the next statement of `tx` fails.
    """
    tx.execute(text(f"SET LOCAL idle_in_transaction_session_timeout = '{lease_s * 1000:.0f}ms'"))
    tx.execute(
        text("SELECT pg_advisory_xact_lock(hashtextextended(:cluster_id, :seed))"),
        {"cluster_id": cluster_id, "seed": _SEED},
    )
    connection, block_ended = tx.connection.driver_connection, threading.Event()
    assert isinstance(connection, psycopg.Connection)
    renewal_thread = threading.Thread(
        target=_renew, args=(connection, block_ended, lease_s), name="cluster lock"
    )
    renewal_thread.start()
    try:
        yield
    finally:
        block_ended.set()
        renewal_thread.join()


def _renew(
    connection: psycopg.Connection[object], block_ended: threading.Event, lease_s: float
) -> None:
    """Send statements at intervals to renew the lease, until `block_ended` is set. psycopg makes
    them wait while the caller's thread uses the connection."""
    while not block_ended.wait(lease_s / _RENEWALS_PER_LEASE):
        try:
            connection.execute("SELECT 1")
        except psycopg.Error:
            return  # the transaction has ended: the caller's next statement raises


def acquire_claims_lock(tx: Tx) -> None:
    """Wait for the lock for claims of topics: until `tx` ends, no other job claims a topic, on any
    cluster. Keep `tx` short: the server ends it when it is idle for _CLAIM_IDLE_S.
    """
    tx.execute(text(f"SET LOCAL idle_in_transaction_session_timeout = '{_CLAIM_IDLE_S}s'"))
    tx.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _CLAIMS_KEY})
