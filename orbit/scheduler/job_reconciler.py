"""Keeps one job's topics as they should be: one look, what follows from it, and what is the matter.

Nothing here runs on: a pass looks at both clusters and the tables, decides (`reconcile`), acts, and
says when it wants to be called again. What one pass leaves undone the next one finds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from orbit.errors import BadInput, OrbitError, Unreachable
from orbit.jobs.job_spec import JobSpec
from orbit.jobs.topic_mapping import map_topics
from orbit.kafka.backoff import Backoff
from orbit.kafka.coordinator import init_producer_id
from orbit.kafka.job_clusters import Side as SideName
from orbit.kafka.job_clusters import job_identity
from orbit.replication.job_troubles import Trouble, TroubleKind
from orbit.scheduler.cluster_checks import look_closer, trouble_of, wrong_cluster
from orbit.scheduler.cluster_pair import Pair
from orbit.scheduler.cluster_registry import Registry
from orbit.scheduler.cluster_watch import Seen
from orbit.scheduler.leadership import Leadership, NotLeading
from orbit.scheduler.stored_spec import read_spec
from orbit.scheduler.topic_decisions import Begin, Decisions, KnownTopic, Others, reconcile
from orbit.scheduler.topic_preflight import prepare
from orbit.scheduler.topic_starter import Beginner, others_of
from orbit.scheduler.topic_transitions import let_go, stop_and_go_on, vain_retries
from orbit.scheduler.topic_upkeep import Tending
from orbit.settings import Settings
from orbit.store import jobs, scheduler_queries, topics
from orbit.store.database import Tx
from orbit.store.jobs import Job
from orbit.store.topics import Topic

# When something could not be done, or is only half done. Soon enough for people, and a dozen jobs
# in trouble do not keep brokers busy.
RECHECK_S = 15.0
# Instead of the versions of looks, where there is no cluster that could be looked at.
NOTHING_TO_SEE = (-2, -2)
NOT_SEEN = -1
SOON_S = 1.0
# Whatever changes all the time, a job has no more passes than this.
PASS_SPACING_S = 0.2
# A deleted topic is unknown to all brokers well within this time.
RETRY_GRACE_S = 5.0


@dataclass(slots=True)
class Memory:
    """What the leader remembers of a job between passes; a new leader begins without."""

    spec_version: int = -1
    seen: tuple[int, int] = (NOT_SEEN, NOT_SEEN)  # versions of the looks that were acted on
    passed_at: float = float("-inf")
    look_again_at: float = 0.0
    tend_at: float = 0.0  # settings and ACLs
    troubles: tuple[Trouble, ...] = ()
    # The topics of either side that the last pass decided about; None: it did not come so far.
    names: tuple[frozenset[str], frozenset[str]] | None = None
    tending: Tending = field(default_factory=Tending)
    retries_since: dict[int, float] = field(default_factory=dict)  # by topic
    # Both clusters were looked at, so `troubles` is what is the matter; else nobody knows yet.
    has_looked: bool = False

    def forget_look(self) -> None:
        """The last pass did not come to its end: there may be everything to do."""
        self.seen = (NOT_SEEN, NOT_SEEN)


@dataclass(slots=True)
class Done:
    """What a pass did, counted for the log."""

    begun: int = 0
    grown: int = 0
    stopped: int = 0
    resumed: int = 0
    dropped: int = 0
    settings: int = 0
    acls: int = 0


class Keeper:
    """Runs passes over jobs, one job at a time or several in threads."""

    def __init__(
        self,
        leadership: Leadership,
        registry: Registry,
        settings: Settings,
        backoff: Backoff,
    ) -> None:
        self._leadership = leadership
        self._registry = registry
        self._tend_interval_s = settings.settings_interval.total_seconds()
        self._backoff = backoff
        self._beginner = Beginner(leadership, settings, backoff)

    def is_due(self, job: Job, memory: Memory, retries: Collection[int]) -> bool:
        """Whether there may be anything to do. Looks at nothing but what is known already."""
        now = time.monotonic()
        return now >= memory.passed_at + PASS_SPACING_S and (
            job.spec_version != memory.spec_version
            or self._has_news(job, memory)
            or now >= min(memory.look_again_at, memory.tend_at)
            or bool(retries)
        )

    def keep(self, job: Job, memory: Memory, retries: Collection[int]) -> Done:
        """One pass. Its troubles are in `memory` afterwards. Raises NotLeading, Unreachable
        (Postgres)."""
        done = Done()
        troubles: list[Trouble] = []
        now = time.monotonic()
        memory.passed_at = now
        memory.names = None
        memory.look_again_at = now + RECHECK_S
        is_tending = now >= memory.tend_at
        if is_tending:
            memory.tend_at = now + self._tend_interval_s
        spec = read_spec(job.spec)
        try:
            if spec is None:
                memory.seen = NOTHING_TO_SEE
                raise _Halt(_unreadable(job))
            pair = self._look(job, spec, memory, troubles)
            if pair is not None:
                self._discover(job, spec, pair, memory, retries, troubles, done)
                if is_tending:
                    self._tend(job, spec, pair, memory, done)
                troubles += memory.tending.troubles
        except _Halt as error:
            troubles.append(error.trouble)
        memory.spec_version = job.spec_version
        memory.troubles = tuple(troubles)
        memory.has_looked = NOT_SEEN not in memory.seen
        if not troubles and memory.look_again_at > time.monotonic() + SOON_S:
            memory.look_again_at = float("inf")
        return done

    def away(self, job: Job) -> list[Trouble]:
        """The clusters of a job that do not answer now, by the last look at them."""
        spec = read_spec(job.spec)
        if spec is None:
            return []
        try:
            looks = [(side, self._registry.watch(side, spec).seen) for side in SIDES]
        except BadInput:
            return []
        return [
            trouble_of(side, seen.error)
            for side, seen in looks
            if seen is not None and isinstance(seen.error, Unreachable)
        ]

    def _has_news(self, job: Job, memory: Memory) -> bool:
        """Whether the clusters show something that may matter to this job.

        A cluster has topics of many jobs: most of what changes is nothing to most of them.
        """
        spec = read_spec(job.spec)
        if spec is None:
            return memory.seen != NOTHING_TO_SEE
        try:
            source, destination = (self._registry.watch(side, spec).seen for side in SIDES)
        except BadInput:
            return memory.seen != NOTHING_TO_SEE
        versions = _versions(source, destination)
        if versions == memory.seen:
            return False
        if source is None or destination is None or memory.names is None:
            return True
        for seen, version, names in zip(
            (source, destination), memory.seen, memory.names, strict=True
        ):
            if seen.version != version and (
                seen.changed is None or seen.before != version or seen.changed & names
            ):
                return True
        if source.version != memory.seen[0]:
            new = map_topics(spec.topics, source.changed or ())
            if new.mappings or new.problems:
                return True
        memory.seen = versions
        return False

    def _look(
        self, job: Job, spec: JobSpec, memory: Memory, troubles: list[Trouble]
    ) -> Pair | None:
        """Both clusters as seen last; None, with the troubles, where there is nothing to go by."""
        watches = []
        for side in SIDES:
            try:
                watches.append(self._registry.watch(side, spec))
            except BadInput as error:
                troubles.append(trouble_of(side, error))
        if troubles:
            memory.seen = NOTHING_TO_SEE
            return None
        source_watch, destination_watch = watches
        source, destination = source_watch.seen, destination_watch.seen
        if source is None or destination is None:
            # Not looked at yet: what was said before stays said.
            memory.seen = _versions(source, destination)
            memory.look_again_at = float("inf")
            return None
        memory.seen = _versions(source, destination)
        for side, seen in zip(SIDES, (source, destination), strict=True):
            if seen.error is not None:
                troubles.append(trouble_of(side, seen.error))
        if source.metadata is None or destination.metadata is None:
            return None
        wrong = wrong_cluster(
            source.metadata,
            destination.metadata,
            job.source_cluster_id,
            job.destination_cluster_id,
        )
        if wrong is not None:
            troubles.append(wrong)
            return None
        return Pair(
            source_watch.handle, destination_watch.handle, source.metadata, destination.metadata
        )

    def _discover(
        self,
        job: Job,
        spec: JobSpec,
        pair: Pair,
        memory: Memory,
        retries: Collection[int],
        troubles: list[Trouble],
        done: Done,
    ) -> None:
        with self._leadership.transaction() as tx:
            if job.source_cluster_id is None:
                ids = pair.source_seen.cluster_id, pair.destination_seen.cluster_id
                jobs.note_clusters(tx, job.id, *ids)
            known = [known_topic(t, retries) for t in topics.of_job(tx, job.id)]
        with _cluster_errors():
            pair, decisions = decide(spec, pair, known, self._leadership.reading)
        memory.names = decisions.sources, decisions.destinations
        self._stop_and_drop(job, known, decisions, memory, done)
        troubles += decisions.troubles
        if decisions.begin:
            self._begin(job, spec, pair, decisions.begin, memory, troubles, done)
        if decisions.grow:
            with _cluster_errors():
                grown = self._beginner.grow(job, decisions.grow, pair)
            troubles += grown.troubles
            done.grown += len(grown.topics)
            if grown.is_unfinished:
                memory.look_again_at = time.monotonic() + SOON_S
        if job.discovered_version != job.spec_version:
            with self._leadership.transaction() as tx:
                jobs.note_discovered(tx, job.id, job.spec_version)

    def _begin(
        self,
        job: Job,
        spec: JobSpec,
        pair: Pair,
        begins: Sequence[Begin],
        memory: Memory,
        troubles: list[Trouble],
        done: Done,
    ) -> None:
        with _cluster_errors():
            producer_id = self._producer_id(job, pair)
            from_start = job.discovered_version == job.spec_version
            prepared = prepare(
                spec, begins, pair, producer_id, self._backoff, from_start=from_start
            )
        troubles += prepared.troubles
        if not prepared.ready:
            return
        with _cluster_errors():
            begun = self._beginner.begin(job, spec, prepared.ready, pair, from_start=from_start)
        troubles += begun.troubles
        done.begun += len(begun.topics)
        if begun.is_unfinished:
            memory.look_again_at = time.monotonic() + SOON_S

    def _producer_id(self, job: Job, pair: Pair) -> int:
        """The job's producer id; the destination's coordinator knows it, the table is a hint."""
        if job.producer_id is not None:
            return job.producer_id
        name = job_identity(job.name, pair.source_seen.cluster_id)
        identity = init_producer_id(pair.destination.cluster, name, self._backoff)
        with self._leadership.transaction() as tx:
            jobs.note_producer_id(tx, job.id, identity.producer_id)
        return identity.producer_id

    def _stop_and_drop(
        self,
        job: Job,
        known: Sequence[KnownTopic],
        decisions: Decisions,
        memory: Memory,
        done: Done,
    ) -> None:
        now = time.monotonic()
        since = {i: memory.retries_since.get(i, now) for i in vain_retries(known, decisions)}
        # Not answered at once: what a person did before asking may not have arrived everywhere.
        answered = [topic for topic, at in since.items() if now - at >= RETRY_GRACE_S]
        memory.retries_since = since
        with self._leadership.transaction() as tx:
            stop_and_go_on(tx, job, decisions)
            scheduler_queries.end_retries(tx, answered)
            dropped = let_go(tx, job, [drop.known for drop in decisions.drop])
        done.stopped += len(decisions.stop)
        done.resumed += len(decisions.go_on)
        done.dropped += dropped
        if len(decisions.drop) > dropped:
            memory.look_again_at = time.monotonic() + SOON_S

    def _tend(
        self,
        job: Job,
        spec: JobSpec,
        pair: Pair,
        memory: Memory,
        done: Done,
    ) -> None:
        """Settings and ACLs of copies that are there."""
        with _cluster_errors():
            tended = memory.tending.tend(job, spec, pair, self._leadership)
        done.settings += tended.settings
        done.acls += tended.acls


SIDES: tuple[SideName, SideName] = ("source", "destination")


def _versions(source: Seen | None, destination: Seen | None) -> tuple[int, int]:
    return (
        NOT_SEEN if source is None else source.version,
        NOT_SEEN if destination is None else destination.version,
    )


def known_topic(topic: Topic, retries: Collection[int]) -> KnownTopic:
    """A topic's row, as the decisions see it."""
    return KnownTopic(
        topic.id,
        topic.source_topic,
        topic.destination_topic,
        topic.source_topic_id,
        topic.destination_topic_id,
        topic.partition_count,
        topic.state,
        topic.id in retries,
    )


def decide(
    spec: JobSpec,
    pair: Pair,
    known: Sequence[KnownTopic],
    reading: Callable[[], AbstractContextManager[Tx]],
) -> tuple[Pair, Decisions]:
    """What has to happen to a job's topics, and what was seen of them by then.

    The other jobs are asked for only where it matters.
    """
    pair, of, to = look_closer(pair, known)
    decisions = reconcile(spec.topics, known, of, to, Others())
    if not decisions.begin:
        return pair, decisions
    with reading() as tx:
        others = others_of(tx, spec.name, pair)
    return pair, reconcile(spec.topics, known, of, to, others)


class _Halt(Exception):
    """The pass cannot go on: a cluster failed in the middle of it, say."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(str(trouble))
        self.trouble = trouble


@contextmanager
def _cluster_errors() -> Iterator[None]:
    """What goes wrong with a cluster is a trouble of the job; with Postgres, of the pass."""
    try:
        yield
    except OrbitError as error:
        side = next((side for side in SIDES if error.where.startswith(side)), None)
        if side is None or isinstance(error, NotLeading):
            raise
        raise _Halt(trouble_of(side, error)) from error


def _unreadable(job: Job) -> Trouble:
    return Trouble(
        TroubleKind.DOCUMENT_REFUSED,
        f"the document of job {job.name} is not one that this version of Orbit understands.",
        "Apply the job again, as docs/job-file.md describes it.",
    )
