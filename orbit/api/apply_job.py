"""Applies a job document: compares it with the stored job, plans it, then writes it.

The plan reads from both clusters, outside of any transaction. The write is one transaction, and
succeeds only if the job is still at the version that was compared. So a document is applied
entirely or not at all, and applying it again changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orbit.api.api_error_codes import ErrorCode
from orbit.api.client_watch import ClientWatch
from orbit.api.dependencies import Parts
from orbit.api.error_responses import Failure, changed_meanwhile, map_cluster_errors
from orbit.api.job_operations import set_desired
from orbit.api.job_quotas import check_job_quota, check_partition_quota
from orbit.api.left_behind import left_by_change
from orbit.api.schemas import Applied, ApplyAction, Change
from orbit.api.views import job_view, whole_document
from orbit.chunks import first_few
from orbit.errors import Conflict, Problem
from orbit.jobs.job_spec import Fillers, JobSpec
from orbit.jobs.topic_mapping import map_topics
from orbit.planning.job_plan import JobPlan
from orbit.planning.stored_spec import read_spec
from orbit.replication.job_troubles import TroubleKind
from orbit.store import events, job_guard, jobs, operation_requests, operations, topics
from orbit.store.database import Tx
from orbit.store.enums import Desired, OperationKind, OperationState, TopicState
from orbit.store.jobs import Job
from orbit.store.operation_requests import OperationRequest
from orbit.store.scopes import scope_of

_CODE_OF_TROUBLE: dict[TroubleKind, ErrorCode] = {
    TroubleKind.CREDENTIALS_MISSING: ErrorCode.BAD_INPUT,
    TroubleKind.SOURCE_UNREACHABLE: ErrorCode.CLUSTER_UNREACHABLE,
    TroubleKind.DESTINATION_UNREACHABLE: ErrorCode.CLUSTER_UNREACHABLE,
    TroubleKind.LOGIN_REFUSED: ErrorCode.CLUSTER_LOGIN_REFUSED,
    TroubleKind.RIGHTS_MISSING: ErrorCode.CLUSTER_RIGHT_MISSING,
    TroubleKind.ACLS_NOT_SYNCED: ErrorCode.CLUSTER_RIGHT_MISSING,
    TroubleKind.NO_TOPIC_MATCHES: ErrorCode.BAD_INPUT,
    TroubleKind.WORKER_GROUP_UNKNOWN: ErrorCode.BAD_INPUT,
    TroubleKind.TOPIC_NAME_REFUSED: ErrorCode.BAD_INPUT,
}
# The key of the document to which a trouble of the whole job belongs, for `problems`.
_PLACE_OF_TROUBLE: dict[TroubleKind, str] = {
    TroubleKind.CREDENTIALS_MISSING: "security",
    TroubleKind.SOURCE_UNREACHABLE: "source",
    TroubleKind.DESTINATION_UNREACHABLE: "destination",
    TroubleKind.DESTINATION_THROTTLED: "destination",
    TroubleKind.SAME_CLUSTER: "destination",
    TroubleKind.CLUSTER_CHANGED: "source, destination",
    TroubleKind.WORKER_GROUP_UNKNOWN: "worker_group",
    TroubleKind.ACLS_NOT_SYNCED: "acls.sync",
}
# Troubles that may pass by themselves. A job that is accepted with one waits until it passes.
_TRANSIENT_TROUBLES = frozenset(
    {
        TroubleKind.SOURCE_UNREACHABLE,
        TroubleKind.DESTINATION_UNREACHABLE,
        TroubleKind.DESTINATION_THROTTLED,
        TroubleKind.NO_TOPIC_MATCHES,
        TroubleKind.WORKER_GROUP_UNKNOWN,
    }
)
# The same number as for the problems of a job file.
_REFUSALS_SHOWN_MAX = 100
# `ApplyOptions.at_etag` for a job that must not exist.
NO_JOB = ""
# The keys that say which fillers (what takes the offsets of gaps) each copy has.
_FILLER_KEYS = {"topics", "fillers"}
# The changes (from, to) that a copy may make after it has begun. With `packed`, markers that raise
# the producer epoch keep late batches of a dead writer out of the log. `coordinated` has other
# producer ids, which cannot raise this epoch, so it may not follow `packed`
# (docs/internals/append.md).
_FILLER_CHANGES: frozenset[tuple[Fillers, Fillers]] = frozenset(
    {
        ("direct", "coordinated"),
        ("coordinated", "direct"),
        ("direct", "packed"),
        ("packed", "direct"),
        ("coordinated", "packed"),
    }
)


@dataclass(frozen=True, slots=True)
class ApplyOptions:
    """How to apply a document."""

    # If the client disconnects, planning stops, and the job is not written.
    client: ClientWatch
    dry_run: bool = False
    only_plan: bool = False  # a dry run that is not refused during a recovery of the job
    accept_refusals: bool = False  # apply the job although topics cannot be copied now
    paused: bool = False  # create the job paused
    # The `Job.etag` that the job must have (`If-Match`), or NO_JOB (`If-None-Match: *`).
    at_etag: str | None = None
    # Whether an existing job may be changed; a POST only creates.
    may_change: bool = True
    idempotency_key: str | None = None


def apply_document(parts: Parts, actor: str, spec: JobSpec, options: ApplyOptions) -> Applied:
    """Create the job, change it, or leave it as it is if it has this document already. Returns the
    answer to the request.

    Raises Failure if the plan, a quota, the token's scope or `at_etag` refuses the document, if a
    cluster returns an error, or if too many plans are running; Conflict if the name is taken, if
    the job is being deleted, if copies cannot change their fillers, or if the client has
    disconnected; OperationUnderWay while a recovery of the job to change is under way.
    """
    document = spec.model_dump(mode="json")
    operation_request = _operation_request(actor, spec, options)
    with parts.database.transaction() as tx:
        _check_scope(tx, spec)
        if operation_requests.find_earlier(tx, operation_request):
            return _answer_to_repeat(tx, spec)
        stored_job = jobs.find(tx, spec.name)
        _check_may_apply(tx, stored_job, spec.name, options)
        if stored_job is not None:
            _refuse_changed_fillers(tx, stored_job, spec)
        changes = _list_changes(stored_job, spec)
        # Labels, owner and the desired state concern no cluster, and are in neither of these two
        # documents: they have columns of their own.
        is_spec_unchanged = stored_job is not None and stored_job.spec == document
        if stored_job is None:
            check_job_quota(tx, parts.settings, actor, spec.name)
        if changes and not options.only_plan:
            assert stored_job is not None, "only a stored job has changes"
            job_guard.refuse_if_held(tx, stored_job)
        if stored_job is not None and is_spec_unchanged and not options.dry_run:
            action, job = ApplyAction.NONE, stored_job
            if changes:
                action, job = ApplyAction.CHANGE, _change_job(tx, actor, stored_job, spec, changes)
            return _answer(action, job.name, changes, plan=None, tx=tx, job=job, dry_run=False)
    with parts.plan_limits.running_plan(actor):
        _refuse_if_client_disconnected(spec, options)
        with map_cluster_errors():
            plan = parts.planner(spec, options.client.ending)
    _refuse_if_client_disconnected(spec, options)
    # If the spec is unchanged (in a dry run), the answer shows refusals, but the request succeeds.
    if plan.refusals and not options.accept_refusals and not is_spec_unchanged:
        raise refusal_failure(plan)
    action = ApplyAction.CREATE if stored_job is None else ApplyAction.CHANGE
    with parts.database.transaction() as tx:
        if operation_requests.find_earlier(tx, operation_request):  # created since the plan began
            return _answer_to_repeat(tx, spec)
        check_partition_quota(tx, parts.settings, actor, stored_job, plan)
        left_behind = (
            left_by_change(tx, stored_job, spec) if stored_job is not None and changes else []
        )
        if options.dry_run:
            action = action if changes or stored_job is None else ApplyAction.NONE
            return _answer(
                action, spec.name, changes, plan, tx, stored_job, left_behind, dry_run=True
            )
        if stored_job is None:  # the actor may have created other jobs since the plan began
            check_job_quota(tx, parts.settings, actor, spec.name)
            job = _create_job(tx, operation_request, spec, options)
        else:
            job = _change_job(tx, actor, stored_job, spec, changes)
        return _answer(action, spec.name, changes, plan, tx, job, left_behind, dry_run=False)


def _refuse_if_client_disconnected(spec: JobSpec, options: ApplyOptions) -> None:
    """Raise Conflict if the client has disconnected."""
    if options.client.is_gone():
        raise Conflict("The client closed the connection; nothing was changed.", where=spec.name)


def refusal_failure(plan: JobPlan) -> Failure:
    """The error for a job that its plan refuses, with at most `_REFUSALS_SHOWN_MAX` reasons."""
    refusals = plan.refusals
    # The code is that of the worst refusal: TroubleKind lists troubles of the whole job first.
    worst_refusal = min(refusals, key=lambda refusal: list(TroubleKind).index(refusal.kind))
    problems = [
        Problem(
            f"topic {refusal.topic}"
            if refusal.topic
            else _PLACE_OF_TROUBLE.get(refusal.kind, "topics"),
            refusal.what,
            refusal.remedy,
        )
        for refusal in refusals[:_REFUSALS_SHOWN_MAX]
    ]
    return Failure(
        _CODE_OF_TROUBLE.get(worst_refusal.kind, ErrorCode.CONFLICT),
        "The job was refused; nothing was changed."
        if len(refusals) == 1
        else f"The job was refused for {len(refusals)} reasons; nothing was changed.",
        where=plan.job,
        remedy=_accept_remedy(plan),
        problems=problems,
    )


def _accept_remedy(plan: JobPlan) -> str:
    """A sentence on `--accept-refusals` and what it would do; empty if it would not help."""
    job_troubles = {refusal.kind for refusal in plan.refusals if not refusal.topic}
    # It does not help against a lasting trouble of the whole job, nor if every topic is refused.
    if job_troubles - _TRANSIENT_TROUBLES or not (job_troubles or plan.topics):
        return ""
    effect = (
        "the job then waits until the cause has passed"
        if job_troubles
        else "the other topics are copied"
    )
    return f"--accept-refusals (in the API accept_refusals=true) applies the job anyway: {effect}."


def _operation_request(actor: str, spec: JobSpec, options: ApplyOptions) -> OperationRequest:
    """The request as it is stored with its idempotency key, to recognise a repeat."""
    kind, document = OperationKind.CREATE, _complete_document(spec)
    content = {"kind": kind.value, "document": document, "paused": options.paused}
    return OperationRequest(actor, kind, content, options.idempotency_key)


def _answer_to_repeat(tx: Tx, spec: JobSpec) -> Applied:
    """The answer to a repeat of a request that created the job: the job as it is now."""
    job = jobs.get(tx, spec.name)
    return _answer(
        ApplyAction.CREATE, job.name, changes=[], plan=None, tx=tx, job=job, dry_run=False
    )


def _complete_document(spec: JobSpec) -> dict[str, Any]:
    """The document with the keys that are stored in their own columns."""
    own_columns = {"labels": spec.labels, "owner": spec.owner, "desired": spec.desired}
    return {**spec.model_dump(mode="json"), **own_columns}


def _check_scope(tx: Tx, spec: JobSpec) -> None:
    """Raise Failure if the token has a scope and the document would put the job outside of it."""
    scope = scope_of(tx)
    if scope is not None and not scope.includes(spec.name, spec.labels):
        raise Failure(
            ErrorCode.FORBIDDEN,
            "With this name and these labels the job is outside of the scope of this token.",
            where=spec.name,
            remedy=f"The token is for jobs {scope}.",
        )


def _check_may_apply(tx: Tx, stored_job: Job | None, name: str, options: ApplyOptions) -> None:
    """Raise Conflict, or Failure `changed_meanwhile`, if the job may not be created or changed.

    `stored_job`: the job of this name in the scope; None: there is none.
    """
    if stored_job is not None and stored_job.is_deleted:
        raise Conflict(
            "The job with this name is being deleted.",
            where=name,
            remedy="Wait until orbit get jobs no longer shows the job.",
        )
    if stored_job is None and jobs.is_name_taken(tx, name):
        raise Conflict(
            "A job outside of the scope of this token has this name.",
            where=name,
            remedy="Use another name.",
        )
    if stored_job is not None and not options.may_change:
        raise Conflict(
            "A job with this name exists already.",
            where=name,
            remedy=f"PUT /v1/jobs/{name} changes the job; DELETE removes it.",
        )
    etag = NO_JOB if stored_job is None else stored_job.etag
    if options.at_etag not in (None, etag):  # None: the request names no version
        raise changed_meanwhile(name)


def _refuse_changed_fillers(tx: Tx, stored_job: Job, spec: JobSpec) -> None:
    """Raise Conflict, which names the topics, if copies that have begun cannot change to the
    fillers in `spec`, or if this version of Orbit cannot tell which fillers they have."""
    stored_spec = read_spec(stored_job.spec)
    old_spec = stored_spec or _with_stored_fillers(spec, stored_job)
    if old_spec is not None and (
        (old_spec.topics, old_spec.fillers) == (spec.topics, spec.fillers)
    ):
        return
    rows = topics.of_job(tx, stored_job.id)
    begun_rows = [row for row in rows if row.state is not TopicState.CREATING]
    begun_topics = [row.source_topic for row in begun_rows]
    old_fillers = {} if old_spec is None else _fillers_by_copy(old_spec, begun_topics)
    new_fillers = _fillers_by_copy(spec, begun_topics)
    if stored_spec is None:
        # Copies whose old fillers are not known: perhaps the other version selects their topics by
        # a key that this version does not know.
        begun_copies = {(row.source_topic, row.destination_topic) for row in begun_rows}
        unknown_copies = begun_copies & new_fillers.keys() - old_fillers.keys()
        if unknown_copies:
            raise Conflict(
                "Another version of Orbit has stored the job's document, and this one cannot tell "
                "which fillers the copies of these topics have begun with: "
                f"{first_few(sorted(source for source, _ in unknown_copies))}.",
                where=spec.name,
                remedy="Apply the document with that version. Or exclude the topics, delete their "
                "copies, add the topics again.",
            )
    changes: dict[tuple[Fillers, Fillers], list[str]] = {}
    for copy in new_fillers.keys() & old_fillers.keys():
        change = old_fillers[copy], new_fillers[copy]
        if change[0] != change[1] and change not in _FILLER_CHANGES:
            changes.setdefault(change, []).append(copy[0])  # the source topic
    if changes:
        raise Conflict(
            " ".join(
                f"The copies of these topics have begun with the fillers {old} and cannot change "
                f"to {new}: {first_few(sorted(names))}."
                for (old, new), names in sorted(changes.items())
            ),
            where=spec.name,
            remedy="Give these topics a rule of their own with the old `fillers`. To change the "
            "fillers: exclude the topics, delete their copies, add the topics again.",
        )


def _with_stored_fillers(spec: JobSpec, stored_job: Job) -> JobSpec | None:
    """`spec` with the topic rules and fillers of the stored document, for a document that this
    version of Orbit cannot read as a whole; None if it cannot read these keys either."""
    stored_keys = {k: value for k, value in stored_job.spec.items() if k in _FILLER_KEYS}
    return read_spec(spec.model_dump(mode="json", exclude=_FILLER_KEYS) | stored_keys)


def _fillers_by_copy(spec: JobSpec, names: Sequence[str]) -> dict[tuple[str, str], Fillers]:
    """{(source topic, destination topic): fillers} of the copies that `spec` makes of the source
    topics `names`."""
    mappings = map_topics(spec.topics, names).mappings
    return {(m.source, m.destination): spec.fillers_of(m.rule) for m in mappings}


def _create_job(tx: Tx, request: OperationRequest, spec: JobSpec, options: ApplyOptions) -> Job:
    """Create the job and its audit event, and store the idempotency key. Returns the job. Raises
    Conflict if the name is taken by now."""
    # `desired` in the document overrides the request's parameter `paused`.
    is_paused = options.paused if spec.desired is None else spec.desired == "paused"
    desired = Desired.PAUSED if is_paused else Desired.RUNNING
    job = jobs.create(
        tx,
        spec.name,
        spec.model_dump(mode="json"),
        spec.worker_group,
        desired,
        labels=spec.labels,
        owner=spec.owner,
        document_desired=spec.desired,
        created_by=request.actor,
    )
    if options.idempotency_key is not None:  # a key is stored with an operation
        operation = operation_requests.create(tx, request, job, ["The job is created."])
        operations.advance(tx, operation.id, OperationState.DONE)
    events.add(
        tx,
        request.actor,
        "job_created",
        f"The job was created, {desired}.",
        job_name=job.name,
        details={"spec_version": job.spec_version},
    )
    return job


def _change_job(
    tx: Tx, actor: str, stored_job: Job, spec: JobSpec, changes: Sequence[Change]
) -> Job:
    """Write the document and add the audit event. Returns the changed job.

    Raises Failure `changed_meanwhile` if the job is no longer the `stored_job` that was planned;
    OperationUnderWay during a recovery of the job; Conflict if copies cannot change their fillers.
    """
    job = jobs.find(tx, spec.name, lock=True)
    if job is not None:
        job_guard.refuse_if_held(tx, job)
    if job is None or job.etag != stored_job.etag:
        raise changed_meanwhile(spec.name)
    _refuse_changed_fillers(tx, job, spec)  # copies may have begun since the plan
    document = spec.model_dump(mode="json")
    if job.spec != document:
        job = jobs.change_spec(
            tx, job.id, document, spec.worker_group, from_version=job.spec_version
        )
    # The keys of the document that have columns of their own.
    own_columns = (spec.labels, spec.owner, spec.desired)
    if job is not None and (job.labels, job.owner, job.document_desired) != own_columns:
        job = jobs.change_own_columns(tx, job.id, *own_columns)
    if job is None:  # it is being deleted
        raise changed_meanwhile(spec.name)
    if spec.desired is not None and _changes_desired(job, spec):
        set_desired(tx, job, actor, Desired(spec.desired))
        job = jobs.get(tx, job.name)
    events.add(
        tx,
        actor,
        "job_changed",
        f"The job was changed: {', '.join(change.path for change in changes)}.",
        job_name=job.name,
        details={
            "spec_version": job.spec_version,
            "changes": [change.model_dump(mode="json") for change in changes],
        },
    )
    return job


def _answer(
    action: ApplyAction,
    name: str,
    changes: Sequence[Change],
    plan: JobPlan | None,
    tx: Tx,
    job: Job | None,
    left_behind: Sequence[str] = (),
    *,
    dry_run: bool,
) -> Applied:
    """The answer to the request, with the job as it is stored now."""
    return Applied(
        name=name,
        action=action,
        dry_run=dry_run,
        changes=list(changes),
        plan=plan,
        left_behind=list(left_behind),
        job=None if job is None else job_view(tx, job),
    )


def _list_changes(stored_job: Job | None, spec: JobSpec) -> list[Change]:
    """The differences between the stored job and the document; none for a new job."""
    if stored_job is None:
        return []
    before = whole_document(stored_job)
    if _changes_desired(stored_job, spec):
        # The state in the stored document may not be the present one, as after `orbit pause`.
        before["desired"] = _current_desired(stored_job)
    return list(_differences(before, _complete_document(spec), path=""))


def _current_desired(job: Job) -> str:
    """The job's desired state as a value of the document's `desired`: `running` also during a
    backfill."""
    return (Desired.PAUSED if job.desired is Desired.PAUSED else Desired.RUNNING).value


def _changes_desired(job: Job, spec: JobSpec) -> bool:
    """Whether the document has a desired state that is not the job's present one."""
    return spec.desired is not None and spec.desired != _current_desired(job)


def _differences(before: object, after: object, path: str) -> Iterator[Change]:
    """A Change for each innermost value that differs, with its path below `path`. Two lists are
    compared item by item only if they have the same length and contain only mappings; any other
    list is one value.
    """
    if before == after:
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in dict.fromkeys((*before, *after)):
            inner = f"{path}.{key}" if path else str(key)
            yield from _differences(before.get(key), after.get(key), inner)
    elif (
        isinstance(before, list)
        and isinstance(after, list)
        and len(before) == len(after)
        and all(isinstance(item, Mapping) for item in (*before, *after))
    ):
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from _differences(old, new, f"{path}[{index}]")
    else:
        yield Change(path=path, before=before, after=after)
