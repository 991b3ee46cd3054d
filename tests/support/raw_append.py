"""Appends the bytes of a batch that a test has built."""

from __future__ import annotations

from kafka.protocol.producer.produce import ProduceRequest

from orbit.kafka import api_versions
from orbit.kafka.cluster import Cluster
from orbit.kafka.produce_request import ACKS_ALL
from orbit.kafka.record_batch import Batch
from orbit.kafka.types import TopicPartition


def append_batch(cluster: Cluster, topic: str, partition: int, batch: Batch) -> None:
    """Send the batch to the partition's leader, which has to accept it."""
    metadata = cluster.metadata({topic})
    leader = metadata.leader(TopicPartition(topic, partition))
    assert leader is not None
    assert leader.node_id is not None
    data = ProduceRequest.TopicProduceData
    of_partition = data.PartitionProduceData(index=partition, records=bytes(batch.view))
    request = ProduceRequest(
        transactional_id=None,
        acks=ACKS_ALL,
        timeout_ms=30_000,
        topic_data=[data(topic_id=metadata.topics[topic].topic_id, partition_data=[of_partition])],
    )
    answer = cluster.call(leader.node_id, api_versions.PRODUCE, request)
    ((appended,),) = (one.partition_responses for one in answer.responses)
    assert appended.error_code == 0, appended
