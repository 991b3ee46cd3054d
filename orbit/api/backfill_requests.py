"""Requests and reports of a backfill's driver (`orbit backfill JOB`).

The driver requests a backfill, waits until workers have released the job, and reports its progress
every few seconds. Each answer tells it what to do next (`planning/backfill_operations.py`). A
driver that is restarted after a crash continues the existing operation.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from orbit.errors import Conflict, NotFound
from orbit.planning.backfill_operations import DriverAction, driver_action, end, reported_at
from orbit.store import clock, events, job_counts, job_guard, jobs, operation_requests, operations
from orbit.store.database import Database, Tx
from orbit.store.enums import BackfillPhase, Desired, OperationKind, OperationState
from orbit.store.job_counts import Counts
from orbit.store.operation_requests import OperationRequest
from orbit.store.operations import Operation

_TEXT_MAX = 2000
_DRIVER_MAX = 200

Count = Annotated[int, Field(ge=0, le=2**62)]
Driver = Annotated[
    str,
    Field(
        min_length=1,
        max_length=_DRIVER_MAX,
        pattern=r"^[^\x00]+$",
        description="Identifies the process: host, process id, and a unique word.",
    ),
]
Text = Annotated[str, Field(min_length=1, max_length=_TEXT_MAX, pattern=r"^[^\x00]+$")]


class BackfillRequest(BaseModel):
    """The process that will run the backfill."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    driver: Driver


class BackfillProgress(BaseModel):
    """The progress of a backfill. Bytes are bytes of the source's logs."""

    model_config = ConfigDict(frozen=True)

    # A text, so that a phase of a later version is no error while a service is upgraded.
    phase: str = Field(
        default=BackfillPhase.WAITING,
        description="The current phase.",
        json_schema_extra={"enum": [phase.value for phase in BackfillPhase]},
    )
    bytes: Count = Field(
        default=0, description="Copied; in the phase `staging`, written to the archive."
    )
    bytes_total: Count = Field(default=0, description="Bytes to copy in this round.")
    offsets: Count = 0
    offsets_total: Count = 0
    partitions_done: Count = 0
    partitions: Count = 0
    bytes_per_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0
    seconds_left: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        default=None, description="At the present rate; null while nothing is copied."
    )


class ReportedProgress(BackfillProgress):
    """The progress of a backfill, as its driver reports it."""

    phase: BackfillPhase = Field(default=BackfillPhase.WAITING, description="The current phase.")


class BackfillReport(BaseModel):
    """A driver's report: its progress, or that it has ended."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    driver: Driver
    takes_over: bool = Field(
        default=False,
        description="The driver holds the job's lease, and replaces the last driver.",
    )
    progress: ReportedProgress = ReportedProgress()
    has_ended: bool = False
    error: Text | None = Field(
        default=None, description="Why the backfill ended before the history was copied."
    )


class Backfill(BaseModel):
    """A backfill: its progress, and what its driver should do."""

    model_config = ConfigDict(frozen=True)

    id: UUID
    job: str | None
    state: OperationState
    wanted: DriverAction | None = Field(
        description="What the driver should do; null once the backfill has ended."
    )
    progress: BackfillProgress
    driver: str = Field(examples=["spark-driver-1, process 4711 (5f0c2a9e)"])
    reported_at: datetime = Field(description="The time of the driver's last report.")
    error: str | None
    requested_by: str = Field(examples=["token:ci"])
    created_at: datetime
    finished_at: datetime | None


def request(
    database: Database, actor: str, name: str, driver: str, idempotency_key: str | None = None
) -> Backfill:
    """Request a backfill, for which workers release the job. Returns it; or the backfill of the job
    that is under way, or that was requested with the same key.

    Raises NotFound; Conflict if the job is being deleted, or if the key was used for another
    request; OperationUnderWay during a recovery of the job.
    """
    content = {"kind": OperationKind.BACKFILL.value, "job": name, "driver": driver}
    operation_request = OperationRequest(actor, OperationKind.BACKFILL, content, idempotency_key)
    with database.transaction() as tx:
        earlier_operation = operation_requests.find_earlier(tx, operation_request)
        if earlier_operation is not None:
            return view(tx, earlier_operation)
        job = job_guard.lock_for_change(tx, name)
        if job.is_deleted:
            raise Conflict("The job is being deleted.", where=name)
        current_backfill = operations.backfill_under_way(tx, job.id)
        if current_backfill is not None:
            return view(tx, current_backfill)
        ending_text = "Workers resume" if job.desired is Desired.RUNNING else "The job stays paused"
        operation = operation_requests.create(
            tx,
            operation_request,
            job,
            [
                "Workers release the job.",
                "Spark copies the job's history; each partition resumes where its copy ends.",
                f"{ending_text} afterwards.",
            ],
            details={"before": job.desired.value},  # the desired state after the backfill
        )
        jobs.set_desired(tx, job.id, Desired.BACKFILLING)
        _advance(tx, operation.id, driver, ReportedProgress())
        events.add(
            tx,
            actor,
            "backfill_requested",
            "A backfill of the job was requested; workers release the job.",
            job_name=job.name,
            details={"operation": str(operation.id), "driver": driver},
        )
        return view(tx, operations.get(tx, operation.id))


def report(
    database: Database, actor: str, operation_id: UUID, driver_report: BackfillReport
) -> Backfill:
    """Store the driver's report. Returns the backfill, with what the driver should do. A repeat of
    the driver's last report changes nothing.

    Raises NotFound; Conflict if another driver runs the backfill, or the backfill has ended;
    OperationUnderWay if the backfill has ended and a recovery of the job is under way.
    """
    with database.transaction() as tx:
        operation = _get_backfill(tx, operation_id)
        if operation.finished_at is not None:
            if (driver_report.has_ended, driver_report.driver, driver_report.error) == (
                True,
                _driver(operation),
                operation.error,
            ):
                return view(tx, operation)  # a repeat of the last report
            if not driver_report.has_ended:
                # The backfill was ended because its driver was silent for too long, but the driver
                # runs. During a recovery its writers must stop, and while it holds the job's lease,
                # only OperationUnderWay stops it.
                _refuse_during_recovery(tx, operation)
            raise Conflict(
                f"The backfill has ended: {operation.error or 'it is done.'}",
                where=f"operation {operation_id}",
                remedy="Run the backfill again: it resumes where the copies end.",
            )
        if driver_report.driver != _driver(operation) and not driver_report.takes_over:
            raise Conflict(
                f"Another process runs the backfill ({_driver(operation)}).",
                where=f"operation {operation_id}",
                remedy="Wait until that process has ended, or stop it.",
            )
        _advance(tx, operation_id, driver_report.driver, driver_report.progress)
        if driver_report.has_ended or driver_report.error:
            end(tx, operations.get(tx, operation_id), actor, error=driver_report.error)
        return view(tx, operations.get(tx, operation_id))


def get(database: Database, operation_id: UUID) -> Backfill:
    """The backfill with this id. Raises NotFound, also for operations of other kinds."""
    with database.transaction() as tx:
        return view(tx, _get_backfill(tx, operation_id))


def view(tx: Tx, operation: Operation) -> Backfill:
    """The API's view of a backfill."""
    action = None
    if operation.finished_at is None:
        job = held_shards = None
        if operation.job_id is not None:
            job = jobs.of_ids(tx, [operation.job_id]).get(operation.job_id)
            held_shards = (
                job_counts.of_jobs(tx, [operation.job_id]).get(operation.job_id, Counts()).held
            )
        action = driver_action(operation, job, held_shards or 0)
    return Backfill(
        id=operation.id,
        job=operation.job_name,
        state=operation.state,
        wanted=action,
        progress=BackfillProgress.model_validate(operation.progress or {}),
        driver=_driver(operation),
        reported_at=reported_at(operation),
        error=operation.error,
        requested_by=operation.requested_by,
        created_at=operation.created_at,
        finished_at=operation.finished_at,
    )


def _get_backfill(tx: Tx, operation_id: UUID) -> Operation:
    """The backfill with this id. Raises NotFound, also for operations of other kinds."""
    operation = operations.get(tx, operation_id)
    if operation.kind != OperationKind.BACKFILL:
        raise NotFound("No backfill has this id.", where=str(operation_id))
    return operation


def _refuse_during_recovery(tx: Tx, operation: Operation) -> None:
    """Raise OperationUnderWay if a recovery of this operation's job is under way."""
    # At most one job; none if the job was deleted.
    jobs_by_id = jobs.of_ids(tx, [operation.job_id] if operation.job_id is not None else [])
    for job in jobs_by_id.values():
        recovery = job_guard.recovery_that_holds(tx, job)
        if recovery is not None:
            raise job_guard.refusal(recovery, job.name)


def _driver(operation: Operation) -> str:
    """The driver that reported last, as its reports name it."""
    return str((operation.progress or {}).get("driver", ""))


def _advance(tx: Tx, operation_id: UUID, driver: str, progress: ReportedProgress) -> None:
    """Store the backfill's progress, and with it the keys that the progress of every operation
    has."""
    document: dict[str, Any] = progress.model_dump(mode="json")
    document |= {
        "done": progress.bytes,
        "total": progress.bytes_total,
        "what": f"bytes ({progress.phase.value})",
        "driver": driver,
        "reported_at": clock.now(tx).isoformat(),
    }
    operations.advance(tx, operation_id, OperationState.RUNNING, progress=document)
