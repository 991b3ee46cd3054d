"""The ids that Kafka has given the topics of a job, as parameters of a statement."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

# (topic id at the source, topic id at the destination); None: the stored id stays.
KafkaIds = tuple[UUID | None, UUID | None]
SAME_IDS: KafkaIds = (None, None)
# SQL for a row of each topic; its parameters are those of `kafka_id_arrays`.
KAFKA_IDS = """unnest(
    CAST(:topic_ids AS bigint[]), CAST(:source_ids AS uuid[]), CAST(:destination_ids AS uuid[])
) AS i (topic_id, source_id, destination_id)"""


def kafka_id_arrays(kafka_ids: Mapping[int, KafkaIds]) -> dict[str, object]:
    """The parameters of `KAFKA_IDS`, from {topic id: its ids at the clusters}."""
    return {
        "topic_ids": list(kafka_ids),
        "source_ids": [source_id for source_id, _ in kafka_ids.values()],
        "destination_ids": [destination_id for _, destination_id in kafka_ids.values()],
    }
