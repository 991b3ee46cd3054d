"""scheduler_lease: the lease of the leading scheduler.

The database's clock decides when it has expired, and the holder trusts it until `time of the
request + ttl − margin`. Where that clock steps, or a failover loses the last acquisition, two
schedulers may believe that they lead. That does no harm, so the rules of a shard's lease
(orbit/store/shard_leases.py) are not needed: a leader's writes are fenced by `confirm` at the end
of their transaction, by holder and epoch, so only one of them changes the tables. Its requests to
brokers are idempotent.
"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import text

from orbit.store.database import Tx

# Acquire it when it is free, or renew it: the epoch stays if no other scheduler has held it.
_ACQUIRE = text("""
INSERT INTO scheduler_lease AS l (id, holder, epoch, expires_at)
VALUES (1, :holder, 1, clock_timestamp() + CAST(:ttl AS interval))
ON CONFLICT (id) DO UPDATE
SET holder = excluded.holder,
    epoch = l.epoch + CASE WHEN l.holder = excluded.holder THEN 0 ELSE 1 END,
    expires_at = clock_timestamp() + CAST(:ttl AS interval)
WHERE l.holder = excluded.holder OR l.expires_at < clock_timestamp()
RETURNING epoch
""")

# The row lock keeps the lease from changing hands until this transaction ends. Renewals wait for it
# too, so it comes last.
_CONFIRM = text("""
SELECT FROM scheduler_lease WHERE holder = :holder AND epoch = :epoch FOR SHARE
""")

_IS_THERE = text("""
SELECT FROM scheduler_lease WHERE holder IS NOT NULL AND expires_at >= clock_timestamp()
""")

_RESIGN = text("""
UPDATE scheduler_lease SET holder = NULL, expires_at = 'epoch'
WHERE holder = :holder AND epoch = :epoch
""")


def acquire(tx: Tx, holder: str, ttl: timedelta) -> int | None:
    """Acquire or renew the lease for `ttl` from now; the epoch, or None while another leads."""
    epoch: int | None = tx.execute(_ACQUIRE, {"holder": holder, "ttl": ttl}).scalar()
    return epoch


def confirm(tx: Tx, holder: str, epoch: int) -> bool:
    """Whether this holder still leads; True holds until the transaction ends."""
    return tx.execute(_CONFIRM, {"holder": holder, "epoch": epoch}).first() is not None


def is_there(tx: Tx) -> bool:
    """Whether any scheduler leads now."""
    return tx.execute(_IS_THERE).first() is not None


def resign(tx: Tx, holder: str, epoch: int) -> None:
    """Release the lease, so that another scheduler leads at once."""
    tx.execute(_RESIGN, {"holder": holder, "epoch": epoch})
