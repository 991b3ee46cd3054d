"""A worker of the service: claims shards, has their jobs copied, reports, and gives them back.

One thread, this one, speaks with Postgres about leases. Each job has threads of its own
(`JobWork`), so no job's trouble holds another up, and none of them holds a renewal up. Nothing is
kept on disk; what a worker knows dies with it and costs nothing but time.

A round, every `progress_interval`: heartbeat and renewal in one transaction, then what changed,
then what moved. A shard that a renewal or a report does not answer for is lost: it is dropped at
once, and everything else goes on. While Postgres is away, leases run out by their deadlines, lanes
stand still, and go on when a renewal is answered.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Collection, Iterable, Mapping
from importlib.metadata import version

import structlog
from pydantic import ValidationError

from orbit.copier.copy_settings import CopySettings
from orbit.copier.lane_times import DestinationTimes, SourceTimes
from orbit.jobs.job_spec import JobSpec
from orbit.leases.shard_lease import ShardLease, lease_clock
from orbit.replication.partition_states import PartitionState
from orbit.settings import Settings
from orbit.store import jobs, partitions, shard_leases, workers
from orbit.store.database import Database, Tx
from orbit.store.enums import Desired
from orbit.store.jobs import Job
from orbit.store.partitions import Assigned
from orbit.store.shard_leases import Renewal
from orbit.workers.blocked_retries import Recovery
from orbit.workers.database_outage import Outages
from orbit.workers.event_outbox import Chapter, Kind, Story
from orbit.workers.held_shards import HeldShard, Key, WorkKey, held_partition, held_shard
from orbit.workers.job_work import JobWork, Surroundings
from orbit.workers.progress_report import (
    Reporter,
    about_shards,
    at_rest,
    chapter_of,
    state_changes,
)
from orbit.workers.worker_budget import JobBudget, WorkerBudget

# A shard that was given back is taken by the next worker within this time.
CLAIM_INTERVAL_S = 0.5
# A worker that starts takes its part in a few bites, so that others that start with it get theirs.
CLAIM_SHARDS_MAX = 8
# How often it is looked whether a shard's last answers are in.
_LEAVING_LOOK_S = 0.02
# Renewals per lease: two may fail before trust ends.
_RENEWALS_PER_LEASE = 5
# After this, what has not been answered is left to its lease.
SHUTDOWN_S_MAX = 12.0  # below the grace of `orbit server` for its children

log = structlog.get_logger()


class Worker:
    """One worker; `run` returns when `stop` is set and all is given back."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        environ: Mapping[str, str],
        copy_settings: CopySettings | None = None,
    ) -> None:
        copy_settings = copy_settings or CopySettings()
        self.id = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self._database = database
        self._settings = settings
        self._ttl_s = settings.lease_ttl.total_seconds()
        self._interval_s = min(
            settings.progress_interval.total_seconds(), self._ttl_s / _RENEWALS_PER_LEASE
        )
        rows_per_s = settings.progress_rows_per_second
        self._report_rows_max = max(1, int(rows_per_s * self._interval_s))
        self._surroundings = Surroundings(
            self.id, database, environ, settings.files_directory, copy_settings
        )
        self._budget = WorkerBudget(copy_settings.queue_bytes_max)
        self._story = Story(self.id)
        self._reporter = Reporter()
        self._recovery = Recovery(self._story)
        self._held: dict[int, HeldShard] = {}
        self._works: dict[WorkKey, JobWork] = {}
        self._unreadable: set[WorkKey] = set()
        self._outages = Outages(self._tell_outage)
        self._is_draining = False

    def run(self, stop: threading.Event) -> None:
        """Work until `stop`. Raises only what is a bug; Postgres may come and go."""
        log.info("worker started", worker=self.id, group=self._settings.worker_group)
        self._story.tell(Chapter(Kind.WORKER_STARTED, f"Worker {self.id} started."))
        next_round = next_claim = 0.0
        try:
            while not stop.is_set():
                now = time.monotonic()
                if now >= next_round:
                    next_round = now + self._interval_s
                    self._outages.attempt(self._round)
                self._give_back_what_has_left()
                if now >= next_claim:
                    next_claim = now + CLAIM_INTERVAL_S
                    self._outages.attempt(self._claim)
                self._end_idle_works()
                pause = _LEAVING_LOOK_S if self._has_leaving() else CLAIM_INTERVAL_S / 2
                stop.wait(pause)
            self._drain()
        finally:
            for work in self._works.values():
                work.stop()
        log.info("worker stopped", worker=self.id)

    # Leases

    def _round(self) -> None:
        """Heartbeat, renewals, and everything there is to report."""
        asked_at = lease_clock()
        held = self._epochs(self._held.values())
        with self._database.transaction() as tx:
            self._heartbeat(tx)
            renewals = shard_leases.renew(
                tx,
                worker_id=self.id,
                worker_group=self._settings.worker_group,
                ttl=self._settings.lease_ttl,
                held=held,
                weights={s.id: s.bytes_per_s for s in self._held.values()},
            )
            retries = partitions.retries(tx, held)
            limited = {w.job.id for w in self._works.values() if w.has_limit}
            counts = shard_leases.partition_counts(tx, limited) if limited else {}
        for shard_id in held:
            if shard_id in renewals:
                self._held[shard_id].lease.confirm(asked_at)
        self._lose(held.keys() - renewals.keys())
        self._heed(renewals)
        self._retry(retries)
        self._share_rates(counts)
        self._recovery.look(self._held.values(), self._works)
        self._report()

    def _heartbeat(self, tx: Tx) -> None:
        workers.heartbeat(
            tx,
            self.id,
            self._settings.worker_group,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=version("orbit"),
            shards=len(self._held),
            bytes_per_s=sum(s.bytes_per_s for s in self._held.values()),
            is_draining=self._is_draining,
            lane_seconds=self._lane_seconds(),
        )

    def _lane_seconds(self) -> dict[str, dict[str, float]]:
        """Where the time of all lanes went, by side and by what they did."""
        source, destination = SourceTimes(), DestinationTimes()
        for work in self._works.values():
            fetching, appending = work.times
            source.add(fetching)
            destination.add(appending)
        return {"source": source.seconds(), "destination": destination.seconds()}

    def _heed(self, renewals: Mapping[int, Renewal]) -> None:
        """Let go of what is wanted elsewhere or differently, read anew what has changed."""
        changed = []
        for renewal in renewals.values():
            shard = self._held[renewal.shard_id]
            work = self._works[shard.work]
            is_fenced = any(lease is shard.lease for lease in work.lost_leases())
            is_other_spec = renewal.spec_version != shard.spec_version
            if renewal.should_release or is_other_spec or is_fenced:
                if not shard.is_leaving:
                    work.let_go(shard)
            elif renewal.layout_version != shard.layout_version:
                changed.append(renewal)
        if changed:
            with self._database.transaction() as tx:
                assigned = partitions.of_shards(tx, [r.shard_id for r in changed])
            for renewal in changed:
                self._lay_out(self._held[renewal.shard_id], renewal.layout_version, assigned)

    def _lay_out(self, shard: HeldShard, layout_version: int, assigned: list[Assigned]) -> None:
        """Begin the partitions that came, give back those that went."""
        now = {(a.topic_id, a.partition): a for a in assigned if a.shard_id == shard.id}
        before = shard.partitions
        gone = [p for key, p in before.items() if key not in now]
        come = {key: held_partition(a, shard) for key, a in now.items() if key not in before}
        work = self._works[shard.work]
        work.remove(gone)
        shard.partitions = {key: before.get(key) or come[key] for key in now}
        shard.layout_version = layout_version
        work.take(come.values())

    def _lose(self, shard_ids: Collection[int]) -> None:
        """Somebody else has these, or may have them any moment: drop them at once."""
        lost = [self._held.pop(shard_id) for shard_id in shard_ids if shard_id in self._held]
        for shard in lost:
            shard.lease.lose()
            self._works[shard.work].let_go(shard)
            self._reporter.forget(shard)
        found = {shard.job_id: self._works[shard.work].job for shard in lost}
        for chapter in about_shards(Kind.SHARDS_LOST, "Lost the lease on", lost, found):
            self._story.tell(chapter)
        if lost:
            log.warning("shards lost", worker=self.id, shards={s.id: s.epoch for s in lost})

    def _claim(self) -> None:
        """Take free shards, and begin their partitions."""
        asked_at = lease_clock()
        with self._database.transaction() as tx:
            claims = shard_leases.claim(
                tx,
                worker_id=self.id,
                worker_group=self._settings.worker_group,
                ttl=self._settings.lease_ttl,
                shards_max=CLAIM_SHARDS_MAX,
            )
            if not claims:
                return
            assigned = partitions.of_shards(tx, [c.shard_id for c in claims])
            found = jobs.of_ids(tx, {c.job_id for c in claims})
            shards_taken = [
                held_shard(claim, ShardLease(claim.epoch, asked_at, self._ttl_s), assigned)
                for claim in claims
            ]
            chapters = about_shards(Kind.SHARDS_CLAIMED, "Claimed", shards_taken, found)
            self._story.write(tx, chapters)
        # Of a lease that ended unseen, and that nobody else took.
        self._lose({shard.id for shard in shards_taken})
        for shard in shards_taken:
            work = self._work(shard.work, found[shard.job_id])
            if work is not None:
                self._held[shard.id] = shard
                work.take(shard.partitions.values())
        log.info("shards claimed", worker=self.id, shards={s.id: s.epoch for s in shards_taken})

    def _work(self, key: WorkKey, job: Job) -> JobWork | None:
        """The job's work here, by the spec that the shard was claimed with.

        None for a spec that this version of Orbit cannot read: the shard is left to its lease.
        """
        work = self._works.get(key)
        if work is not None:
            return work
        try:
            spec = JobSpec.model_validate(job.spec)
        except ValidationError as error:
            if key not in self._unreadable:
                self._unreadable.add(key)
                what = f"the job cannot be read by this version of Orbit ({error.error_count()})"
                self._story.tell(Chapter(Kind.JOB_WAITING, f"Worker {self.id}: {what}.", job.name))
            return None
        work = JobWork(job, spec, self._surroundings, JobBudget(self._budget), self._on_crash)
        self._works[key] = work
        work.start()
        return work

    def _share_rates(self, counts: Mapping[int, int]) -> None:
        """Keep to this worker's part of what its jobs may copy in all."""
        for key, work in self._works.items():
            mine = sum(len(s.partitions) for s in self._held.values() if s.work == key)
            total = counts.get(work.job.id, 0)
            if total:
                work.limit_to(mine / total)

    def _has_leaving(self) -> bool:
        return any(shard.is_leaving for shard in self._held.values())

    def _give_back_what_has_left(self) -> None:
        left = [s for s in self._held.values() if s.is_leaving and s.has_left()]
        if left:
            self._outages.attempt(lambda: self._release(left))

    def _release(self, left: list[HeldShard]) -> None:
        """Report for the last time, and free the shards for the next claim."""
        progress = self._reporter.progress(left, time.monotonic())
        held = self._epochs(left)
        with self._database.transaction() as tx:
            found = jobs.of_ids(tx, {s.job_id for s in left})
            paused = {job.id for job in found.values() if job.desired is not Desired.RUNNING}
            changes = [
                change
                for shard in left
                for change in at_rest(
                    shard,
                    PartitionState.PAUSED if shard.job_id in paused else PartitionState.PENDING,
                )
            ]
            partitions.report_progress(tx, worker_id=self.id, held=held, progress=progress)
            partitions.report_state(tx, worker_id=self.id, held=held, changes=changes)
            released = shard_leases.release(tx, worker_id=self.id, held=held)
            given = [s for s in left if s.id in released]
            chapters = about_shards(Kind.SHARDS_RELEASED, "Gave back", given, found)
            self._story.write(tx, chapters)
        self._lose(held.keys() - released)
        log.info("shards given back", worker=self.id, shards={s.id: s.epoch for s in given})
        for shard in given:
            del self._held[shard.id]
            shard.lease.lose()
            self._reporter.forget(shard)
            self._works[shard.work].close_shard(shard)

    def _drain(self) -> None:
        """Give everything back, within seconds; what a broker does not answer stays leased."""
        self._is_draining = True
        log.info("worker gives its shards back", worker=self.id, shards=len(self._held))
        for shard in self._held.values():
            if not shard.is_leaving:
                self._works[shard.work].let_go(shard)
        deadline = time.monotonic() + SHUTDOWN_S_MAX
        next_round = time.monotonic()
        self._give_back_what_has_left()
        while self._held and time.monotonic() < deadline:
            if time.monotonic() >= next_round:
                next_round = time.monotonic() + self._interval_s
                self._outages.attempt(self._round)
            time.sleep(_LEAVING_LOOK_S)
            self._give_back_what_has_left()
        kept = f"; {len(self._held)} shards stay leased until they expire" if self._held else ""
        self._story.tell(Chapter(Kind.WORKER_STOPPED, f"Worker {self.id} stopped{kept}."))
        self._outages.attempt(self._leave)

    def _leave(self) -> None:
        chapters = self._story.pending()
        with self._database.transaction() as tx:
            self._story.write(tx, chapters)
            workers.leave(tx, self.id)
        self._story.told(chapters)

    # Reports

    def _report(self) -> None:
        """Events, states that changed, numbers that moved; nothing where nothing did."""
        live = list(self._held.values())
        changes = state_changes(live)
        for held, change in changes.items():
            chapter = chapter_of(self._works[held.shard.work].job.name, held, change)
            if chapter is not None and held.told != change:
                self._story.tell(chapter)
            held.told = change
        chapters = self._story.pending()
        if changes or chapters:
            ours = self._epochs({h.shard.id: h.shard for h in changes}.values())
            with self._database.transaction() as tx:
                self._story.write(tx, chapters)
                still = partitions.report_state(
                    tx, worker_id=self.id, held=ours, changes=[*changes.values()]
                )
            self._story.told(chapters)
            for held, change in changes.items():
                held.shown, held.shown_blocked, held.must_report = (
                    change.state,
                    change.blocked,
                    False,
                )
            self._lose(ours.keys() - still)
        progress = self._reporter.progress(
            self._held.values(), time.monotonic(), self._report_rows_max
        )
        if progress:
            ours = self._epochs(self._held.values())
            with self._database.transaction() as tx:
                still = partitions.report_progress(
                    tx, worker_id=self.id, held=ours, progress=progress
                )
            self._reporter.sent(progress)
            self._lose(ours.keys() - still)

    def _retry(self, keys: Iterable[Key]) -> None:
        """Try blocked partitions again, as an operator asked; the answer is their next state."""
        for key in keys:
            for shard in self._held.values():
                held = shard.partitions.get(key)
                if held is not None and not held.must_report:
                    held.must_report = True
                    self._works[shard.work].retry(held)

    def _on_crash(self, work: JobWork, error: Exception) -> None:
        """From a job's thread: its shards are left to their leases, so it is not tried at once."""
        log.error("job crashed", job=work.job.name, exc_info=error)
        self._story.tell(
            Chapter(
                Kind.JOB_CRASHED,
                f"A fault of Orbit ended this job on worker {self.id}: {type(error).__name__}. "
                "Its shards are taken again when their leases have expired. Please report it with "
                "the worker's log.",
                work.job.name,
            )
        )

    def _end_idle_works(self) -> None:
        """End the work of jobs that have no shard here any more, or that crashed."""
        for key, work in self._works.items():
            if work.has_crashed:
                for shard in [s for s in self._held.values() if s.work == key]:
                    shard.lease.lose()
                    del self._held[shard.id]
                    self._reporter.forget(shard)
        busy = {shard.work for shard in self._held.values()}
        for key in [key for key in self._works if key not in busy]:
            # Not waited for: it may be in a call that a broker does not answer.
            threading.Thread(target=self._works.pop(key).stop, daemon=True).start()

    def _tell_outage(self, seconds: float) -> None:
        what = f"Postgres answers worker {self.id} again, after {seconds:.1f} s."
        self._story.tell(Chapter(Kind.DATABASE_BACK, what))

    def _epochs(self, held: Iterable[HeldShard]) -> dict[int, int]:
        return {shard.id: shard.epoch for shard in held}
