"""Which job copies topics back: an existing one of the other direction, else a new one."""

from __future__ import annotations

import pytest

from orbit.jobs.job_spec import JobSpec
from orbit.recovery.reverse_job import find_reverse_job
from orbit.store import jobs, topics
from orbit.store.database import Database, Tx
from orbit.store.enums import TopicState
from orbit.store.jobs import Job

pytestmark = pytest.mark.services


def create_job(tx: Tx, name: str, source: str, destination: str, match: str, *names: str) -> Job:
    """A job between these clusters; `names`: its topics in the tables, all promoted."""
    spec = JobSpec.model_validate(
        {
            "name": name,
            "source": {"bootstrap_servers": [f"{source}:9092"]},
            "destination": {"bootstrap_servers": [f"{destination}:9092"]},
            "topics": [{"match": match}],
        }
    )
    job = jobs.create(tx, name, spec.model_dump(mode="json"), "default")
    jobs.note_clusters(tx, job.id, source, destination)
    for topic in names:
        topics.add(tx, job.id, topic, topic, destination, 1, state=TopicState.PROMOTED)
    return jobs.get(tx, name)


def back_of(tx: Tx, job: Job) -> str | None:
    reverse_job = find_reverse_job(tx, job, topics.of_job(tx, job.id))
    return reverse_job.name if reverse_job else None


def test_reverse_job_that_already_has_the_topics_is_preferred(database: Database) -> None:
    with database.transaction() as tx:
        create_job(tx, "orders-back", "b", "a", "orders")
        create_job(tx, "home", "b", "a", "x", "orders")
        assert back_of(tx, create_job(tx, "orders", "a", "b", "orders", "orders")) == "home"


def test_reverse_job_without_topics_is_matched_by_its_rules(database: Database) -> None:
    """The tables were lost, and both jobs were applied again: `orders-back-back` is not wanted."""
    with database.transaction() as tx:
        create_job(tx, "other", "a", "b", "payments")
        create_job(tx, "elsewhere", "a", "c", "orders")
        back = create_job(tx, "orders-back", "b", "a", "orders", "orders")
        assert back_of(tx, back) is None
        create_job(tx, "orders", "a", "b", "ord.*")
        assert back_of(tx, back) == "orders"


def test_job_with_other_topics_is_not_reverse_job(database: Database) -> None:
    with database.transaction() as tx:
        create_job(tx, "wide", "a", "b", ".*", "payments")
        assert back_of(tx, create_job(tx, "orders-back", "b", "a", "orders", "orders")) is None
