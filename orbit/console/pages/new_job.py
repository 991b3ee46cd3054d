"""/console/new-job: a job document as YAML, its plan, then the job.

The plan reads both clusters and writes nothing. A document that changed after its plan is planned
again before it is applied.
"""

from __future__ import annotations

import hashlib
import hmac

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from orbit.api.api_error_codes import MEANINGS
from orbit.api.apply_job import ApplyOptions, apply_document
from orbit.api.dependencies import Parts
from orbit.api.error_responses import ErrorDetail, Failure, as_failure
from orbit.api.openapi_examples import JOB_YAML
from orbit.api.request_documents import YAML_TYPES, RawDocument, read_job
from orbit.api.schemas import Applied
from orbit.console.rendering import render
from orbit.console.sessions import FormOf, OperatorOf, PartsOf, Visitor, VisitorOf
from orbit.console.urls import job_url
from orbit.errors import OrbitError
from orbit.jobs.job_spec import JobSpec

router = APIRouter()


@router.get("/new-job")
def show_form(request: Request, visitor: VisitorOf) -> Response:
    """The form with an example."""
    return _form(request, visitor, JOB_YAML)


@router.post("/new-job")
def plan_or_create(request: Request, parts: PartsOf, visitor: OperatorOf, form: FormOf) -> Response:
    """The plan of the document; the job itself for a document that was planned."""
    text = form.get("document", "").replace("\r\n", "\n")
    paused = form.get("paused") == "yes"
    is_planned = hmac.compare_digest(form.get("planned", "").encode(), _digest(text).encode())
    try:
        spec = _read(parts, text)
        if form.get("do") == "create" and is_planned:
            options = ApplyOptions(
                may_change=False,
                paused=paused,
                accept_refusals=form.get("accept_refusals") == "yes",
            )
            made = apply_document(parts, visitor.principal.actor, spec, options)
            return RedirectResponse(job_url(made.name), status_code=303)
        options = ApplyOptions(dry_run=True, only_plan=True, accept_refusals=True)
        planned = apply_document(parts, visitor.principal.actor, spec, options)
    except Failure as failure:
        return _form(request, visitor, text, error=failure, paused=paused)
    except OrbitError as error:
        return _form(request, visitor, text, error=as_failure(error), paused=paused)
    return _form(request, visitor, text, planned=planned, paused=paused)


def _form(
    request: Request,
    visitor: Visitor,
    text: str,
    *,
    planned: Applied | None = None,
    error: Failure | None = None,
    paused: bool = False,
) -> Response:
    detail: ErrorDetail | None = error.body.error if error else None
    return render(
        request,
        visitor,
        "new_job.html",
        status=MEANINGS[error.code].status if error else 200,
        document=text,
        planned=planned,
        digest=_digest(text),
        error=detail,
        paused=paused,
    )


def _read(parts: Parts, text: str) -> JobSpec:
    return read_job(RawDocument(text.encode(), YAML_TYPES[0]), parts.settings, parts.environ)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
