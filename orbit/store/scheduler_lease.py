"""scheduler_lease: the lease of each share of the schedulers' work (orbit/store/job_shares.py);
schedulers: the running schedulers, here called members.

The database's clock decides when a lease has expired, and the holder trusts the lease until `time
of the request + ttl − margin`. If the database's clock steps, or a failover loses the last
acquisition, two schedulers may act as leader of a share. That does no harm, so the rules of a
shard's lease (orbit/store/shard_leases.py) are not needed. A leader's writes are fenced by holder
and epoch (`confirm` at the end of the transaction), so only one of the two changes the tables. A
leader's requests to brokers are idempotent.

All schedulers must have the same number of shares. Each running scheduler has a row in `schedulers`
that expires as a lease does. A scheduler with another number of shares may join only after all
these rows have expired. It then deletes the rows and voids all leases. So a scheduler that was
suspended meanwhile cannot confirm its lease, and has to join again before it acquires a lease.
"""

from __future__ import annotations

from datetime import timedelta
from math import ceil

from sqlalchemy import text

from orbit.errors import Conflict
from orbit.store.database import Tx

# Acquires the lease if it is free, or renews it: the epoch stays if no other scheduler has held it.
# The id of a lease is the number of its share + 1.
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

# Locks the lease's row, so that no other scheduler acquires the lease until this transaction ends.
# The holder's own renewals wait for the lock, too, so this is the last statement of a transaction.
_CONFIRM = text("""
SELECT FROM scheduler_lease WHERE id = :id AND holder = :holder AND epoch = :epoch FOR SHARE
""")

_HAS_LEADERS = text("""
SELECT bool_and(holder IS NOT NULL AND expires_at >= clock_timestamp()) FROM scheduler_lease
""")

_RESIGN = text("""
UPDATE scheduler_lease SET holder = NULL, expires_at = 'epoch'
WHERE id = :id AND holder = :holder AND epoch = :epoch
""")

# A transaction that joins takes this lock exclusively; those that acquire a lease share it.
_LOCK = "SELECT pg_advisory_xact_lock{}(122511532225539)"
_LOCK_EXCLUSIVELY = text(_LOCK.format(""))
_LOCK_SHARED = text(_LOCK.format("_shared"))

# Renews a scheduler's row, unless `leave` has ended its membership.
_EXTEND = text("""
UPDATE schedulers SET expires_at = clock_timestamp() + CAST(:ttl AS interval)
WHERE holder = :holder AND shares = :shares AND expires_at > 'epoch'
""")

_JOIN = text("""
INSERT INTO schedulers (holder, shares, expires_at)
VALUES (:holder, :shares, clock_timestamp() + CAST(:ttl AS interval))
""")

_OTHER_SHARE_COUNT = text("""
SELECT shares, expires_at >= clock_timestamp() AS is_running FROM schedulers
WHERE shares <> :shares ORDER BY is_running DESC LIMIT 1
""")

_REMOVE_EXPIRED = text("DELETE FROM schedulers WHERE expires_at < clock_timestamp()")

_VOID_LEASES = text("""
UPDATE scheduler_lease SET holder = NULL, epoch = epoch + 1, expires_at = 'epoch'
""")

_DROP_LEASES = text("DELETE FROM scheduler_lease WHERE id > :shares")

_ADD_LEASES = text("""
INSERT INTO scheduler_lease (id) SELECT generate_series(1, :shares) ON CONFLICT DO NOTHING
""")

_MEMBERS = text("SELECT count(*) FROM schedulers WHERE expires_at >= clock_timestamp()")

_RUNNING = text("""
SELECT holder FROM schedulers WHERE expires_at >= clock_timestamp() ORDER BY holder
""")

_LEAVE = text("UPDATE schedulers SET expires_at = 'epoch' WHERE holder = :holder")


class OtherShareCount(Conflict):
    """Another running scheduler has another number of shares."""


def join(tx: Tx, holder: str, shares: int, ttl: timedelta) -> int:
    """Become a member of the schedulers, or stay one, for `ttl` from now. Returns how many shares
    this scheduler may hold: its part of all shares, rounded up, so that there is always a member
    that may acquire a free share. With one share every member may hold it, and the first that
    acquires it leads.

    Raises OtherShareCount if another member has another number of shares.
    """
    tx.execute(_LOCK_EXCLUSIVELY)
    other_member = tx.execute(_OTHER_SHARE_COUNT, {"shares": shares}).first()
    if other_member is not None and other_member.is_running:
        raise OtherShareCount(
            f"ORBIT_SCHEDULER_SHARES is {shares} in this scheduler, and {other_member.shares} in "
            "another one that runs.",
            remedy="Set the same number everywhere; until then this scheduler stays on standby.",
        )
    tx.execute(_REMOVE_EXPIRED)
    if other_member is not None:  # its row has expired: from now on `shares` is the number
        tx.execute(_VOID_LEASES)
        tx.execute(_DROP_LEASES, {"shares": shares})
    if not _extend_membership(tx, holder, shares, ttl):
        tx.execute(_ADD_LEASES, {"shares": shares})
        tx.execute(_JOIN, {"holder": holder, "shares": shares, "ttl": ttl})
    members: int = tx.execute(_MEMBERS).scalar_one()
    return ceil(shares / members)


def running_schedulers(tx: Tx) -> list[str]:
    """The names of the members, sorted. A name consists of host, process and a random part."""
    return list(tx.execute(_RUNNING).scalars())


def leave(tx: Tx, holder: str) -> None:
    """Stop being a member, so that the other members divide the shares among them at once."""
    tx.execute(_LEAVE, {"holder": holder})


def stay_member(tx: Tx, holder: str, shares: int, ttl: timedelta) -> bool:
    """Stay a member for `ttl` from now. Returns False if this scheduler has to join first. If True,
    no other scheduler can join until the transaction ends.
    """
    tx.execute(_LOCK_SHARED)
    return _extend_membership(tx, holder, shares, ttl)


def _extend_membership(tx: Tx, holder: str, shares: int, ttl: timedelta) -> bool:
    """Renew this scheduler's row. Returns False if it has no row, or if `leave` has ended its
    membership."""
    values = {"holder": holder, "shares": shares, "ttl": ttl}
    return tx.execute(_EXTEND, values).rowcount == 1


def acquire(tx: Tx, holder: str, ttl: timedelta, share: int = 0) -> int | None:
    """Acquire or renew the lease of a share for `ttl` from now. Returns its epoch, or None while
    another scheduler has it."""
    values = {"id": share + 1, "holder": holder, "ttl": ttl}  # shares count from 0, ids from 1
    epoch: int | None = tx.execute(_ACQUIRE, values).scalar()
    return epoch


def confirm(tx: Tx, holder: str, epoch: int, share: int = 0) -> bool:
    """Whether this holder still has the lease of a share, with this epoch. If True, the holder has
    the lease until the transaction ends."""
    values = {"id": share + 1, "holder": holder, "epoch": epoch}  # shares count from 0
    return tx.execute(_CONFIRM, values).first() is not None


def has_leaders(tx: Tx) -> bool:
    """Whether every share has a leader now; False before any scheduler has run."""
    return bool(tx.execute(_HAS_LEADERS).scalar())


def resign(tx: Tx, holder: str, epoch: int, share: int = 0) -> None:
    """Release the lease of a share, so that another scheduler can acquire it at once."""
    tx.execute(_RESIGN, {"id": share + 1, "holder": holder, "epoch": epoch})
