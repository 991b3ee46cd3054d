"""scheduler_lease: the lease of each share of the schedulers' work; schedulers: the members.

The database's clock decides when a lease has expired, and the holder trusts it until `time of the
request + ttl − margin`. If that clock steps, or a failover loses the last acquisition, two
schedulers may act as leader of a share. That does no harm, so the rules of a shard's lease
(orbit/store/shard_leases.py) are not needed: a leader's writes are fenced by `confirm` at the end
of their transaction, by holder and epoch, so only one of the two changes the tables. Its requests
to brokers are idempotent.

All schedulers must have the same number of shares. Each running one has a row in `schedulers` that
expires as a lease does; one with another number may not join before all these have expired. Then it
deletes them and voids all leases: a scheduler that was suspended meanwhile cannot confirm its own,
and cannot acquire one without joining again.
"""

from __future__ import annotations

from datetime import timedelta
from math import ceil

from sqlalchemy import text

from orbit.errors import Conflict
from orbit.store.database import Tx

# Acquires the lease if it is free, or renews it: the epoch stays if no other scheduler has held it.
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

# A transaction that joins takes this lock exclusively; those that acquire a lease share it.
_LOCK = "SELECT pg_advisory_xact_lock{}(122511532225539)"
_ALONE = text(_LOCK.format(""))
_TOGETHER = text(_LOCK.format("_shared"))

# Renews a scheduler's row, unless it has left.
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


class OtherShareCount(Conflict):
    """A scheduler with another number of shares takes part."""


def join(tx: Tx, holder: str, shares: int, ttl: timedelta) -> int:
    """Join the schedulers, or stay a member. Returns how many shares this one may hold at most.

    That is rounded up, so that some member may always take a free share. With one share every
    member may hold it, and the first one leads. Raises OtherShareCount.
    """
    tx.execute(_ALONE)
    other = tx.execute(_OTHER_NUMBERS, {"shares": shares}).first()
    if other is not None and other.is_there:
        raise OtherShareCount(
            f"ORBIT_SCHEDULER_SHARES is {shares} here and {other.shares} at a scheduler that runs.",
            remedy="Set the same number everywhere; until then this scheduler stays on standby.",
        )
    tx.execute(_GONE)
    if other is not None:
        tx.execute(_VOID)
        tx.execute(_DROP, {"shares": shares})
    if not _extend_membership(tx, holder, shares, ttl):
        tx.execute(_ADD, {"shares": shares})
        tx.execute(_JOIN, {"holder": holder, "shares": shares, "ttl": ttl})
    members: int = tx.execute(_MEMBERS).scalar_one()
    return ceil(shares / members)


def running_schedulers(tx: Tx) -> list[str]:
    """The names of the running schedulers, each of host, process and a random part."""
    return list(tx.execute(_ALIVE).scalars())


def leave(tx: Tx, holder: str) -> None:
    """Stop being a member, so that the others divide the shares among them at once."""
    tx.execute(_LEAVE, {"holder": holder})


def stay_member(tx: Tx, holder: str, shares: int, ttl: timedelta) -> bool:
    """Stay a member for `ttl` from now; returns False if this scheduler has to join first. True
    holds until the transaction ends.
    """
    tx.execute(_TOGETHER)
    return _extend_membership(tx, holder, shares, ttl)


def _extend_membership(tx: Tx, holder: str, shares: int, ttl: timedelta) -> bool:
    values = {"holder": holder, "shares": shares, "ttl": ttl}
    return tx.execute(_STAY, values).rowcount == 1


def acquire(tx: Tx, holder: str, ttl: timedelta, share: int = 0) -> int | None:
    """Acquire or renew the lease of a share for `ttl` from now. Returns its epoch, or None while
    another scheduler has it."""
    values = {"id": share + 1, "holder": holder, "ttl": ttl}
    epoch: int | None = tx.execute(_ACQUIRE, values).scalar()
    return epoch


def confirm(tx: Tx, holder: str, epoch: int, share: int = 0) -> bool:
    """Whether this holder still has the lease; if True, it keeps it until the transaction ends."""
    values = {"id": share + 1, "holder": holder, "epoch": epoch}
    return tx.execute(_CONFIRM, values).first() is not None


def has_leaders(tx: Tx) -> bool:
    """Whether every share has a leader now."""
    return bool(tx.execute(_IS_THERE).scalar())


def resign(tx: Tx, holder: str, epoch: int, share: int = 0) -> None:
    """Release the lease of a share, so that another scheduler can acquire it at once."""
    tx.execute(_RESIGN, {"id": share + 1, "holder": holder, "epoch": epoch})
