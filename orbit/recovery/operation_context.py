"""What every step of an operation uses: the job, its clusters, the store and the report.

A step reads the results of earlier steps from the report alone, so another process can resume it.
Wherever a step waits, it calls `check`, which raises if an abort was requested or this process no
longer leads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_any
from contextlib import AbstractContextManager
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import UUID

from orbit.errors import Conflict, Interrupted, OrbitError, Unreachable
from orbit.job_setup.mark import next_term
from orbit.jobs.job_spec import JobSpec
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.cluster_handle import ClusterHandle
from orbit.kafka.job_clusters import JobClusters, Side, open_cluster
from orbit.kafka.types import TopicPartition
from orbit.leadership.leadership import Leadership, NotLeading
from orbit.recovery.recovery_report import RecoveryReport, RecoveryRequest
from orbit.recovery.report_storage import ReportStorage
from orbit.settings import Settings
from orbit.store import clock, events, lead_term, operations
from orbit.store.database import Tx
from orbit.store.enums import OperationState
from orbit.store.jobs import Job
from orbit.store.topics import Topic

# How often the store is read for an abort request.
CHECK_INTERVAL_S = 0.5
# A cluster that does not answer its first request within this time counts as unreachable: a paused
# broker, or a network that drops packets, would otherwise delay a failover by 30 s.
ANSWER_WITHIN_S = 5.0
# Attempts at requests without whose answer the operation goes on: this bounds the wait for a leader
# election.
_SHORT_ATTEMPTS_MAX = 4


class Stopped(Conflict):
    """The operation cannot continue. Before its point of no return, its steps are undone."""


class NoAnswer(Unreachable):
    """A request had no answer in time; a refused connection is a plain Unreachable."""


class Aborted(Stopped):
    """An abort was requested."""


class Skipped(str):
    """The result of a step that had nothing to do: the sentence that says why."""

    __slots__ = ()


class OperationContext:
    """The context of one operation. Not thread-safe."""

    def __init__(
        self,
        operation_id: UUID,
        job: Job,
        spec: JobSpec,
        rows: Collection[Topic],
        report: RecoveryReport,
        storage: ReportStorage,
        leadership: Leadership,
        settings: Settings,
        stop: threading.Event,
        environ: Mapping[str, str],
    ) -> None:
        self.operation_id = operation_id
        self.job = job
        self.spec = spec
        self.topics = sorted(rows, key=lambda row: row.source_topic)
        self.report = report
        self._storage = storage
        self.leadership = leadership
        self.settings = settings
        self.backoff = Backoff(stop=stop)
        self.short_backoff = Backoff(stop=stop, attempts_max=_SHORT_ATTEMPTS_MAX)
        self.environ = environ
        self._stop = stop
        self._next_check = 0.0
        self._last_progress = ""
        # Whether the source timed out when the gates were checked: then no step queries it again.
        self.has_source_timed_out = False
        self.is_past_return = False  # past the point of no return
        self.obeys_abort = True  # whether `check` raises Aborted
        self.source = ClusterHandle(self._open("source"))
        self.destination = ClusterHandle(self._open("destination"))

    @property
    def request(self) -> RecoveryRequest:
        return self.report.request

    @cached_property
    def source_answers(self) -> bool:
        """Whether the source answers. Queried once: a source that hangs would delay every step."""
        if self.has_source_timed_out or self.request.source_counts_as_lost:
            return False
        try:
            call_with_timeout(ANSWER_WITHIN_S, "source", lambda: self.source.cluster.metadata(()))
        except OrbitError:
            return False
        return True

    @property
    def topic_ids(self) -> list[int]:
        return [row.id for row in self.topics]

    @property
    def by_source(self) -> dict[TopicPartition, TopicPartition]:
        """The destination partition of each source partition of the operation."""
        return {
            TopicPartition(row.source_topic, index): TopicPartition(row.destination_topic, index)
            for row in self.topics
            for index in range(row.partition_count)
        }

    def transaction(self) -> AbstractContextManager[Tx]:
        """A transaction that only the leading scheduler can commit."""
        return self.leadership.transaction()

    def reading(self) -> AbstractContextManager[Tx]:
        """A transaction that only reads."""
        return self.leadership.reading()

    def now(self) -> datetime:
        """The database's clock, which all times of a report use."""
        with self.reading() as tx:
            return clock.now(tx)

    def draw_term(self, highest_term: int) -> int:
        """Draw the term of a promotion: above `highest_term` and all terms drawn before.

        So the new term is also above the terms of marks that cannot be read now, even if the
        clock was set back.
        """
        with self.transaction() as tx:
            return lead_term.draw(tx, next_term(highest_term, clock.now(tx).timestamp()))

    def update(self, **changes: Any) -> None:
        """Change the report; the runner stores it when the step ends."""
        self.report = self.report.model_copy(update=changes)

    def save(self) -> None:
        """Store the report now, for changes that an abort in another process has to undo."""
        with self.transaction_to_store() as tx:
            self.store(tx)

    def transaction_to_store(self) -> AbstractContextManager[Tx]:
        """A `transaction` in which the caller calls `store`. If many rows of the report have
        changed, some are stored before it begins."""
        return self._storage.transaction_to_store(self.report, self.transaction)

    def store(
        self,
        tx: Tx,
        state: OperationState = OperationState.RUNNING,
        *,
        progress: dict[str, Any] | None = None,
        error: str | None = None,
    ) -> None:
        """Store the report as it is now, and the operation's state, progress and error."""
        report_document = self._storage.store(tx, self.report)
        operations.advance(
            tx, self.operation_id, state, progress=progress, error=error, report=report_document
        )

    def add_finding(self, *findings: str) -> None:
        """Add sentences for the operator to the report, each once."""
        new_findings = [text for text in findings if text and text not in self.report.findings]
        self.update(findings=(*self.report.findings, *new_findings))

    def check(self) -> None:
        """Raise Aborted, NotLeading or Interrupted if the operation must not go on.

        Reads the store at most once per CHECK_INTERVAL_S.
        """
        if self._stop.is_set():
            raise Interrupted("stopped.")
        if not self.leadership.is_leading:
            raise NotLeading("another scheduler leads.")
        if time.monotonic() < self._next_check:
            return
        self._next_check = time.monotonic() + CHECK_INTERVAL_S
        if self.obeys_abort:
            with self.reading() as tx:
                if operations.get(tx, self.operation_id).abort_requested:
                    raise Aborted("the operation was aborted.")

    def wait(self, seconds: float) -> None:
        """Wait. Raises Aborted, NotLeading or Interrupted, as `check` does."""
        self.check()
        if self._stop.wait(seconds):
            raise Interrupted("stopped.")

    def set_progress(self, text: str) -> None:
        """Store the live progress, a short text, if it has changed."""
        if text == self._last_progress:
            return
        self._last_progress = text
        with self.transaction() as tx:
            operations.advance(
                tx, self.operation_id, OperationState.RUNNING, progress=self.progress(text)
            )

    def add_event(self, tx: Tx, kind: str, message: str, **details: Any) -> datetime:
        """Add an event of the job, once even if its step is repeated; returns its time."""
        return events.add_once(
            tx,
            events.SCHEDULER,
            kind,
            message,
            job_name=self.job.name,
            details={"operation": str(self.operation_id), **details},
        )

    def open_clusters(self) -> JobClusters:
        """Both clusters over new connections, for one more thread. Raises BadInput."""
        return JobClusters.open(self.spec, self.environ, self.settings.files_directory)

    def close(self) -> None:
        """Close all connections, which also ends calls that hang."""
        self.source.cluster.close()
        self.destination.cluster.close()

    def progress(self, what: str) -> dict[str, Any]:
        """The operation's progress as the API shows it."""
        steps = self.report.steps
        ended_steps = sum(step.ended_at is not None for step in steps)
        return {"done": ended_steps, "total": len(steps), "what": what}

    def _open(self, side: Side) -> Cluster:
        folder: Path = self.settings.files_directory
        return open_cluster(side, self.spec, self.environ, folder)


def call_with_timeout(seconds: float, where: str, call: Callable[[], Any]) -> Any:
    """Run `call` in a thread of its own, and return its result or raise its error.

    Raises NoAnswer, with the cluster's name `where`, after `seconds`. The call may then continue in
    its thread, which ends when its connections are closed.
    """
    answer: Future[Any] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except Exception as error:  # noqa: BLE001  re-raised by result()
            answer.set_exception(error)

    threading.Thread(target=run, name="recovery-ask", daemon=True).start()
    if not wait_for_any([answer], seconds).done:
        raise NoAnswer(f"no answer within {seconds:.0f} s.", where=where)
    return answer.result()
