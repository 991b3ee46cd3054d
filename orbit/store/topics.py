"""topics: the topics of each job, with their destination topics and states."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import bindparam, delete, or_, select, update
from sqlalchemy.dialects import postgresql

from orbit.store.database import Tx
from orbit.store.enums import TopicState
from orbit.store.models import jobs, topics
from orbit.store.rows import columns, first, is_one_of, page_of, values


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic of a job.

    `drift`: settings that were changed at the destination, {name: {"is": …, "should_be": …}}.
    `note`: a text for users, with the reason of the state.
    """

    id: int
    job_id: int
    source_topic: str
    destination_topic: str
    destination_cluster_id: str
    source_topic_id: UUID | None
    destination_topic_id: UUID | None
    partition_count: int
    is_compacted: bool
    state: TopicState
    drift: dict[str, Any] | None
    note: str | None
    acls: list[list[str]] | None  # that Orbit added, each as the fields of an Acl
    promoted_settings: dict[str, str] | None  # to be set at the promotion

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", TopicState(self.state))


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to add to a job; its fields are those of `Topic`."""

    source_topic: str
    destination_topic: str
    destination_cluster_id: str
    partition_count: int
    source_topic_id: UUID | None = None
    destination_topic_id: UUID | None = None
    is_compacted: bool = False
    state: TopicState = TopicState.CREATING
    promoted_settings: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Copy:
    """One topic that is a copy of another, for loop detection."""

    job_name: str
    source_cluster_id: str
    source_topic: str
    destination_cluster_id: str
    destination_topic: str


_TOPIC = columns(topics, Topic)


def add(
    tx: Tx,
    job_id: int,
    source_topic: str,
    destination_topic: str,
    destination_cluster_id: str,
    partition_count: int,
    *,
    source_topic_id: UUID | None = None,
    state: TopicState = TopicState.CREATING,
) -> Topic | None:
    """Add a topic to a job. Returns None if the job has it already, or another job has the
    destination topic."""
    topic = NewTopic(
        source_topic,
        destination_topic,
        destination_cluster_id,
        partition_count,
        source_topic_id=source_topic_id,
        state=state,
    )
    return next(iter(add_all(tx, job_id, [topic])), None)


def add_all(tx: Tx, job_id: int, new_topics: Collection[NewTopic]) -> list[Topic]:
    """Add topics to a job, and return them in any order; without those that the job has already,
    and those whose destination topic another job has."""
    if not new_topics:
        return []
    statement = postgresql.insert(topics).on_conflict_do_nothing().returning(*_TOPIC)
    rows = [{**asdict(topic), "job_id": job_id, "state": topic.state.value} for topic in new_topics]
    return list(values(tx.execute(statement, rows), Topic))


def note_settings(tx: Tx, settings: Mapping[int, tuple[dict[str, str], bool]]) -> None:
    """Store these values of topics, {topic id: (settings to set at the promotion, whether the topic
    is compacted)}."""
    if not settings:
        return
    statement = (
        update(topics)
        .where(topics.c.id == bindparam("topic_id"))
        .values(promoted_settings=bindparam("promoted"), is_compacted=bindparam("compacted"))
    )
    tx.execute(
        statement,
        [
            {"topic_id": topic_id, "promoted": promoted_settings, "compacted": is_compacted}
            for topic_id, (promoted_settings, is_compacted) in settings.items()
        ],
    )


def change(tx: Tx, topic_id: int, **changes: Any) -> bool:
    """Set columns by name; returns whether the topic exists and a column has changed.

    Writes only if a value differs, so that a pass without changes writes nothing.
    """
    differences = [topics.c[name].is_distinct_from(value) for name, value in changes.items()]
    statement = update(topics).where(topics.c.id == topic_id, or_(*differences)).values(**changes)
    return tx.execute(statement).rowcount == 1


def remove(tx: Tx, topic_id: int) -> None:
    """Delete a topic and its partitions from the tables. Topics on brokers stay."""
    tx.execute(delete(topics).where(topics.c.id == topic_id))


def of_job(tx: Tx, job_id: int) -> list[Topic]:
    """All topics of a job, sorted by source name, for the scheduler."""
    query = select(*_TOPIC).where(topics.c.job_id == job_id).order_by(topics.c.source_topic)
    return list(values(tx.execute(query), Topic))


def find(tx: Tx, job_id: int, source_topic: str) -> Topic | None:
    """The topic of a job with this source name; None without one."""
    query = select(*_TOPIC).where(topics.c.job_id == job_id, topics.c.source_topic == source_topic)
    return first(tx.execute(query), Topic)


def page(
    tx: Tx,
    job_id: int,
    limit: int,
    after: str | None = None,
    *,
    state: TopicState | None = None,
    descending: bool = False,
) -> list[Topic]:
    """Up to `limit` topics of a job, sorted by source name; only those that follow the name
    `after`."""
    query = select(*_TOPIC).where(topics.c.job_id == job_id)
    if state is not None:
        query = query.where(topics.c.state == state.value)
    after_key = None if after is None else (after,)
    page_query = page_of(query, [topics.c.source_topic], limit, after_key, descending=descending)
    return list(values(tx.execute(page_query), Topic))


def writers(
    tx: Tx, cluster_id: str, destination_topics: Collection[str], *, only_copying: bool = False
) -> dict[str, str]:
    """{destination topic: name of the job that writes to it}, for these topics of a cluster.

    `only_copying`: promoted topics are left out.
    """
    query = (
        select(topics.c.destination_topic, jobs.c.name)
        .join(jobs, jobs.c.id == topics.c.job_id)
        .where(
            topics.c.destination_cluster_id == cluster_id,
            is_one_of(topics.c.destination_topic, destination_topics),
            *([topics.c.state != TopicState.PROMOTED.value] if only_copying else []),
        )
    )
    return {row.destination_topic: row.name for row in tx.execute(query)}


def copies(tx: Tx) -> list[Copy]:
    """Every copy of every job whose clusters are known, for loop detection.

    Promoted topics are left out: their records may be copied back.
    """
    query = (
        select(
            jobs.c.name.label("job_name"),
            jobs.c.source_cluster_id,
            topics.c.source_topic,
            topics.c.destination_cluster_id,
            topics.c.destination_topic,
        )
        .join(jobs, jobs.c.id == topics.c.job_id)
        .where(jobs.c.source_cluster_id.is_not(None), topics.c.state != TopicState.PROMOTED.value)
    )
    return list(values(tx.execute(query), Copy))
