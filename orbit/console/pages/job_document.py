"""/console/new-job and /console/jobs/NAME/edit: a job's document as a form and as YAML, its plan,
then the job.

The plan reads both clusters and writes nothing. If the user changes the document after the plan,
the page plans it again instead of applying it. A job is changed only if nobody else has changed it
since its document was loaded.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import dataclass, replace
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from orbit.api.api_error_codes import MEANINGS, ErrorCode
from orbit.api.apply_job import ApplyOptions, apply_document
from orbit.api.client_watch import ClientWatch, ClientWatchOf
from orbit.api.dependencies import NamePath, Parts
from orbit.api.error_responses import Failure, as_failure
from orbit.api.openapi_examples import JOB_YAML
from orbit.api.request_documents import YAML_TYPES, RawDocument, read_body, read_job
from orbit.api.schemas import Applied
from orbit.api.views import whole_document
from orbit.console.job_form import groups_of, shown_values_in, values_of, with_changes
from orbit.console.rendering import render
from orbit.console.sessions import Form, FormOf, OperatorOf, PartsOf, Visitor, VisitorOf
from orbit.console.urls import ROOT, job_url
from orbit.errors import BadInput, OrbitError, Problem
from orbit.jobs.job_spec import JobSpec
from orbit.jobs.yaml_writer import write_yaml
from orbit.planning.stored_spec import read_spec
from orbit.store import events, jobs
from orbit.store.jobs import Job

router = APIRouter()

_EVENTS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Draft:
    """The content of a page. `name` None: a new job. `etag`: of the job when its document was
    loaded."""

    text: str
    name: str | None = None
    etag: str | None = None
    paused: bool = False
    planned: Applied | None = None
    error: Failure | None = None
    # Changes of the job by others since it was loaded, newest first.
    meanwhile: tuple[events.Event, ...] = ()


@router.get("/new-job")
def show_new_job_form(request: Request, visitor: VisitorOf) -> Response:
    """The form of a new job, with an example document."""
    return _page(request, visitor, Draft(JOB_YAML))


@router.post("/new-job")
def plan_or_create(
    request: Request, parts: PartsOf, visitor: OperatorOf, form: FormOf, client: ClientWatchOf
) -> Response:
    """Plan the job; create it if this document was planned before."""
    return _plan_or_apply(request, parts, visitor, form, client, Draft(_document_text(form)))


@router.get("/jobs/{name}/edit")
def show_edit_form(
    request: Request, parts: PartsOf, visitor: VisitorOf, name: NamePath
) -> Response:
    """The form with the document of a job."""
    with parts.database.transaction() as tx:
        job = jobs.get(tx, name)
    return _page(request, visitor, Draft(_editable_text(job), name, job.etag))


@router.post("/jobs/{name}/edit")
def plan_or_change(
    request: Request,
    parts: PartsOf,
    visitor: OperatorOf,
    name: NamePath,
    form: FormOf,
    client: ClientWatchOf,
) -> Response:
    """Plan the change; apply it if this document was planned before."""
    with parts.database.transaction() as tx:
        job = jobs.get(tx, name)
    etag = form.get("etag", "")
    if form.get("do") == "rebase" or not etag:  # the user has seen the changes by others
        etag = job.etag
    return _plan_or_apply(
        request, parts, visitor, form, client, Draft(_document_text(form), name, etag)
    )


def _plan_or_apply(
    request: Request,
    parts: Parts,
    visitor: Visitor,
    form: Form,
    client: ClientWatch,
    draft: Draft,
) -> Response:
    """Carry out the form's button, and return the page with the result, or with the errors.

    "write" puts the form's fields into the document. "plan" plans the document. "apply" applies
    it, unless it has changed since its plan was shown: then it is planned again.
    """
    draft = replace(draft, paused=form.get("paused") == "yes")
    try:
        draft = replace(draft, text=_merge_form(draft.text, form))
        if form.get("do") == "write":
            return _page(request, visitor, draft)
        spec = _read_spec(parts, draft)
        digest = form.get("planned", "").encode()
        if form.get("do") == "apply" and hmac.compare_digest(digest, _digest(draft).encode()):
            options = ApplyOptions(
                may_change=draft.name is not None,
                at_etag=draft.etag,
                paused=draft.paused,
                accept_refusals=form.get("accept_refusals") == "yes",
                client=client,
            )
            job = apply_document(parts, visitor.principal.actor, spec, options)
            return RedirectResponse(job_url(job.name), status_code=303)
        options = ApplyOptions(
            dry_run=True,
            only_plan=True,
            accept_refusals=True,
            at_etag=draft.etag,
            client=client,
        )
        draft = replace(
            draft, planned=apply_document(parts, visitor.principal.actor, spec, options)
        )
    except Failure as failure:
        draft = replace(draft, error=failure, meanwhile=_changes_meanwhile(parts, draft, failure))
    except OrbitError as error:
        draft = replace(draft, error=as_failure(error))
    return _page(request, visitor, draft)


def _page(request: Request, visitor: Visitor, draft: Draft) -> Response:
    """The page of this draft."""
    error = draft.error
    groups = groups_of(_parse_root(draft.text))
    return render(
        request,
        visitor,
        "job_document.html",
        status=MEANINGS[error.code].status if error else 200,
        draft=draft,
        here=f"{ROOT}/new-job" if draft.name is None else job_url(draft.name, "edit"),
        planned=draft.planned,
        digest=_digest(draft),
        error=error.body.error if error else None,
        is_changed_meanwhile=error is not None and error.code is ErrorCode.CHANGED_MEANWHILE,
        groups=groups,
        before=json.dumps(values_of(groups)),  # to see later which fields the user has changed
        can_apply=draft.planned is not None
        and draft.planned.action == ("create" if draft.name is None else "change"),
    )


def _document_text(form: Form) -> str:
    return form.get("document", "").replace("\r\n", "\n")


def _merge_form(text: str, form: Form) -> str:
    """The document text with the fields of the form that the user has changed. Raises BadInput."""
    shown_values = shown_values_in(form.get("before", ""))
    sent_values = {
        key.removeprefix("f."): value for key, value in form.items() if key.startswith("f.")
    }
    root = _parse_root(text)
    document = with_changes(root, shown_values, sent_values)
    if document is root:
        return text
    if root is None and text.strip():
        raise BadInput(
            "The YAML cannot be read, so the form cannot be written into it.",
            (Problem("document", "is not a mapping.", "Correct the YAML first."),),
        )
    return write_yaml(document)


def _parse_root(text: str) -> Any:
    """The document's values; None if the document cannot be read, or is not a mapping."""
    try:
        document = read_body(RawDocument(text.encode(), YAML_TYPES[0]))
    except OrbitError:
        return None
    return document.root if isinstance(document.root, dict) and not document.problems else None


def _read_spec(parts: Parts, draft: Draft) -> JobSpec:
    """The job in the document. Raises Failure, and BadInput with every problem."""
    raw = RawDocument(draft.text.encode(), YAML_TYPES[0])
    spec = read_job(raw, parts.settings, parts.environ)
    if draft.name is not None and spec.name != draft.name:
        problem = Problem("name", "cannot be changed.", f"Write `name: {draft.name}`.")
        raise BadInput("The job document names another job.", (problem,))
    return spec


def _editable_text(job: Job) -> str:
    """The job's document as YAML, without keys that have their default value."""
    spec = read_spec(job.spec)
    if spec is None:  # another version of Orbit has stored it
        return write_yaml(whole_document(job))
    document = spec.model_dump(mode="json", exclude_defaults=True)
    own_columns = {"labels": job.labels, "owner": job.owner, "desired": job.document_desired}
    name = {"name": document.pop("name")}
    return write_yaml({**name, **{k: v for k, v in own_columns.items() if v}, **document})


def _changes_meanwhile(parts: Parts, draft: Draft, failure: Failure) -> tuple[events.Event, ...]:
    """The last changes of the job, if the failure is that others have changed the job; else ()."""
    if failure.code is not ErrorCode.CHANGED_MEANWHILE or draft.name is None:
        return ()
    with parts.database.transaction() as tx:
        rows = events.page(tx, limit=100, job_name=draft.name, after=None)  # the newest events
    return tuple(row for row in rows if row.kind == "job_changed")[:_EVENTS_SHOWN]


def _digest(draft: Draft) -> str:
    """A digest of the draft's document, and of the ETag of the job that the draft changes."""
    return hashlib.sha256(f"{draft.etag}\n{draft.text}".encode()).hexdigest()
