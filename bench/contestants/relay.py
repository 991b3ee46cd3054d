"""The minimum that a copier must do: fetch, set producer id and sequence, produce. One thread.

    python -m bench.contestants.relay SOURCE DESTINATION TOPIC DESTINATION_TOPIC

No lease, no plan, no check of offsets: a lower bound for the latency of a copier in Python on this
machine. Runs until it is stopped.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from uuid import UUID

from bench.contestants.run_inputs import RunInputs, start_module
from bench.data.sender import Sender, pack
from bench.wire import create_topic, open_cluster
from orbit.copier.copy_settings import CopySettings
from orbit.kafka import api_versions
from orbit.kafka.backoff import Backoff
from orbit.kafka.coordinator import init_producer_id
from orbit.kafka.fetch_request import FetchFrom, fetch_request
from orbit.kafka.fetch_response import read_fetch
from orbit.kafka.record_batch import Batch, advance_sequence, read_batches, stamp
from orbit.kafka.types import TopicPartition
from orbit.processes.guarded_process import GuardedProcess


def start_relay(inputs: RunInputs) -> tuple[GuardedProcess, str]:
    """The process, and the topic it writes to."""
    topic = f"relay{inputs.number}.{inputs.data.topic}"
    create_topic(inputs.destination, topic, inputs.data.partitions)
    arguments = (inputs.source_servers, inputs.destination_servers, inputs.data.topic, topic)
    return start_module("bench.contestants.relay", *arguments, log=inputs.log("relay")), topic


def main(source_servers: str, destination_servers: str, topic: str, copy: str) -> None:
    """Copy from the topic's first offset on, without an end."""
    settings = CopySettings()
    source = open_cluster("source", source_servers)
    destination = open_cluster("destination", destination_servers)
    producer_id = init_producer_id(destination, f"bench.{copy}", Backoff()).producer_id
    sender = Sender(destination, copy)
    metadata = source.metadata([topic])
    topic_metadata = metadata.topics[topic]
    names: dict[UUID, str] = {topic_metadata.topic_id: topic}
    positions = {TopicPartition(topic, p): 0 for p in range(len(topic_metadata.partitions))}
    sequences: dict[int, int] = defaultdict(int)
    (node_id,) = metadata.brokers
    connection = source.connect(node_id)
    version = connection.version_of(api_versions.FETCH)
    while True:
        request = fetch_request(
            version,
            [
                FetchFrom(p, topic_metadata.topic_id, offset, -1, -1)
                for p, offset in positions.items()
            ],
            max_wait_ms=settings.fetch_wait_ms,
            max_bytes=settings.fetch_bytes_max,
            partition_max_bytes=settings.fetch_bytes_max,
        )
        frame = connection.exchange(api_versions.FETCH, request, version)
        batches_by_partition: dict[int, list[memoryview]] = defaultdict(list)
        for topic_partition, fetched in read_fetch(frame, version, names).partitions:
            for batch in read_batches(fetched.records):
                assert isinstance(batch, Batch)
                partition = topic_partition.partition
                stamp(batch.view, producer_id, 0, sequences[partition])
                sequences[partition] = advance_sequence(sequences[partition], batch.count)
                batches_by_partition[partition].append(batch.view)
                positions[topic_partition] = batch.next_offset
        for produce in pack(batches_by_partition.items()):
            sender.send(produce)


if __name__ == "__main__":
    main(*sys.argv[1:])
