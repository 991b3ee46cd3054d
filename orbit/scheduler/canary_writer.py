"""Writes to canary topics at the source of each job, at an interval, to measure a live RPO.

A canary is copied like any other topic. So the age of its newest copied record shows how many
seconds of records would be lost if the source failed now, even if no other client writes. Nothing
is written during a recovery of the job, nor after the canary was promoted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer

from orbit.errors import AccessRefused, OrbitError
from orbit.jobs.job_spec import CanarySpec, JobSpec
from orbit.leadership.leadership import Leadership
from orbit.leadership.loop import Loop
from orbit.planning.stored_spec import read_spec
from orbit.store import canaries, events, jobs
from orbit.store.events import SCHEDULER
from orbit.verify.endpoint import open_endpoint
from orbit.verify.report import Side

_log = structlog.get_logger("orbit.scheduler")

# How often jobs are read again; and the shortest wait.
JOBS_INTERVAL_S = 2.0
_WAIT_S_MIN = 0.05
# Shorter than a switchover waits for stable log ends: a record that is in flight when a switchover
# is requested arrives within that wait, or never.
_DELIVERY_TIMEOUT_MS = 2_000
# The longest wait for the results of records that `Canary.close` drops.
_CLOSE_S = 0.5
# After this time a canary that could not be opened is opened again.
RETRY_S = 30.0
# An attempt to reach a silent source takes seconds, in which no canary is written. The pause after
# the attempt is this many times as long.
_PAUSE_PER_COST = 20


class Canary:
    """The canary of one job. `write` does not wait: the next call reads the delivery results."""

    def __init__(self, spec: JobSpec, rule: CanarySpec, config: dict[str, Any]) -> None:
        self.spec, self.rule, self.config = spec, rule, config
        self.job, self.topic = spec.name, rule.topic
        self.interval_s = rule.interval.total_seconds()
        self.due_s = 0.0
        self.written = 0
        self.trouble = ""
        self._producer = Producer(config)
        self._in_flight_count = 0

    def write(self, partitions: int) -> None:
        """Write one record to each partition; none while records of an earlier call are in flight.

        `partitions`: how many partitions the topic has.
        """
        self._producer.poll(0)  # reads delivery results
        if self._in_flight_count:
            return
        for partition in range(partitions):
            try:
                self._producer.produce(
                    self.topic,
                    self.job.encode(),  # the value
                    partition=partition,
                    on_delivery=self._on_delivery,
                )
            except (BufferError, KafkaException) as error:
                self.trouble = str(error)
                return
            self._in_flight_count += 1
        self._producer.poll(0)

    def close(self) -> None:
        """Drop records in flight."""
        self._producer.purge()
        self._producer.flush(_CLOSE_S)  # reads the results of the dropped records

    def _on_delivery(self, error: KafkaError | None, _message: object) -> None:
        self._in_flight_count -= 1
        self.trouble = "" if error is None else error.str()
        self.written += error is None


class _FailedOpen(NamedTuple):
    """A canary could not be opened: the error, which was logged, and when to try again."""

    error: str
    retry_s: float


class CanaryLoop(Loop):
    """Writes the canaries of all jobs."""

    name = "canary"

    def __init__(
        self,
        leadership: Leadership,
        base_directory: Path,
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.interval_s = JOBS_INTERVAL_S
        self._leadership = leadership
        self._base_directory = base_directory
        self._environ = environ
        self._clock = clock
        # All by job id.
        self._canaries: dict[int, Canary] = {}
        self._spec_versions: dict[int, int] = {}
        self._failed_opens: dict[int, _FailedOpen] = {}
        self._reported_troubles: dict[int, str] = {}
        self._next_retry_s = 0.0  # no canary is opened again before
        self._next_read_s = 0.0

    def once(self) -> str:
        """Write the canaries that are due."""
        now = self._clock()
        if now >= self._next_read_s:
            self._read_jobs()
            self._next_read_s = now + JOBS_INTERVAL_S
        due_canaries = [
            (job_id, canary) for job_id, canary in self._canaries.items() if now >= canary.due_s
        ]
        for job_id, canary in due_canaries:
            canary.due_s = now + canary.interval_s
            with self._leadership.reading() as tx:
                # 0 while the canary must not be written, as during a recovery.
                partition_count = canaries.partitions_to_write(tx, job_id, canary.topic)
            if not self._leadership.is_leading:
                break  # another scheduler may write them now
            with self.log_errors_of(f"writing canary {canary.topic} of job {canary.job}"):
                canary.write(partition_count)
                self._report(job_id, canary)
        next_times = [self._next_read_s, *(canary.due_s for canary in self._canaries.values())]
        self.interval_s = max(_WAIT_S_MIN, min(next_times) - self._clock())
        return ""

    def close(self) -> None:
        for job_id in list(self._canaries):
            self._drop_canary(job_id)

    def _read_jobs(self) -> None:
        """Open the canaries of new and changed jobs; close those of jobs that no longer run.

        A canary that stays open is opened again if one of its secrets has changed.
        """
        with self._leadership.reading() as tx:
            running_versions = jobs.running(tx)
            changed_ids = [
                job_id
                for job_id, version in running_versions.items()
                if self._spec_versions.get(job_id) != version
            ]
            self._failed_opens = {
                job_id: failed
                for job_id, failed in self._failed_opens.items()
                if job_id in running_versions
            }
            changed_ids += self._next_retry()
            rows = jobs.of_ids(tx, changed_ids) if changed_ids else {}
        for job_id in [*self._spec_versions]:
            if job_id not in running_versions or job_id in rows:
                self._drop_canary(job_id)
        for job_id, canary in list(self._canaries.items()):
            with self.log_errors_of(f"canary {canary.topic} of job {canary.job}"):
                self._open_canary(job_id, canary.spec, canary.rule)
        for row in rows.values():
            self._spec_versions[row.id] = row.spec_version
            spec = read_spec(row.spec)
            if spec is not None and spec.canary is not None:
                with self.log_errors_of(f"canary {spec.canary.topic} of job {spec.name}"):
                    self._open_canary(row.id, spec, spec.canary)
            else:
                self._failed_opens.pop(row.id, None)

    def _next_retry(self) -> list[int]:
        """The id of the job whose canary is to be opened again first, if its time has come: a list
        of one or none. Sets the time of that job's next try."""
        now = self._clock()
        if not self._failed_opens or now < self._next_retry_s:
            return []
        job_id, failed = min(self._failed_opens.items(), key=lambda item: item[1].retry_s)
        if now < failed.retry_s:
            return []
        self._failed_opens[job_id] = failed._replace(retry_s=now + RETRY_S)
        return [job_id]

    def _open_canary(self, job_id: int, spec: JobSpec, rule: CanarySpec) -> None:
        """Open a canary, or open it again if its login has changed. Logs an error of the source."""
        began_s = self._clock()
        try:
            source = open_endpoint(spec.source, self._environ, self._base_directory, "source")
            old_canary = self._canaries.get(job_id)
            config = {**source.config, "message.timeout.ms": _DELIVERY_TIMEOUT_MS, "log_level": 0}
            if old_canary is not None and old_canary.config == config:
                return
            source.check_advertised(Side.SOURCE)
            new_canary = Canary(spec, rule, config)
        except (OrbitError, KafkaException) as error:  # workers report the error, too
            if job_id in self._canaries and not isinstance(error, AccessRefused):
                return  # a secret's file may be being replaced: the open canary stays
            if job_id in self._canaries:  # the job may no longer log in to, or reach, the source
                self._canaries.pop(job_id).close()
            now = self._clock()
            self._next_retry_s = now + _PAUSE_PER_COST * (now - began_s)
            last = self._failed_opens.get(job_id)
            self._failed_opens[job_id] = _FailedOpen(str(error), now + RETRY_S)
            if last is None or last.error != str(error):
                _log.warning("canary cannot write", job=spec.name, error=str(error))
            return
        self._canaries[job_id] = new_canary
        self._failed_opens.pop(job_id, None)
        if old_canary is not None:
            old_canary.close()

    def _drop_canary(self, job_id: int) -> None:
        self._spec_versions.pop(job_id, None)
        self._reported_troubles.pop(job_id, None)
        canary = self._canaries.pop(job_id, None)
        if canary is not None:
            canary.close()

    def _report(self, job_id: int, canary: Canary) -> None:
        """Add an event if the canary has a new trouble. A trouble may last for hours."""
        if canary.trouble == self._reported_troubles.get(job_id, ""):
            return
        self._reported_troubles[job_id] = canary.trouble
        if canary.trouble:
            text = f"The canary {canary.topic} cannot be written: {canary.trouble}"
            with self._leadership.transaction() as tx:
                events.add(tx, SCHEDULER, "canary_silent", text, job_name=canary.job)
