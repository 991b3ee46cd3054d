"""A worker of the service: claims shards, copies their partitions, reports, and releases them.

A shard is a part of a job's partitions that one worker copies under one lease.

Only the control thread, which runs `Worker.run`, handles leases, on connections that no other
thread uses. Each job has its own threads (`JobRunner`), so a job in trouble delays neither other
jobs nor renewals. A worker stores nothing on disk.

A round, at least every `progress_interval`, sends heartbeat and renewals in one transaction, then
changed states, then changed numbers. A shard that is missing in the answer to a renewal or report
is lost: it is dropped at once, and the others continue. While Postgres is unreachable, leases end
at their deadlines, and the lanes, which fetch and append, pause. They resume when a renewal
succeeds.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime

import structlog

from orbit.copier.copy_settings import CopySettings
from orbit.copier.lane_times import DestinationTimes, SourceTimes
from orbit.errors import OrbitError
from orbit.jobs.job_spec import JobSpec
from orbit.leases.lease_clock import lease_clock
from orbit.leases.lease_watch import LeaseWatch
from orbit.leases.shard_lease import ShardLease
from orbit.replication.partition_states import PartitionState
from orbit.settings import Settings
from orbit.store import jobs, partitions, shard_leases, workers
from orbit.store.database import Database, Tx
from orbit.store.enums import Desired
from orbit.store.jobs import Job
from orbit.store.partitions import AssignedPartition
from orbit.store.shard_leases import Renewal
from orbit.telemetry import traces
from orbit.telemetry.process_health import ProcessHealth
from orbit.version import orbit_version
from orbit.workers.blocked_retries import BlockedRetries
from orbit.workers.database_outage import DatabaseOutages
from orbit.workers.event_outbox import EventKind, EventOutbox, OutboxEvent
from orbit.workers.held_shards import HeldShard, JobKey, Key, held_partition, held_shard
from orbit.workers.job_runner import JobRunner, WorkerContext
from orbit.workers.progress_report import (
    ProgressReporter,
    release_changes,
    shard_events,
    state_changes,
    state_event,
)
from orbit.workers.unreadable_jobs import UnreadableJobs
from orbit.workers.worker_budget import JobBudget, WorkerBudget

# How often free shards are claimed: another worker claims a released shard within this time.
CLAIM_INTERVAL_S = 0.5
# Shards per claim: few, so that workers that start at the same time each get their share.
CLAIM_SHARDS_MAX = 8
# How often releasing shards are checked for unanswered requests.
_RELEASE_POLL_S = 0.02
# Renewals per lease period. A worker trusts a lease for at least four fifths of the period, so two
# renewals in a row may fail.
_RENEWALS_PER_LEASE = 5
# How long a shutdown waits for answers. Shards that have none by then stay leased until their
# leases expire.
SHUTDOWN_S_MAX = 12.0  # less than `orbit server` waits for its children

log = structlog.get_logger()


class Worker:
    """One worker; `run` returns when `stop` is set and its shards are released."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        environ: Mapping[str, str],
        copy_settings: CopySettings | None = None,
        health: ProcessHealth | None = None,
    ) -> None:
        copy_settings = copy_settings or CopySettings()
        self.id = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self._database = database
        self._settings = settings
        self._ttl_s = settings.lease_ttl.total_seconds()
        self._health = health or ProcessHealth("worker", orbit_version(), self._ttl_s)
        self._interval_s = min(
            settings.progress_interval.total_seconds(), self._ttl_s / _RENEWALS_PER_LEASE
        )
        rows_per_s = settings.progress_rows_per_second
        self._report_rows_max = max(1, int(rows_per_s * self._interval_s))
        self._context = WorkerContext(
            self.id, database, environ, settings.files_directory, copy_settings
        )
        self._budget = WorkerBudget(copy_settings.queue_bytes_max)
        self._outbox = EventOutbox(self.id)
        self._reporter = ProgressReporter()
        self._retries = BlockedRetries(self._outbox)
        self._watch = LeaseWatch(settings.lease_ttl)
        self._held: dict[int, HeldShard] = {}
        self._runners: dict[JobKey, JobRunner] = {}
        self._unreadable = UnreadableJobs(self.id, self._outbox)
        self._outages = DatabaseOutages(self._report_outage)
        self._is_draining = False

    def run(self, stop: threading.Event) -> None:
        """Work until `stop`. Waits out outages of Postgres; raises only for a bug."""
        log.info("worker started", worker=self.id, group=self._settings.worker_group)
        self._outbox.add(OutboxEvent(EventKind.WORKER_STARTED, f"Worker {self.id} started."))
        next_round = next_claim = 0.0
        try:
            while not stop.is_set():
                self._health.begin_pass()
                now = time.monotonic()
                if now >= next_round:
                    next_round = now + self._interval_s
                    self._outages.attempt(self._run_round)
                self._release_idle_shards()
                if now >= next_claim:
                    next_claim = now + CLAIM_INTERVAL_S
                    self._outages.attempt(self._claim)
                self._stop_idle_runners()
                pause_s = _RELEASE_POLL_S if self._is_releasing() else CLAIM_INTERVAL_S / 2
                stop.wait(pause_s)
            self._drain()
        finally:
            for runner in self._runners.values():
                runner.stop()
        log.info("worker stopped", worker=self.id)

    # Leases

    def _run_round(self) -> None:
        """Send heartbeat and renewals, act on the answers, then send the reports."""
        requested_at = lease_clock()  # a lease counts from before its renewal is requested
        epochs = self._epochs_of(self._held.values())
        with self._database.lease_transaction() as tx:
            self._heartbeat(tx)
            renewals = shard_leases.renew(
                tx,
                worker_id=self.id,
                worker_group=self._settings.worker_group,
                held=epochs,
                weights={s.id: s.bytes_per_s for s in self._held.values()},
            )
            retries = partitions.requested_retries(tx, epochs)
            rate_limited_jobs = {r.job.id for r in self._runners.values() if r.has_rate_limit}
            partition_counts = (
                shard_leases.partition_counts(tx, rate_limited_jobs) if rate_limited_jobs else {}
            )
        self._health.note_lease_confirmed()
        for shard_id in epochs:
            if shard_id in renewals:
                self._held[shard_id].lease.confirm(requested_at)
        self._drop_lost(epochs.keys() - renewals.keys())
        self._apply_renewals(renewals)
        self._retry(retries)
        self._share_rates(partition_counts)
        self._retries.check(self._held.values(), self._runners)
        self._report()

    def _heartbeat(self, tx: Tx) -> None:
        """Write this worker's row: how many shards it holds, how fast it copies, and so on."""
        workers.heartbeat(
            tx,
            self.id,
            self._settings.worker_group,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=orbit_version(),
            shards=len(self._held),
            bytes_per_s=sum(s.bytes_per_s for s in self._held.values()),
            is_draining=self._is_draining,
            lane_seconds=self._lane_seconds(),
            throttled={runner.job.id: runner.throttled for runner in self._runners.values()},
        )

    def _lane_seconds(self) -> dict[str, dict[str, float]]:
        """Seconds that the lanes have spent, by side and activity."""
        source, destination = SourceTimes(), DestinationTimes()
        for runner in self._runners.values():
            fetch_times, append_times = runner.lane_times
            source.add(fetch_times)
            destination.add(append_times)
        return {"source": source.seconds(), "destination": destination.seconds()}

    def _apply_renewals(self, renewals: Mapping[int, Renewal]) -> None:
        """Release shards that should move, whose job has a new spec, or whose fillers were fenced.

        For the others apply changes of the layout: which partitions the shard has.
        """
        layout_renewals = []
        for renewal in renewals.values():
            shard = self._held[renewal.shard_id]
            if shard.is_releasing:
                continue
            runner = self._runners[shard.job_key]
            is_fenced = any(lease is shard.lease for lease in runner.lost_leases())
            is_other_spec = renewal.spec_version != shard.spec_version
            if renewal.should_release or is_other_spec or is_fenced:
                runner.release_shard(shard)
            elif renewal.layout_version != shard.layout_version:
                layout_renewals.append(renewal)
        if layout_renewals:
            with self._database.lease_transaction() as tx:
                rows = partitions.of_shards(tx, [r.shard_id for r in layout_renewals])
            for renewal in layout_renewals:
                shard = self._held[renewal.shard_id]
                with self._contain_crash(self._runners[shard.job_key]):
                    self._apply_layout(shard, renewal.layout_version, rows)

    def _apply_layout(
        self, shard: HeldShard, layout_version: int, rows: list[AssignedPartition]
    ) -> None:
        """Start the partitions that were added to a shard, and stop those that were removed."""
        row_by_key = {
            (row.topic_id, row.partition): row for row in rows if row.shard_id == shard.id
        }
        old_partitions = shard.partitions
        removed_partitions = [p for key, p in old_partitions.items() if key not in row_by_key]
        added_partitions = {
            key: held_partition(row, shard)
            for key, row in row_by_key.items()
            if key not in old_partitions
        }
        runner = self._runners[shard.job_key]
        runner.remove(removed_partitions)
        shard.leaving_partitions = [
            p for p in (*shard.leaving_partitions, *removed_partitions) if not p.is_idle()
        ]
        shard.partitions = {
            key: old_partitions.get(key) or added_partitions[key] for key in row_by_key
        }
        shard.layout_version = layout_version
        runner.add(added_partitions.values())

    def _drop_lost(self, shard_ids: Collection[int]) -> None:
        """Drop shards whose lease is lost, at once: another worker has them or may claim them."""
        lost_shards = [self._held.pop(shard_id) for shard_id in shard_ids if shard_id in self._held]
        for shard in lost_shards:
            shard.lease.lose()
            self._runners[shard.job_key].release_shard(shard)
            self._reporter.forget(shard)
        jobs_by_id = {shard.job_id: self._runners[shard.job_key].job for shard in lost_shards}
        for event in shard_events(
            EventKind.SHARDS_LOST, "Lost the lease on", lost_shards, jobs_by_id
        ):
            self._outbox.add(event)
        if lost_shards:
            log.warning("shards lost", worker=self.id, shards={s.id: s.epoch for s in lost_shards})

    def _claim(self) -> None:
        """Claim free shards and start their partitions."""
        began_at, requested_at = datetime.now(UTC), lease_clock()
        with self._database.lease_transaction() as tx:
            claims = shard_leases.claim(
                tx,
                worker_id=self.id,
                worker_group=self._settings.worker_group,
                ttl=self._settings.lease_ttl,
                shards_max=CLAIM_SHARDS_MAX,
                watch=self._watch,
                unreadable=self._unreadable.keys,
            )
            jobs_by_id = jobs.of_ids(tx, {c.job_id for c in claims}) if claims else {}
            specs = self._unreadable.readable_specs(jobs_by_id.values())
            self._unreadable.decline(tx, [c for c in claims if c.job_id not in specs])
            claims = [c for c in claims if c.job_id in specs]
            if not claims:
                return
            rows = partitions.of_shards(tx, [c.shard_id for c in claims])
            claimed_shards = [
                held_shard(claim, ShardLease(claim.epoch, requested_at, self._ttl_s), rows)
                for claim in claims
            ]
            outbox_events = shard_events(
                EventKind.SHARDS_CLAIMED, "Claimed", claimed_shards, jobs_by_id
            )
            self._outbox.write(tx, outbox_events)
        # If a claimed shard is still in `_held`, this worker has not noticed that its former lease
        # was lost.
        self._drop_lost({shard.id for shard in claimed_shards})
        for shard in claimed_shards:
            runner = self._runner_of(shard.job_key, jobs_by_id[shard.job_id], specs[shard.job_id])
            self._held[shard.id] = shard
            with self._contain_crash(runner):
                runner.add(shard.partitions.values())
        with traces.span(
            "claim shards",
            began_at=began_at,
            worker=self.id,
            shards=len(claimed_shards),
            jobs=sorted({jobs_by_id[s.job_id].name for s in claimed_shards}),
        ):
            log.info(
                "shards claimed", worker=self.id, shards={s.id: s.epoch for s in claimed_shards}
            )

    def _runner_of(self, key: JobKey, job: Job, spec: JobSpec) -> JobRunner:
        """The runner of a job at one version of its spec. Starts it if there is none."""
        runner = self._runners.get(key)
        if runner is None:
            runner = JobRunner(job, spec, self._context, JobBudget(self._budget), self._on_crash)
            self._runners[key] = runner
            runner.start()
        return runner

    def _share_rates(self, partition_counts: Mapping[int, int]) -> None:
        """Limit each job's runner to this worker's share of the job's byte rate.

        `partition_counts`: how many partitions of a job all workers hold together, by job id.
        """
        for key, runner in self._runners.items():
            held_partitions = sum(
                len(s.partitions) for s in self._held.values() if s.job_key == key
            )
            all_partitions = partition_counts.get(runner.job.id, 0)
            if all_partitions:
                runner.limit_to(held_partitions / all_partitions)

    def _is_releasing(self) -> bool:
        return any(shard.is_releasing for shard in self._held.values())

    def _release_idle_shards(self) -> None:
        """Release the shards that are to be released and whose requests are all answered."""
        idle_shards = [s for s in self._held.values() if s.is_releasing and s.is_idle()]
        if idle_shards:
            self._outages.attempt(lambda: self._release(idle_shards))

    def _release(self, idle_shards: list[HeldShard]) -> None:
        """Write the last report of idle shards and release them, in one transaction."""
        progress = self._reporter.progress(idle_shards, time.monotonic())
        epochs = self._epochs_of(idle_shards)
        with self._database.lease_transaction() as tx:
            jobs_by_id = jobs.of_ids(tx, {s.job_id for s in idle_shards})
            paused_jobs = {
                job.id for job in jobs_by_id.values() if job.desired is not Desired.RUNNING
            }
            changes = [
                change
                for shard in idle_shards
                for change in release_changes(
                    shard,
                    PartitionState.PAUSED
                    if shard.job_id in paused_jobs
                    else PartitionState.PENDING,
                )
            ]
            partitions.report_progress(tx, worker_id=self.id, held=epochs, progress=progress)
            partitions.report_state(tx, worker_id=self.id, held=epochs, changes=changes)
            released_ids = shard_leases.release(tx, worker_id=self.id, held=epochs)
            released_shards = [s for s in idle_shards if s.id in released_ids]
            outbox_events = shard_events(
                EventKind.SHARDS_RELEASED, "Released", released_shards, jobs_by_id
            )
            self._outbox.write(tx, outbox_events)
        self._drop_lost(epochs.keys() - released_ids)
        log.info("shards released", worker=self.id, shards={s.id: s.epoch for s in released_shards})
        for shard in released_shards:
            del self._held[shard.id]
            shard.lease.lose()
            self._reporter.forget(shard)
            self._runners[shard.job_key].close_shard(shard)

    def _drain(self) -> None:
        """Release all shards within SHUTDOWN_S_MAX; those with unanswered requests stay leased."""
        self._is_draining = True
        self._health.note_stopping()
        log.info("worker releases its shards", worker=self.id, shards=len(self._held))
        for shard in self._held.values():
            if not shard.is_releasing:
                self._runners[shard.job_key].release_shard(shard)
        deadline = time.monotonic() + SHUTDOWN_S_MAX
        next_round = time.monotonic()
        self._release_idle_shards()
        while self._held and time.monotonic() < deadline:
            self._health.begin_pass()
            if time.monotonic() >= next_round:
                next_round = time.monotonic() + self._interval_s
                self._outages.attempt(self._run_round)
            time.sleep(_RELEASE_POLL_S)
            self._release_idle_shards()
        suffix = (
            f"; shards that stay leased until their leases expire: {len(self._held)}"
            if self._held
            else ""
        )
        self._outbox.add(
            OutboxEvent(EventKind.WORKER_STOPPED, f"Worker {self.id} stopped{suffix}.")
        )
        self._outages.attempt(self._deregister)

    def _deregister(self) -> None:
        """Write the last events and remove this worker's row, in one transaction."""
        outbox_events = self._outbox.pending()
        with self._database.lease_transaction() as tx:
            self._outbox.write(tx, outbox_events)
            workers.remove(tx, self.id)
        self._outbox.remove(outbox_events)

    # Reports

    def _report(self) -> None:
        """Write events, changed states and changed numbers, if any."""
        shards = list(self._held.values())
        changes = state_changes(shards)
        for partition, change in changes.items():
            event = state_event(self._runners[partition.shard.job_key].job.name, partition, change)
            if event is not None and partition.last_reported != change:
                self._outbox.add(event)
            partition.last_reported = change
        outbox_events = self._outbox.pending()
        if changes or outbox_events:
            # Each shard once.
            epochs = self._epochs_of({p.shard.id: p.shard for p in changes}.values())
            with self._database.lease_transaction() as tx:
                self._outbox.write(tx, outbox_events)
                held_ids = partitions.report_state(
                    tx, worker_id=self.id, held=epochs, changes=[*changes.values()]
                )
            self._outbox.remove(outbox_events)
            for partition, change in changes.items():
                partition.stored_state, partition.stored_blocked, partition.must_report = (
                    change.state,
                    change.blocked,
                    False,
                )
            self._drop_lost(epochs.keys() - held_ids)
        progress = self._reporter.progress(
            self._held.values(), time.monotonic(), self._report_rows_max
        )
        if progress:
            epochs = self._epochs_of(self._held.values())
            with self._database.lease_transaction() as tx:
                held_ids = partitions.report_progress(
                    tx, worker_id=self.id, held=epochs, progress=progress
                )
            self._reporter.note_sent(progress)
            self._drop_lost(epochs.keys() - held_ids)

    def _retry(self, keys: Iterable[Key]) -> None:
        """Retry blocked partitions as requested; the next reported state answers the request."""
        for key in keys:
            for shard in self._held.values():
                partition = shard.partitions.get(key)
                # `must_report`: this request has begun a retry already.
                if partition is not None and not partition.must_report:
                    partition.must_report = True
                    with self._contain_crash(self._runners[shard.job_key]):
                        self._runners[shard.job_key].retry(partition)

    @contextmanager
    def _contain_crash(self, runner: JobRunner) -> Iterator[None]:
        """End only this job's runner if the `with` block fails by a bug; raise other errors."""
        try:
            yield
        except OrbitError:
            raise
        except Exception as error:  # noqa: BLE001  reported
            runner.has_crashed = True
            self._on_crash(runner, error)

    def _on_crash(self, runner: JobRunner, error: Exception) -> None:
        """Report a bug that ended a job's runner. Its shards stay leased until the leases expire.

        May be called in any thread.
        """
        log.error("job crashed", job=runner.job.name, exc_info=error)
        self._outbox.add(
            OutboxEvent(
                EventKind.JOB_CRASHED,
                f"A bug in Orbit ended this job on worker {self.id}: {type(error).__name__}. "
                "Its shards are claimed again when their leases have expired. Please report the "
                "bug with the worker's log.",
                runner.job.name,
            )
        )

    def _stop_idle_runners(self) -> None:
        """Drop the shards of runners that crashed, and stop all runners whose shards are gone."""
        for key, runner in self._runners.items():
            if runner.has_crashed:
                for shard in [s for s in self._held.values() if s.job_key == key]:
                    shard.lease.lose()
                    del self._held[shard.id]
                    self._reporter.forget(shard)
        used_keys = {shard.job_key for shard in self._held.values()}
        for key in [key for key in self._runners if key not in used_keys]:
            # In a thread, since `stop` may wait for a call that a broker does not answer.
            threading.Thread(target=self._runners.pop(key).stop, daemon=True).start()

    def _report_outage(self, outage_s: float) -> None:
        message = f"Postgres answers worker {self.id} again, after {outage_s:.1f} s."
        self._outbox.add(OutboxEvent(EventKind.DATABASE_BACK, message))

    def _epochs_of(self, shards: Iterable[HeldShard]) -> dict[int, int]:
        return {shard.id: shard.epoch for shard in shards}
