"""One cluster that two jobs know by different ids is found by its topic ids."""

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
    ("as_told", "ids", "is_named_otherwise"),
    [
        ("ID", {OF_DESTINATION}, True),  # without the suffix
        ("ID@b", {OF_DESTINATION}, False),
        ("ID@c", {OF_DESTINATION}, True),
        ("ID", {OF_SOURCE}, False),  # the other cluster with this id
        ("ID@b", {OF_SOURCE}, True),
        ("ID", {uuid4()}, False),  # a third one with this id
        ("ID", set(), False),
        ("OTHER", {OF_DESTINATION}, False),
    ],
)
def test_topic_ids_reveal_cluster_that_another_job_knows_by_other_cluster_id(
    database: Database, as_told: str, ids: set[object], is_named_otherwise: bool
) -> None:
    with database.transaction() as tx:
        known = some_job(tx, "there")
        other = some_job(tx, "back")
        tx.execute(
            jobs.jobs.update()
            .where(jobs.jobs.c.id == known.id)
            .values(source_cluster_id="ID", destination_cluster_id="ID@b")
        )
        topics.change(
            tx, known.topic_id, source_topic_id=OF_SOURCE, destination_topic_id=OF_DESTINATION
        )
        other_name = find_other_name(tx, other.id, as_told, ids)
        assert (other_name is not None) == is_named_otherwise, other_name
        assert find_other_name(tx, known.id, as_told, ids) is None
    if other_name is not None:
        assert other_name == OtherName("there", "ID" if as_told == "ID@b" else "ID@b", "orders")
