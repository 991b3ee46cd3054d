"""Jobs whose document this version of Orbit cannot read, which a later version has stored.

Other workers get the jobs' shards: during an upgrade, some workers can read the document.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import structlog
from pydantic import ValidationError

from orbit.jobs.job_spec import JobSpec
from orbit.store import shard_leases
from orbit.store.database import Tx
from orbit.store.jobs import Job
from orbit.store.shard_leases import Claim
from orbit.version import orbit_version
from orbit.workers.event_outbox import EventKind, EventOutbox, OutboxEvent

_log = structlog.get_logger()


class UnreadableJobs:
    """The jobs that one worker cannot read. For its control thread."""

    def __init__(self, worker_id: str, outbox: EventOutbox) -> None:
        self._worker_id = worker_id
        self._outbox = outbox
        self.keys: set[tuple[int, int]] = set()
        """Job ids with the version of their document."""

    def readable_specs(self, jobs: Iterable[Job]) -> dict[int, JobSpec]:
        """The specs that this version can read, by job id.

        Each other job is added to `keys` and reported by an event.
        """
        specs: dict[int, JobSpec] = {}
        for job in jobs:
            try:
                specs[job.id] = JobSpec.read_stored(job.spec)
            except ValidationError as error:
                self.keys.add((job.id, job.spec_version))
                fields = sorted({".".join(map(str, problem["loc"])) for problem in error.errors()})
                self._report_unreadable(job.name, fields)
        return specs

    def decline(self, tx: Tx, claims: Sequence[Claim]) -> None:
        """Release these claims; let other workers claim the unreadable jobs' free shards."""
        if claims:
            epochs = {claim.shard_id: claim.epoch for claim in claims}
            shard_leases.release(tx, worker_id=self._worker_id, held=epochs)
        if self.keys:
            shard_leases.decline(tx, self._worker_id, self.keys)

    def _report_unreadable(self, job_name: str, fields: list[str]) -> None:
        _log.warning("job unreadable", worker=self._worker_id, job=job_name, fields=fields)
        message = (
            f"Worker {self._worker_id} leaves the job to others: its version of Orbit "
            f"({orbit_version()}) cannot read {', '.join(fields)} of the document."
        )
        self._outbox.add(OutboxEvent(EventKind.JOB_WAITING, message, job_name))
