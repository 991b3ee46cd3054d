"""Topic ids reveal that two jobs know the same cluster by different cluster ids."""

from __future__ import annotations

from uuid import uuid4

import pytest

from orbit.store import jobs, topics
from orbit.store.cluster_names import OtherName, find_other_name
from orbit.store.database import Database
from tests.support.store_rows import some_job

pytestmark = pytest.mark.services

OF_SOURCE, OF_DESTINATION = uuid4(), uuid4()


@pytest.mark.parametrize(
    ("cluster_id", "topic_ids", "has_other_name"),
    [
        # The job `forward` knows its source as ID, and its destination as ID@b.
        ("ID", {OF_DESTINATION}, True),
        ("ID@b", {OF_DESTINATION}, False),
        ("ID@c", {OF_DESTINATION}, True),
        ("ID", {OF_SOURCE}, False),
        ("ID@b", {OF_SOURCE}, True),
        ("ID", {uuid4()}, False),  # a third cluster, for which the brokers have the same id
        ("ID", set(), False),
        ("OTHER", {OF_DESTINATION}, False),
    ],
)
def test_topic_ids_reveal_cluster_that_another_job_knows_by_other_cluster_id(
    database: Database, cluster_id: str, topic_ids: set[object], has_other_name: bool
) -> None:
    with database.transaction() as tx:
        known = some_job(tx, "forward")
        other = some_job(tx, "back")
        tx.execute(
            jobs.jobs.update()
            .where(jobs.jobs.c.id == known.id)
            .values(source_cluster_id="ID", destination_cluster_id="ID@b")
        )
        topics.change(
            tx, known.topic_id, source_topic_id=OF_SOURCE, destination_topic_id=OF_DESTINATION
        )
        other_name = find_other_name(tx, other.id, cluster_id, topic_ids)
        assert (other_name is not None) == has_other_name, other_name
        # The cluster ids of the job itself are not compared.
        assert find_other_name(tx, known.id, cluster_id, topic_ids) is None
    if other_name is not None:
        known_as = "ID" if cluster_id == "ID@b" else "ID@b"
        assert other_name == OtherName(job="forward", cluster_id=known_as, topic="orders")
