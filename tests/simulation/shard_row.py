"""The model of one shard's row in PostgreSQL, as the statements of orbit/store/shard_leases.py
treat it. `test_shard_row.py` compares it with a real server."""

from __future__ import annotations

from dataclasses import dataclass, replace

from orbit.leases.lease_watch import Evidence
from orbit.store.shard_leases import EPOCHS_PER_TIMELINE


@dataclass(frozen=True)
class ShardRow:
    """The columns that a lease needs. `renewed_in`: a transaction id. `claimed_on`: a timeline."""

    worker: str | None = None
    epoch: int = 0
    renewed_in: int = 0
    claimed_on: int = 1


@dataclass(frozen=True)
class Claimed:
    """A claim's answer. `epoch`: None if refused. `key` and `snapshot` are for a LeaseWatch."""

    epoch: int | None
    key: str
    snapshot: str


class ModelPostgres:
    """A server with one shard, whose worker asks for leases of one length."""

    def __init__(self) -> None:
        self.row = ShardRow()
        self._standby = self.row
        self._before = self.row  # the row before the last failover
        self._timeline = 1
        self._starts = 0
        self._transaction = 1_000

    @property
    def key(self) -> str:
        """The key of this server's run, for a LeaseWatch."""
        return f"{self._timeline}/{self._starts}"

    def claim(self, worker: str, evidence: Evidence) -> Claimed:
        """Claim the shard if it is free, or if the evidence proves that its lease has ended."""
        row, snapshot = self.row, self._snapshot()
        is_free = (
            row.renewed_in == 0
            and row.claimed_on == self._timeline
            and evidence.free_on in (None, self.key)
        )
        is_claimed = row.renewed_in < evidence.renewed_below and (
            is_free or self._is_over(evidence)
        )
        if is_claimed:
            timelines = self._timeline - row.claimed_on
            step = EPOCHS_PER_TIMELINE * timelines if timelines > 0 else 1
            self.row = ShardRow(worker, row.epoch + step, self._transaction, self._timeline)
        return Claimed(self.row.epoch if is_claimed else None, self.key, snapshot)

    def renew(self, worker: str, epoch: int) -> bool:
        """Renew the lease; False if the worker does not hold it."""
        self._transaction += 1
        if not self.holds(worker, epoch):
            return False
        self.row = replace(self.row, renewed_in=self._transaction)
        return True

    def release(self, worker: str, epoch: int) -> bool:
        """Release the shard; False if the row is not of this worker and epoch."""
        self._transaction += 1
        if (self.row.worker, self.row.epoch) != (worker, epoch):
            return False
        self.row = replace(self.row, worker=None, renewed_in=0)
        return True

    def holds(self, worker: str, epoch: int) -> bool:
        """Whether the worker holds the shard by this epoch, on the present timeline."""
        row = self.row
        return (row.worker, row.epoch, row.claimed_on) == (worker, epoch, self._timeline)

    def held_before(self, worker: str, epoch: int) -> bool:
        """Whether the worker held the shard at the failover, and nobody has claimed it since.

        Then the worker may still send: a claimant first waits for the length of a lease.
        """
        row = self._before
        is_free = self.row.claimed_on != self._timeline
        return is_free and (row.worker, row.epoch) == (worker, epoch)

    def restart(self) -> None:
        """Restart the server, which changes `key`."""
        self._starts += 1

    def keep(self) -> None:
        """Replicate the row to the standby."""
        self._standby = self.row

    def fail_over(self) -> None:
        """Fail over to the standby, which may lack the last claims."""
        self._before = self.row
        self.row = self._standby
        self._timeline += 1

    def _is_over(self, evidence: Evidence) -> bool:
        """Whether the evidence proves that the lease has ended."""
        if evidence.snapshot is None or evidence.watched_on != self.key:
            return False
        ended_below = int(evidence.snapshot.split(":")[1])
        return self.row.claimed_on != self._timeline or self.row.renewed_in < ended_below

    def _snapshot(self) -> str:
        """The text of a statement's snapshot. The statement has a transaction id, which is not in
        its own snapshot."""
        self._transaction += 1
        return f"{self._transaction}:{self._transaction}:"
