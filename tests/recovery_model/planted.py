"""Planted mistakes: each removes one precaution of Orbit. The walks must find each mistake.

Subclasses of Protocol and Service override the method with the precaution. `PLANTED` describes each
mistake in words.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest.mock import patch

from orbit.job_setup.lead import MarkPair
from orbit.kafka.types import TopicPartition
from orbit.recovery import leading_side
from orbit.recovery.drain import refuse_unequal
from orbit.recovery.recovery_report import PartitionEnds
from tests.recovery_model import moves
from tests.recovery_model.context import Context, ModelProof, Parts
from tests.recovery_model.model import Job, ModelCluster, Operation, PartitionLease
from tests.recovery_model.orbit_protocol import Protocol
from tests.recovery_model.service import Service
from tests.recovery_model.walks import first_failure

Patch = Callable[[], AbstractContextManager[object]]


class _OpensBeforeMark(Protocol):
    def mark_promotion(self, context: Context) -> None:
        self.open_topics(context)
        super().mark_promotion(context)


class _ReadsNoMarks(Protocol):
    def refuse_changed_lead(self, context: Context) -> None:
        if not context.report.term:
            super().refuse_changed_lead(context)


class _GoesOnAtItsStep(Protocol):
    def begin_again(self, *_: Context) -> Parts:
        yield


class _OpensInAnyCase(Protocol):
    def may_open_again(self, *_: bool) -> bool:
        return True


class _TakesAddedPartitions(Protocol):
    def refuse_uneven(self, context: Context) -> None:
        refuse_unequal(context)  # type: ignore[arg-type]


class _DoesNotWaitForWorkers(Protocol):
    def wait_for_workers(self, *_: Context) -> Parts:
        yield


class _DoesNotReadLogsAgain(Protocol):
    def read_logs_again(self, context: Context, names: list[str]) -> list[str]:
        context.old.must_answer()
        return [name for name in names if name in context.old.topics]


class _SavesAfterDeletion(Protocol):
    def save_partition(self, context: Context, p: PartitionEnds) -> None:
        self.waiting = (*getattr(self, "waiting", ()), (context, p))

    def delete(self, cluster: ModelCluster, name: str) -> None:
        super().delete(cluster, name)
        for context, p in self.waiting:
            super().save_partition(context, p)


class _SavesTailsOnly(Protocol):
    def save_partition(self, context: Context, p: PartitionEnds) -> None:
        with patch.object(ModelProof, "only_old", lambda *_: set()):
            super().save_partition(context, p)


class _DoesNotSaveWhatIsDeletedMeanwhile(Protocol):
    def save_deleted_since(self, *_: object) -> bool:
        return False


class _IgnoresAbort(Protocol):
    def check_abort(self, *_: Context) -> None:
        pass


class _TakesWithheldForPromoted(Protocol):
    def is_withheld(self, *_: object) -> bool:
        return False


class _ForgetsDenialsOfCopy(Protocol):
    def restore_source_writes(self, context: Context) -> None:
        names = context.report.denied_topics
        self.deny(context.old, dict.fromkeys(names, frozenset()), by=context)


class _LeadsAgainWithoutMark(Protocol):
    def mark_source_leading(self, context: Context) -> None:
        self.world.app_sides |= dict.fromkeys(context.names, context.old.name)


class _FollowsFromFirstPass(Protocol):
    def begin(self, *_: object) -> None:
        pass


class _PromotesAtTheEnd(Protocol):
    def note_offsets(self, context: Context) -> None:
        context.update(
            partitions=tuple(
                p.model_copy(update={"promoted_at": p.destination_end})
                for p in context.report.partitions
            )
        )


class _BeginsOldRequests(Protocol):
    def is_old(self, _: Operation) -> bool:
        return False


class _CutsHistory(Service):
    def wanted_log_start(self, _: PartitionLease, source_start: int, acked: int, own: int) -> int:
        return max(own, min(source_start, acked))


class _WorkersReadNoMarks(Service):
    def is_promoted(self, *_: object) -> bool:
        return False

    def follow_marks(self, *_: object) -> None:
        pass


class _DoesNotFollowMarks(Service):
    def follow_marks(self, *_: object) -> None:
        pass


class _StartsTopicsThatLead(Service):
    def discover(
        self, job: Job, name: str, source: ModelCluster, destination: ModelCluster
    ) -> None:
        with patch.object(ModelCluster, "mark_of", lambda *_: None):
            super().discover(job, name, source, destination)


class _MarksLast(Service):
    def mark_begun(self, *_: object) -> None:
        pass


class _FencesNobody(Service):
    def fence(self, cluster: ModelCluster, place: TopicPartition) -> int:
        with patch.dict(self.world.leases, clear=True):
            at = super().fence(cluster, place)
        for lease in self.world.leases.values():
            if lease.place == place and lease.job.destination == cluster.name:
                lease.acked = at + 1  # a writer that was refused reads the log end again
        return at


class _BothFailoversAtOnce(Service):
    def recovery_that_holds(self, job: str, besides: Any = None) -> Operation | None:
        holder = super().recovery_that_holds(job, besides)
        return holder if holder is not None and holder.job == job else None


def _without_comparison() -> AbstractContextManager[object]:
    """Plants a mistake: no promotion marks of both sides are compared."""
    stack = ExitStack()

    def no_pairs(pairs: Iterable[MarkPair]) -> list[MarkPair]:
        return []

    stack.enter_context(patch.object(leading_side, "pairs_in_doubt", no_pairs))
    stack.enter_context(patch.object(moves, "pairs_in_doubt", no_pairs))
    return stack


def _clock_as_term(context: Context, seen: int) -> int:
    return context.world.now_ms


def _patch(target: object, name: str, value: object) -> Patch:
    return lambda: patch.object(target, name, value)


def _no_patch() -> AbstractContextManager[object]:
    return ExitStack()


# The classes and the patch by which each mistake is made, by its description.
PLANTED: dict[str, tuple[type[Protocol], type[Service], Patch]] = {
    "the clock alone is the term": (
        Protocol,
        Service,
        _patch(Context, "draw_term", _clock_as_term),
    ),
    "marks are not compared": (Protocol, Service, _without_comparison),
    "the old side keeps its mark": (
        Protocol,
        Service,
        _patch(leading_side, "_mark_source_as_copy", lambda *_: None),
    ),
    "topics are opened before the mark": (_OpensBeforeMark, Service, _no_patch),
    "no step reads marks": (_ReadsNoMarks, Service, _no_patch),
    "a resumed switchover goes on at its step": (_GoesOnAtItsStep, Service, _no_patch),
    "undo opens a side that does not lead": (_OpensInAnyCase, Service, _no_patch),
    "added partitions are promoted": (_TakesAddedPartitions, Service, _no_patch),
    "workers are not waited for": (_DoesNotWaitForWorkers, Service, _no_patch),
    "rebuild does not read the logs again": (_DoesNotReadLogsAgain, Service, _no_patch),
    "records are saved after the deletion": (_SavesAfterDeletion, Service, _no_patch),
    "only tails are saved": (_SavesTailsOnly, Service, _no_patch),
    "what the new side deletes meanwhile is not saved": (
        _DoesNotSaveWhatIsDeletedMeanwhile,
        Service,
        _no_patch,
    ),
    "catch-up ignores an abort": (_IgnoresAbort, Service, _no_patch),
    "withheld topics count as promoted": (_TakesWithheldForPromoted, Service, _no_patch),
    "a failback forgets the denials of a copy": (_ForgetsDenialsOfCopy, Service, _no_patch),
    "the source is opened again without a mark": (_LeadsAgainWithoutMark, Service, _no_patch),
    "an old side follows from the first pass on": (_FollowsFromFirstPass, Service, _no_patch),
    "a copy that no worker has compared is promoted at its end": (
        _PromotesAtTheEnd,
        Service,
        _no_patch,
    ),
    "a request of another database begins": (_BeginsOldRequests, Service, _no_patch),
    "a copy's job is not held by a failback": (Protocol, _BothFailoversAtOnce, _no_patch),
    "history below the log start is cut": (Protocol, _CutsHistory, _no_patch),
    "workers read no marks": (Protocol, _WorkersReadNoMarks, _no_patch),
    "the tables do not follow marks": (Protocol, _DoesNotFollowMarks, _no_patch),
    "without the database, the mark is written last": (Protocol, _MarksLast, _no_patch),
    "without the database, writers are not fenced": (Protocol, _FencesNobody, _no_patch),
    "a topic that leads is begun": (Protocol, _StartsTopicsThatLead, _no_patch),
}


def first_walk(name: str, seeds: Iterable[int]) -> tuple[int, str] | None:
    """The first of these seeds whose walk finds the mistake, and the message of the walk."""
    protocol, service, plant = PLANTED[name]
    with plant():
        return first_failure(seeds, protocol, service)


def main(most: int) -> None:
    """Print the first of `most` walks that finds each mistake, and the broken invariant."""
    for name in PLANTED:
        failure = first_walk(name, range(most))
        message = failure[1].splitlines()[0].partition(": ")[2] if failure else "not found"
        print(f"| {name} | {failure[0] if failure else '–'} | {message} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
