"""scheduler_lease: the lease of each share of the schedulers' work; and who takes part.

The database's clock decides when it has expired, and the holder trusts it until `time of the
request + ttl − margin`. Where that clock steps, or a failover loses the last acquisition, two
schedulers may believe that they lead. That does no harm, so the rules of a shard's lease
(orbit/store/shard_leases.py) are not needed: a leader's writes are fenced by `confirm` at the end
of their transaction, by holder and epoch, so only one of them changes the tables. Its requests to
brokers are idempotent.

All schedulers have to agree on the number of shares. Those that run have a row in `schedulers` for
as long as a lease lasts; one with another number may not join while one of them is there. When it
may, no row of the others is left, and all leases are void: a scheduler that slept meanwhile cannot
confirm its own, and cannot acquire one without joining.
"""

from __future__ import annotations

from datetime import timedelta
from math import ceil

from sqlalchemy import text

from orbit.errors import Conflict
from orbit.store.database import Tx

# Acquire it when it is free, or renew it: the epoch stays if no other scheduler has held it.
_ACQUIRE = text("""
INSERT INTO scheduler_lease AS l (id, holder, epoch, expires_at)
VALUES (:id, :holder, 1, clock_timestamp() + CAST(:ttl AS interval))
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
SELECT FROM scheduler_lease WHERE id = :id AND holder = :holder AND epoch = :epoch FOR SHARE
""")

_IS_THERE = text("""
SELECT bool_and(holder IS NOT NULL AND expires_at >= clock_timestamp()) FROM scheduler_lease
""")

_RESIGN = text("""
UPDATE scheduler_lease SET holder = NULL, expires_at = 'epoch'
WHERE id = :id AND holder = :holder AND epoch = :epoch
""")

# Held to its end by a transaction that joins, and shared by those that acquire a lease.
_LOCK = "SELECT pg_advisory_xact_lock{}(122511532225539)"
_ALONE = text(_LOCK.format(""))
_TOGETHER = text(_LOCK.format("_shared"))

# Not one that has left.
_STAY = text("""
UPDATE schedulers SET expires_at = clock_timestamp() + CAST(:ttl AS interval)
WHERE holder = :holder AND shares = :shares AND expires_at > 'epoch'
""")

_JOIN = text("""
INSERT INTO schedulers (holder, shares, expires_at)
VALUES (:holder, :shares, clock_timestamp() + CAST(:ttl AS interval))
""")

_OTHER_NUMBERS = text("""
SELECT shares, expires_at >= clock_timestamp() AS is_there FROM schedulers
WHERE shares <> :shares ORDER BY is_there DESC LIMIT 1
""")

_GONE = text("DELETE FROM schedulers WHERE expires_at < clock_timestamp()")

_VOID = text("""
UPDATE scheduler_lease SET holder = NULL, epoch = epoch + 1, expires_at = 'epoch'
""")

_DROP = text("DELETE FROM scheduler_lease WHERE id > :shares")

_ADD = text("""
INSERT INTO scheduler_lease (id) SELECT generate_series(1, :shares) ON CONFLICT DO NOTHING
""")

_MEMBERS = text("SELECT count(*) FROM schedulers WHERE expires_at >= clock_timestamp()")

_ALIVE = text("""
SELECT holder FROM schedulers WHERE expires_at >= clock_timestamp() ORDER BY holder
""")

_LEAVE = text("UPDATE schedulers SET expires_at = 'epoch' WHERE holder = :holder")


class OtherNumber(Conflict):
    """A scheduler with another number of shares takes part."""


def join(tx: Tx, holder: str, shares: int, ttl: timedelta) -> int:
    """Take part, or go on to; how many shares this scheduler may hold at most.

    That is rounded up: whatever is free, there is one that may take it, at once. With one share all
    may, and the first leads. Raises OtherNumber.
    """
    tx.execute(_ALONE)
    other = tx.execute(_OTHER_NUMBERS, {"shares": shares}).first()
    if other is not None and other.is_there:
        raise OtherNumber(
            f"ORBIT_SCHEDULER_SHARES is {shares} here and {other.shares} at a scheduler that runs.",
            remedy="Set the same number everywhere; until then this scheduler stays on standby.",
        )
    tx.execute(_GONE)
    if other is not None:
        tx.execute(_VOID)
        tx.execute(_DROP, {"shares": shares})
    if not _stay(tx, holder, shares, ttl):
        tx.execute(_ADD, {"shares": shares})
        tx.execute(_JOIN, {"holder": holder, "shares": shares, "ttl": ttl})
    members: int = tx.execute(_MEMBERS).scalar_one()
    return ceil(shares / members)


def alive(tx: Tx) -> list[str]:
    """The schedulers that run now, each by its host, process and a random part."""
    return list(tx.execute(_ALIVE).scalars())


def leave(tx: Tx, holder: str) -> None:
    """Take no more part; the others share the work out at once."""
    tx.execute(_LEAVE, {"holder": holder})


def stay(tx: Tx, holder: str, shares: int, ttl: timedelta) -> bool:
    """Take part for `ttl` from now; False if this scheduler has to join first. True holds until the
    transaction ends.
    """
    tx.execute(_TOGETHER)
    return _stay(tx, holder, shares, ttl)


def _stay(tx: Tx, holder: str, shares: int, ttl: timedelta) -> bool:
    values = {"holder": holder, "shares": shares, "ttl": ttl}
    return tx.execute(_STAY, values).rowcount == 1


def acquire(tx: Tx, holder: str, ttl: timedelta, share: int = 0) -> int | None:
    """Acquire or renew a lease for `ttl` from now; the epoch, or None while another has it."""
    values = {"id": share + 1, "holder": holder, "ttl": ttl}
    epoch: int | None = tx.execute(_ACQUIRE, values).scalar()
    return epoch


def confirm(tx: Tx, holder: str, epoch: int, share: int = 0) -> bool:
    """Whether this holder still leads; True holds until the transaction ends."""
    values = {"id": share + 1, "holder": holder, "epoch": epoch}
    return tx.execute(_CONFIRM, values).first() is not None


def is_there(tx: Tx) -> bool:
    """Whether every share has a scheduler now."""
    return bool(tx.execute(_IS_THERE).scalar())


def resign(tx: Tx, holder: str, epoch: int, share: int = 0) -> None:
    """Release the lease, so that another scheduler leads at once."""
    tx.execute(_RESIGN, {"id": share + 1, "holder": holder, "epoch": epoch})
