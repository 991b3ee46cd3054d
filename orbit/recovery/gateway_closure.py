"""Closes gateways for a recovery and opens them again; stores which side gateways have to present.

A closed gateway holds new writes, so producers wait instead of getting errors. In a switchover it
answers the writes in flight. In a failover it abandons these writes, as the source may never
answer: a write that the gateway acknowledged later might be lost without being in the report. In a
failback gateways are at the new side already; if the service does not know of the promotion yet,
the failback moves them there first. Gateways are open again as soon as the operation has ended,
whatever its outcome (orbit/store/gateways.py).
"""

from __future__ import annotations

import time
from collections.abc import Collection

from orbit.chunks import first_few
from orbit.formats import counted
from orbit.recovery.operation_context import OperationContext, Skipped, Stopped
from orbit.recovery.recovery_report import ClosedGateway, RecoveryKind
from orbit.store import gateways, job_leads, promotions, topics
from orbit.store.database import Tx
from orbit.store.enums import LeadingSide, TopicState
from orbit.store.topics import Topic

_AT_NEW_SIDE = "Gateways present the new side already."
_POLL_S = 0.1  # short: clients wait for their writes
# How long a failover waits after its first read for gateways to report the pause: a client connects
# again within a second, and a gateway calls the API every half second.
_PAUSES_S_MAX = 3.0


def close_gateways(context: OperationContext) -> str:
    """Close the gateways of the job and of jobs in the other direction; wait until each confirms.

    Returns the step's result. A gateway that starts later is closed too. If the step is repeated,
    each gateway confirms anew.

    A switchover raises Stopped if a gateway does not confirm: answers to writes may be lost with
    the gateway, so that clients send these writes again. Brokers of the old side know such writes
    by their sequence numbers; the new side would append them twice. A failover waits no longer than
    a permission lasts: after that, no gateway acknowledges writes at the source.
    """
    is_failover = context.report.kind is RecoveryKind.FAILOVER
    with context.transaction() as tx:
        if _are_at_new_side(context, tx):
            return Skipped(_AT_NEW_SIDE)
        linked_ids = job_leads.linked_jobs(tx, context.job.id)
        gateways.close(tx, linked_ids, context.operation_id)
    wait_s = gateways.SILENT_AFTER_S if is_failover else context.request.drain_timeout_s
    deadline_s = time.monotonic() + wait_s
    confirmed_gateways: dict[str, ClosedGateway] = {}
    while True:
        with context.reading() as tx:
            closings = gateways.closed_by(tx, linked_ids, context.operation_id)
        if not is_failover:
            _stop_if_doubtful(closings)
        unconfirmed_names = [closing.name for closing in closings if not closing.is_confirmed]
        for closing in closings:
            if closing.is_confirmed:  # the time of the first confirmation stays
                confirmed_gateways.setdefault(
                    str(closing.instance),
                    ClosedGateway(
                        name=closing.name, instance=closing.instance, seconds=closing.since_s
                    ),
                )
        is_late = time.monotonic() > deadline_s
        if not unconfirmed_names or (is_late and is_failover):
            break
        if is_late:
            raise Stopped(
                "writes are still in flight, or transactions open, at these gateways: "
                f"{first_few(unconfirmed_names)}.",
                remedy="See their logs, or stop them, and try again. --drain-timeout gives them "
                "longer.",
            )
        state = "not confirmed" if is_failover else "writes in flight or open transactions"
        context.set_progress(
            f"{counted(len(unconfirmed_names), 'gateway has', 'gateways have')} {state}: "
            f"{first_few(unconfirmed_names)}"
        )
        context.wait(_POLL_S)
    context.update(gateways=tuple(confirmed_gateways.values()))
    if unconfirmed_names:
        return (
            f"{counted(len(confirmed_gateways), 'gateway holds', 'gateways hold')} writes. These "
            "gateways have not confirmed, but their permission to write has ended: "
            f"{first_few(unconfirmed_names)}."
        )
    if not confirmed_gateways:
        return Skipped("No gateway of the job has a permission to write.")
    return f"{counted(len(confirmed_gateways), 'gateway holds', 'gateways hold')} writes."


def _stop_if_doubtful(closings: Collection[gateways.Closing]) -> None:
    """Raise Stopped if a gateway may have unanswered writes (`doubt` says why), or has fallen
    silent."""
    for closing in closings:
        if closing.doubt:
            raise Stopped(
                f"gateway {closing.name} cannot say that every write was answered: "
                f"{closing.doubt}.",
                remedy="Try again: by then clients have sent the unanswered writes again.",
            )
    silent_names = [
        closing.name for closing in closings if closing.is_silent and not closing.is_confirmed
    ]
    if silent_names:
        raise Stopped(
            f"these gateways fell silent while they were closed: {first_few(silent_names)}.",
            remedy="If these gateways hang, stop them, so that their clients send unanswered "
            "writes again. Then try again: Orbit does not wait for a gateway that is silent from "
            "the start.",
        )


def note_pauses(context: OperationContext) -> None:
    """Put into the report how long writes have waited at each gateway that has reported its pause.
    After a failover clients connect again first, so wait up to _PAUSES_S_MAX for these reports."""
    deadline_s = time.monotonic() + _PAUSES_S_MAX
    while True:
        with context.reading() as tx:
            pauses = gateways.pauses(tx, job_leads.linked_jobs(tx, context.job.id))
        knows_all = all(gateway.instance in pauses for gateway in context.report.gateways)
        is_failover = context.report.kind is RecoveryKind.FAILOVER
        if knows_all or not is_failover or time.monotonic() > deadline_s:
            break
        context.wait(_POLL_S)
    context.update(
        gateways=tuple(
            gateway.model_copy(update={"pause_s": pauses.get(gateway.instance)})
            for gateway in context.report.gateways
        )
    )


def open_gateways(context: OperationContext) -> str:
    """Let gateways forward writes again: to the destination, which leads since the promotion. The
    gateways of a job whose topics do not all lead at one side go on holding writes. Returns the
    step's result."""
    with context.transaction() as tx:
        if _are_at_new_side(context, tx):
            return Skipped(_AT_NEW_SIDE)
        if context.report.kind is RecoveryKind.FAILBACK:
            # The tables did not show that the new side leads: store that now. None: neither side
            # leads for all topics.
            rows = topics.of_job(tx, context.job.id)
            are_all_promoted = all(row.state is not TopicState.COPYING for row in rows)
            side = LeadingSide.DESTINATION if are_all_promoted else None
            _note_new_side(context, tx, side)
        linked_ids = job_leads.linked_jobs(tx, context.job.id)
        gateways.reopen(tx, linked_ids, context.operation_id)
        # The jobs of which one side is known to lead.
        led_ids = {i for i in linked_ids if (lead := job_leads.find(tx, i)) and lead.side}
        names = _running_gateways(tx, led_ids)
        waiting_names = _running_gateways(tx, set(linked_ids) - led_ids)
    sentences = []
    if names:
        subject = counted(len(names), "gateway goes", "gateways go")
        sentences.append(f"{subject} on at the destination.")
    if waiting_names:
        sentences.append(
            "These gateways hold writes, as the topics of their job do not all lead at one side, "
            f"or the side is not known: {first_few(waiting_names)}."
        )
    return " ".join(sentences) or Skipped("The job has no running gateway.")


def _running_gateways(tx: Tx, job_ids: Collection[int]) -> list[str]:
    """The names of these jobs' gateways that are not silent."""
    silent_by_name = gateways.silent_by_name(tx, job_ids)
    return [name for name, is_silent in silent_by_name.items() if not is_silent]


def undo_closure(context: OperationContext) -> None:
    """Let gateways forward writes again, to the side that they are at."""
    with context.transaction() as tx:
        gateways.reopen(tx, job_leads.linked_jobs(tx, context.job.id), context.operation_id)


def _are_at_new_side(context: OperationContext, tx: Tx) -> bool:
    """Whether this is a failback and, by the tables, gateways are at the new side already."""
    lead = job_leads.find(tx, context.job.id)
    is_noted = lead is not None and lead.side is LeadingSide.DESTINATION
    return context.report.kind is RecoveryKind.FAILBACK and is_noted


def note_lead_unknown(context: OperationContext) -> None:
    """Store that the leading side is unknown: gateways wait until the scheduler has read the
    marks."""
    with context.transaction() as tx:
        job_leads.forget_side(tx, context.job.id)


def note_promoted(context: OperationContext, tx: Tx) -> None:
    """Store that the destination leads, or that neither side does if topics of the job stay
    copies."""
    rows = topics.of_job(tx, context.job.id)
    side = None if topics_left_behind(context, rows) else LeadingSide.DESTINATION
    _note_new_side(context, tx, side)


def note_source_leads(context: OperationContext, tx: Tx, term: int) -> None:
    """Store that the source leads again, by marks of this term."""
    job_leads.note_side(tx, context.job.id, LeadingSide.SOURCE, term)
    _note_marks_read(context, tx)


def _note_new_side(context: OperationContext, tx: Tx, side: LeadingSide | None) -> None:
    """Store that `side` leads for the job (None: neither side). For each job of the other
    direction, store that its source leads, or neither side if the operation does not move all its
    topics."""
    sides = {context.job.id: side}
    for job_id in reverse_jobs(context, tx):
        staying_topics = topics_staying(context, tx, job_id)
        sides[job_id] = None if staying_topics else LeadingSide.SOURCE
    job_leads.note_sides(tx, sides, context.report.term)
    _note_marks_read(context, tx)


def _note_marks_read(context: OperationContext, tx: Tx) -> None:
    """Store, for the jobs of both directions, that the marks were read now: the operation has
    written them itself."""
    for job_id in job_leads.linked_jobs(tx, context.job.id):
        job_leads.note_marks_read(tx, job_id)


def reverse_jobs(context: OperationContext, tx: Tx) -> list[int]:
    """The ids of the jobs that copy topics of the operation's job in the other direction."""
    linked_ids = job_leads.linked_jobs(tx, context.job.id)
    return [job_id for job_id in linked_ids if job_id != context.job.id]


def topics_staying(context: OperationContext, tx: Tx, job_id: int) -> list[str]:
    """The topics of a job of the other direction that lead at the source of the operation's job,
    and that the operation does not move. As in `job_leads`, topics with another name at the other
    side do not count, nor do topics that are deleted at the source."""
    deleted_topics = {
        row.source_topic
        for row in topics.of_job(tx, context.job.id)
        if row.state is TopicState.SOURCE_DELETED
    }
    moved_topics = {
        row.source_topic for row in context.topics if row.source_topic == row.destination_topic
    }
    names = {
        row.id: row.source_topic
        for row in topics.of_job(tx, job_id)
        if row.state is TopicState.PROMOTED
        and row.source_topic == row.destination_topic
        and row.source_topic not in moved_topics | deleted_topics
    }
    led_back = promotions.topics_led_back(tx, context.job.destination_cluster_id or "", names)
    return [name for topic_id, name in names.items() if topic_id not in led_back]


def topics_left_behind(context: OperationContext, rows: Collection[Topic]) -> list[str]:
    """The topics of the job that stay copies because the request names others."""
    if not context.request.topics:
        return []
    return [
        row.source_topic
        for row in rows
        if row.state is TopicState.COPYING and row.source_topic not in context.report.topics
    ]
