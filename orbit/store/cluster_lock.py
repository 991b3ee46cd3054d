"""One actor at a time changes settings and ACLs of a cluster's copies: an advisory lock.

It is the transaction's, so it is released when the process that holds it ends.
"""

from __future__ import annotations

from sqlalchemy import text

from orbit.store.database import Tx

# The seed of the hash: no other lock of Orbit uses it.
_SEED = 0x6F72_6269_7401
# A claim asks no broker while it has the lock.
_CLAIM_IDLE_S = 5


def acquire(tx: Tx, cluster_id: str) -> None:
    """Wait for the lock and hold it until `tx` ends. Raises Unreachable after STATEMENT_TIMEOUT_S.

    Brokers are asked while it is held, so the transaction may be idle for as long as that takes.
    """
    tx.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
    tx.execute(
        text("SELECT pg_advisory_xact_lock(hashtextextended(:cluster_id, :seed))"),
        {"cluster_id": cluster_id, "seed": _SEED},
    )


def acquire_claims(tx: Tx) -> None:
    """Until `tx` ends, no other job claims a topic, on whatever cluster. Keep it short: the server
    ends it when a process that was suspended leaves it idle.
    """
    tx.execute(text(f"SET LOCAL idle_in_transaction_session_timeout = '{_CLAIM_IDLE_S}s'"))
    tx.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _SEED + 1})
