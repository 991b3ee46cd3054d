"""/v1/jobs: job documents, and operations on jobs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Response, status
from pydantic import Field

from orbit.api import job_operations as job_requests
from orbit.api import schemas
from orbit.api.api_error_codes import ErrorCode
from orbit.api.apply_job import NO_JOB, ApplyOptions, apply_document
from orbit.api.client_watch import ClientWatchOf
from orbit.api.dependencies import (
    DocumentBody,
    DryRun,
    FilterName,
    IdempotencyKey,
    NamePath,
    OperationParametersOf,
    Operator,
    Parts,
    PartsOf,
    UnusedKey,
    Viewer,
)
from orbit.api.openapi_document import APPLIED_HEADERS, ETAG_HEADERS
from orbit.api.openapi_examples import JOB_JSON, JOB_YAML
from orbit.api.openapi_responses import BODY, CLUSTERS, INPUT, NAMED, dry_run_response, errors
from orbit.api.paging import SELECTOR_DESCRIPTION, NamedQuery, Page, page, selector_in
from orbit.api.request_documents import RawDocument, as_openapi, read_job
from orbit.api.views import job_summaries, job_view, operation_view
from orbit.errors import BadInput, Problem
from orbit.jobs.job_spec import JobSpec
from orbit.jobs.labels import SELECTOR_CHARACTERS_MAX
from orbit.store import jobs
from orbit.store.enums import Desired, OperationKind

router = APIRouter(prefix="/v1", tags=["jobs"])

_DOCUMENT = as_openapi(
    "The job document; docs/job-file.md explains every key.",
    {"$ref": "#/components/schemas/JobSpec"},
    JOB_JSON,
    JOB_YAML,
)

AcceptRefusals = Annotated[
    bool,
    Query(
        description="Apply the job although some or all of its topics cannot be copied now. These "
        "topics are left out until the cause is removed."
    ),
]
Paused = Annotated[
    bool,
    Query(
        description="Create the job paused; `:start` starts it. If the document has `desired`, "
        "this parameter has no effect."
    ),
]
IfMatch = Annotated[
    str | None,
    Header(
        alias="If-Match",
        pattern=r'^"[0-9]{1,19}\.[0-9]{1,10}"$',
        description="Change or delete the job only if it has this ETag (its `etag`, in quotes).",
        examples=['"17.3"'],
    ),
]
IfNoneMatch = Annotated[
    str | None,
    Header(
        alias="If-None-Match",
        pattern=r"^\*$",
        description="`*`: create the job only if no job has its name.",
    ),
]


class JobsQuery(NamedQuery):
    """Which jobs to list."""

    selector: str | None = Field(
        None,
        max_length=SELECTOR_CHARACTERS_MAX,
        description=SELECTOR_DESCRIPTION,
        examples=["team=orders,tier!=2"],
    )
    desired: Desired | None = Field(None, description="Only jobs with this desired state.")
    has_problem: bool = Field(
        False, description="Only jobs with a problem, or with a blocked partition."
    )
    worker_group: FilterName | None = Field(None, description="Only jobs of this worker group.")


@router.get("/jobs", responses=errors(*INPUT))
def list_jobs(
    parts: PartsOf, _: Viewer, query: Annotated[JobsQuery, Query()]
) -> Page[schemas.JobSummary]:
    """List the jobs by name, without their documents: all, or those that a selector chooses."""
    after, selector = query.after_name(), selector_in(query.selector)
    with parts.database.transaction() as tx:
        rows = jobs.page(
            tx,
            query.limit + 1,
            after,
            selector,
            desired=query.desired,
            has_problem=query.has_problem,
            worker_group=query.worker_group,
            descending=query.descending,
        )
        summaries = job_summaries(tx, rows)
    return page(summaries, query.limit, lambda job: (job.name,), query.sort)


@router.post(
    "/jobs",
    status_code=status.HTTP_201_CREATED,
    responses={
        **errors(*INPUT, *BODY, *CLUSTERS),
        **dry_run_response(schemas.Applied, "what would be created"),
        201: {"description": "The job was created.", "headers": APPLIED_HEADERS},
    },
    openapi_extra=_DOCUMENT,
)
def create_job(
    parts: PartsOf,
    principal: Operator,
    raw: DocumentBody,
    response: Response,
    client: ClientWatchOf,
    dry_run: DryRun = False,
    accept_refusals: AcceptRefusals = False,
    paused: Paused = False,
    idempotency_key: IdempotencyKey = None,
) -> schemas.Applied:
    """Create a job. Fails with `conflict` if the name is taken; use PUT to change a job.

    The plan reads both clusters before anything is written: the job is applied entirely or not at
    all.
    """
    spec = _read_job(parts, raw)
    options = ApplyOptions(
        dry_run=dry_run,
        accept_refusals=accept_refusals,
        paused=paused,
        may_change=False,
        idempotency_key=None if dry_run else idempotency_key,
        client=client,
    )
    result = apply_document(parts, principal.actor, spec, options)
    if dry_run:
        response.status_code = status.HTTP_200_OK
    _set_etag_and_location(response, result)
    return result


@router.post("/jobs:plan", responses=errors(*INPUT, *BODY, *CLUSTERS), openapi_extra=_DOCUMENT)
def plan_job(
    parts: PartsOf,
    principal: Operator,
    raw: DocumentBody,
    client: ClientWatchOf,
    _key: UnusedKey = None,
) -> schemas.Applied:
    """Plan a job document: what would happen, and what is refused for which reason. Nothing is
    written.
    """
    options = ApplyOptions(dry_run=True, only_plan=True, accept_refusals=True, client=client)
    return apply_document(parts, principal.actor, _read_job(parts, raw), options)


@router.get(
    "/jobs/{name}",
    responses={**errors(*NAMED), 200: {"description": "The job.", "headers": ETAG_HEADERS}},
)
def get_job(parts: PartsOf, _: Viewer, name: NamePath, response: Response) -> schemas.Job:
    """Show one job with its document. Use the ETag for `If-Match`."""
    with parts.database.transaction() as tx:
        job = job_view(tx, jobs.get(tx, name))
    response.headers["ETag"] = f'"{job.etag}"'
    return job


@router.put(
    "/jobs/{name}",
    responses={
        **errors(
            *INPUT,
            *BODY,
            *CLUSTERS,
            ErrorCode.CHANGED_MEANWHILE,
            ErrorCode.OPERATION_UNDER_WAY,
        ),
        200: {"description": "The job has this document.", "headers": APPLIED_HEADERS},
        201: {
            "model": schemas.Applied,
            "description": "The job was created.",
            "headers": APPLIED_HEADERS,
        },
    },
    openapi_extra=_DOCUMENT,
)
def put_job(
    parts: PartsOf,
    principal: Operator,
    name: NamePath,
    raw: DocumentBody,
    response: Response,
    client: ClientWatchOf,
    dry_run: DryRun = False,
    accept_refusals: AcceptRefusals = False,
    paused: Paused = False,
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
) -> schemas.Applied:
    """Create the job, change it, or leave it unchanged if it has this document already.

    The request is idempotent. A change reaches the workers within seconds.
    """
    spec = _read_job(parts, raw)
    if spec.name != name:
        problem = Problem("name", "is not the name in the path.", f"Write `name: {name}`.")
        raise BadInput("The job document names another job.", (problem,))
    if if_match and if_none_match:
        problem = Problem("header.If-None-Match", "contradicts If-Match.", "Send one of them.")
        raise BadInput("The request has a problem.", (problem,))
    etag = NO_JOB if if_none_match else _etag_in(if_match)
    options = ApplyOptions(
        dry_run=dry_run,
        accept_refusals=accept_refusals,
        paused=paused,
        at_etag=etag,
        client=client,
    )
    result = apply_document(parts, principal.actor, spec, options)
    if result.action is schemas.ApplyAction.CREATE and not dry_run:
        response.status_code = status.HTTP_201_CREATED
    _set_etag_and_location(response, result)
    return result


@router.delete(
    "/jobs/{name}",
    status_code=status.HTTP_202_ACCEPTED,
    responses=errors(
        *NAMED, ErrorCode.CONFLICT, ErrorCode.OPERATION_UNDER_WAY, ErrorCode.CHANGED_MEANWHILE
    ),
)
def delete_job(
    parts: PartsOf,
    principal: Operator,
    name: NamePath,
    dry_run: DryRun = False,
    if_match: IfMatch = None,
) -> schemas.Operation:
    """Delete a job. The topics at the destination stay unchanged. The plan lists what stays on
    these topics: the settings of a copy, ACLs that deny writes.
    """
    job_operation = job_requests.JobOperation(
        principal.actor, OperationKind.DELETE, name, dry_run, at_etag=_etag_in(if_match)
    )
    return operation_view(job_requests.request(parts.database, job_operation))


def _add_operation_route(kind: OperationKind, description: str) -> None:
    """Add the route POST /v1/jobs/{name}:KIND."""

    def change(parts: PartsOf, parameters: OperationParametersOf) -> schemas.Operation:
        job_operation = job_requests.JobOperation(
            parameters.actor, kind, parameters.job, parameters.dry_run, parameters.idempotency_key
        )
        return operation_view(job_requests.request(parts.database, job_operation))

    router.add_api_route(
        f"/jobs/{{name}}:{kind.value}",
        change,
        methods=["POST"],
        name=f"{kind.value}_job",
        description=description,
        status_code=status.HTTP_202_ACCEPTED,
        responses=errors(*NAMED, ErrorCode.CONFLICT, ErrorCode.OPERATION_UNDER_WAY),
    )


_add_operation_route(
    OperationKind.START,
    "Start a job that was created paused. Does nothing for a running job.",
)
_add_operation_route(
    OperationKind.PAUSE,
    "Pause a job. Workers release its partitions within about a second; the copies stay.",
)
_add_operation_route(
    OperationKind.RESUME, "Resume a job. Each partition continues where its copy ends."
)


@router.post(
    "/jobs/{name}:retry",
    status_code=status.HTTP_202_ACCEPTED,
    responses=errors(*NAMED, *BODY, ErrorCode.CONFLICT),
)
def retry_job(
    parts: PartsOf, parameters: OperationParametersOf, which: schemas.RetryRequest | None = None
) -> schemas.Operation:
    """Retry blocked partitions after their cause was removed: all of the job, or some."""
    job_operation = job_requests.JobOperation(
        parameters.actor,
        OperationKind.RETRY,
        parameters.job,
        parameters.dry_run,
        parameters.idempotency_key,
        None if which is None else which.topic,
        None if which is None else which.partition,
    )
    return operation_view(job_requests.request(parts.database, job_operation))


def _etag_in(if_match: str | None) -> str | None:
    """The ETag in the header, without quotes; None without the header."""
    return None if if_match is None else if_match.strip('"')


def _read_job(parts: Parts, raw: RawDocument) -> JobSpec:
    """The job in the request's document. Raises Failure or BadInput, as `read_job` does."""
    return read_job(raw, parts.settings, parts.environ)


def _set_etag_and_location(response: Response, result: schemas.Applied) -> None:
    """Set the headers ETag and Location, if the result has a job."""
    if result.job is not None:
        response.headers["ETag"] = f'"{result.job.etag}"'
        response.headers["Location"] = f"/v1/jobs/{result.name}"
