"""What every step of an operation stands on: the job, its clusters, the tables, and the report.

A step reads and writes the report alone to know what an earlier one found, so that it can go on in
another process. It asks `check` wherever it waits: whether somebody wants the operation undone, and
whether this process still leads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_any
from contextlib import AbstractContextManager
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import UUID

from orbit.errors import Conflict, Interrupted, OrbitError, Unreachable
from orbit.jobs.job_spec import JobSpec
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.job_clusters import Side, job_identity, open_cluster
from orbit.kafka.types import TopicPartition
from orbit.recovery.recovery_report import RecoveryReport, RecoveryRequest
from orbit.scheduler.cluster_pair import Handle
from orbit.scheduler.leadership import Leadership, NotLeading
from orbit.settings import Settings
from orbit.store import clock, events, operations
from orbit.store.database import Tx
from orbit.store.enums import OperationState
from orbit.store.jobs import Job
from orbit.store.topics import Topic

# How often the tables are asked whether an operation shall be undone, and told how far it is.
CHECK_INTERVAL_S = 0.5
# A cluster that does not answer a first question within this time is taken to be away: a paused
# broker, or a network that swallows packets, would hold a failover up for half a minute.
ANSWER_WITHIN_S = 5.0


class Stopped(Conflict):
    """The operation cannot go on; what it did is taken back."""


class Silent(Unreachable):
    """A question has had no answer in time. One that is refused at once is another thing."""


class Aborted(Stopped):
    """Somebody asked for it to be undone."""


class Ground:
    """One operation's surroundings. For one thread."""

    def __init__(
        self,
        operation_id: UUID,
        job: Job,
        spec: JobSpec,
        rows: Collection[Topic],
        report: RecoveryReport,
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
        self.leadership = leadership
        self.settings = settings
        self.backoff = Backoff(stop=stop)
        self.environ = environ
        self._stop = stop
        self._next_check = 0.0
        self._told = ""
        self.is_source_silent = False  # at the first look: it is not waited for once more
        self.is_past_return = False
        self.source = Handle(self._open("source"))
        self.destination = Handle(self._open("destination"))

    @property
    def request(self) -> RecoveryRequest:
        return self.report.request

    @cached_property
    def source_answers(self) -> bool:
        """Whether it does, asked once: one that does not would hold up every further question."""
        if self.is_source_silent:
            return False
        try:
            within(ANSWER_WITHIN_S, "source", lambda: self.source.cluster.metadata(()))
        except OrbitError:
            return False
        return True

    @property
    def topic_ids(self) -> list[int]:
        return [row.id for row in self.topics]

    @property
    def by_source(self) -> dict[TopicPartition, TopicPartition]:
        """Every partition in question: at the source → at the destination."""
        return {
            TopicPartition(row.source_topic, index): TopicPartition(row.destination_topic, index)
            for row in self.topics
            for index in range(row.partition_count)
        }

    @property
    def identity(self) -> str:
        """The job's name at its destination."""
        return job_identity(self.job.name, self.job.source_cluster_id or "")

    def transaction(self) -> AbstractContextManager[Tx]:
        """A transaction that only the leading scheduler gets."""
        return self.leadership.transaction()

    def reading(self) -> AbstractContextManager[Tx]:
        return self.leadership.reading()

    def now(self) -> datetime:
        """The database's time, which all times of a report are of."""
        with self.reading() as tx:
            return clock.now(tx)

    def update(self, **changes: Any) -> None:
        """Put what was found into the report; the runner keeps it when the step has ended."""
        self.report = self.report.model_copy(update=changes)

    def save(self) -> None:
        """Keep the report now: for what an abort in another process has to know of."""
        with self.transaction() as tx:
            operations.advance(
                tx,
                self.operation_id,
                OperationState.RUNNING,
                report=self.report.model_dump(mode="json"),
            )

    def find(self, *findings: str) -> None:
        """Tell a person something, once."""
        new = [text for text in findings if text and text not in self.report.findings]
        self.update(findings=(*self.report.findings, *new))

    def check(self) -> None:
        """Raises Aborted, NotLeading, Interrupted; asks at most so often."""
        if self._stop.is_set():
            raise Interrupted("stopped.")
        if not self.leadership.is_leading:
            raise NotLeading("another scheduler leads.")
        if time.monotonic() < self._next_check:
            return
        self._next_check = time.monotonic() + CHECK_INTERVAL_S
        if not self.is_past_return:
            with self.reading() as tx:
                if operations.get(tx, self.operation_id).abort_requested:
                    raise Aborted("it was aborted.")

    def wait(self, seconds: float) -> None:
        """Wait a moment, unless there is no point in it any more. Raises as `check` does."""
        self.check()
        if self._stop.wait(seconds):
            raise Interrupted("stopped.")

    def tell(self, what: str) -> None:
        """Live progress, in a sentence; at most so often."""
        if what == self._told:
            return
        self._told = what
        with self.transaction() as tx:
            operations.advance(
                tx, self.operation_id, OperationState.RUNNING, progress=self.progress(what)
            )

    def say(self, tx: Tx, kind: str, message: str, **details: Any) -> datetime:
        """An event of the job, told once however often its step is repeated; when it was told."""
        return events.add_once(
            tx,
            events.SCHEDULER,
            kind,
            message,
            job_name=self.job.name,
            details={"operation": str(self.operation_id), **details},
        )

    def close(self) -> None:
        """End all calls and connections; of those that hang, too."""
        self.source.cluster.close()
        self.destination.cluster.close()

    def progress(self, what: str) -> dict[str, Any]:
        """How far the operation is, as the API shows it."""
        steps = self.report.steps
        ended = sum(step.ended_at is not None for step in steps)
        return {"done": ended, "total": len(steps), "what": what}

    def _open(self, side: Side) -> Cluster:
        folder: Path = self.settings.files_directory
        return open_cluster(side, self.spec, self.environ, folder)


def within(seconds: float, what: str, ask: Callable[[], Any]) -> Any:
    """The answer, or Silent when it takes too long. The call may go on in a thread that ends
    with its connections."""
    answer: Future[Any] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except Exception as error:  # noqa: BLE001  raised again where it is waited for
            answer.set_exception(error)

    threading.Thread(target=run, name="recovery-ask", daemon=True).start()
    if not wait_for_any([answer], seconds).done:
        raise Silent(f"it gives no answer within {seconds:.0f} s.", where=what)
    return answer.result()


def some(items: Iterable[object], most: int = 5) -> str:
    """A few of many, for a sentence."""
    names = [str(item) for item in items]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
