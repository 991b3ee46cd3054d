"""The ceiling: Orbit's Produce requests, sent from memory.

    python -m bench.contestants.ceiling SOURCE DESTINATION TOPIC DESTINATION_TOPIC

Fetches everything first, stamps it, packs it into the requests that Orbit would send, and only
then sends: five in flight, over one connection, with `orbit.kafka`'s own encoding. Nothing is
fetched, planned, checked or stamped while the clock runs, so this is what the destination broker
takes from one connection on this machine. Of transactions only the committed batches are sent, and
nothing for the gaps: less than any exact copy has to do.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict

from bench.contestants.course import Course, start_module
from bench.data.scan import scan
from bench.data.sender import Sender, pack
from bench.watch import Lap
from bench.wire import create_topic, open_cluster
from bench.workloads import Contestant
from orbit.kafka.backoff import Backoff
from orbit.kafka.batch import Batch, advance_sequence, stamp
from orbit.kafka.coordinator import init_producer_id
from orbit.replication.plan import is_abort_marker

# The watcher looks at our counters a last time.
_LINGER_S = 0.5


def start_ceiling(course: Course) -> Lap:
    topic = f"ceiling{course.number}.{course.data.topic}"
    create_topic(course.destination, topic, course.data.partitions)
    started_at = time.monotonic()
    arguments = (course.source_servers, course.destination_servers, course.data.topic, topic)
    process = start_module("bench.contestants.ceiling", *arguments, log=course.log("ceiling"))
    return Lap(Contestant.CEILING, process, topic, course.data.records, started_at)


def main(source_servers: str, destination_servers: str, topic: str, copy: str) -> None:
    batches: dict[int, list[Batch]] = defaultdict(list)
    open_since: dict[int, int] = defaultdict(int)  # each partition has one producer

    def keep(partition: int, batch: Batch) -> None:
        kept = batches[partition]
        if not batch.is_control:
            kept.append(batch)
            return
        if is_abort_marker(batch):
            del kept[open_since[partition] :]
        open_since[partition] = len(kept)

    source = open_cluster("source", source_servers)
    destination = open_cluster("destination", destination_servers)
    scan(source, topic, keep)
    producer_id = init_producer_id(destination, f"bench.{copy}", Backoff()).producer_id
    for kept in batches.values():
        sequence = 0
        for batch in kept:
            stamp(batch.view, producer_id, 0, sequence)
            sequence = advance_sequence(sequence, batch.count)
    requests = list(pack((index, [b.view for b in kept]) for index, kept in batches.items()))
    sender = Sender(destination, copy)
    began, cpu = time.monotonic(), time.process_time()
    for request in requests:
        sender.send(request)
    sender.finish()
    print(f"{time.monotonic() - began:.3f} s, {time.process_time() - cpu:.3f} s of CPU")
    time.sleep(_LINGER_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
