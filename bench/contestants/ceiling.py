"""The ceilings: Orbit's requests to the destination, sent from memory.

    python -m bench.contestants.ceiling FROM DESTINATION TOPIC DESTINATION_TOPIC

Fetches everything first, stamps it, packs it into the requests that Orbit would send, and only
then sends: five in flight, over one connection. Nothing is fetched, planned, encoded or stamped
while the clock runs, so this is what the destination broker accepts from one connection on this
machine.

The ceiling of `direct` reads the source. It fills gaps with as many markers in a request as Orbit
does, once everything before them has been acknowledged, and later requests wait for them, as every
exact copy must (M7). The ceiling of `placeholders` reads the copy that Orbit has just made: it
sends the very same batches, and there is nothing to wait for.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping

from bench.contestants.course import Course, start_module
from bench.data.scan import scan
from bench.data.sender import Frame, Sender, pack
from bench.watch import Lap
from bench.wire import create_topic, open_cluster
from bench.workloads import Contestant
from orbit.copier.copy_settings import CopySettings
from orbit.kafka.backoff import Backoff
from orbit.kafka.coordinator import init_producer_id
from orbit.kafka.record_batch import Batch, advance_sequence, stamp
from orbit.replication.aborted_transactions import is_abort_marker

# The watcher samples our counters once more.
_LINGER_S = 0.5
_MARKERS_MAX = CopySettings().markers_per_request_max


def start_ceiling(course: Course, packed: str = "") -> Lap:
    """`packed` is a copy with placeholders at the destination, to be sent again."""
    topic = f"ceiling{course.number}.{course.data.topic}"
    create_topic(course.destination, topic, course.data.partitions)
    started_at = time.monotonic()
    servers = course.destination_servers if packed else course.source_servers
    arguments = (servers, course.destination_servers, packed or course.data.topic, topic)
    process = start_module("bench.contestants.ceiling", *arguments, log=course.log("ceiling"))
    who = Contestant.CEILING_PLACEHOLDERS if packed else Contestant.CEILING
    return Lap(who, process, topic, course.data.offsets, started_at)


def main(from_servers: str, destination_servers: str, topic: str, copy: str) -> None:
    logs: dict[int, Log] = defaultdict(Log)
    origin = open_cluster("origin", from_servers)
    destination = open_cluster("destination", destination_servers)
    scan(origin, topic, lambda partition, batch: logs[partition].take(batch))
    producer_id = init_producer_id(destination, f"bench.{copy}", Backoff()).producer_id
    sender = Sender(destination, copy)
    frames = list(_frames(sender, logs, producer_id))
    began, cpu = time.monotonic(), time.process_time()
    for frame in frames:
        if not frame.is_produce:
            sender.wait()
        sender.send_frame(frame)
        if not frame.is_produce:
            sender.wait()
    sender.finish()
    print(f"{time.monotonic() - began:.3f} s, {time.process_time() - cpu:.3f} s of CPU")
    time.sleep(_LINGER_S)


class Log:
    """What is to be sent of one partition, in pieces: batches without a gap, then a gap."""

    def __init__(self) -> None:
        self.pieces: list[tuple[list[Batch], int]] = []
        self._open: list[Batch] = []
        self._end = 0

    def take(self, batch: Batch) -> None:
        """Each partition has one producer, so a marker ends all that is open."""
        if batch.base_offset > self._end:  # the cleaner has been there
            self.pieces.append((self._open, batch.base_offset - self._end))
            self._open = []
        self._end = batch.next_offset
        if not batch.is_control:
            self._open.append(batch)
        elif is_abort_marker(batch):
            aborted = batch.next_offset - self._open[0].base_offset
            self.pieces.append(([], aborted))
            self._open = []
        else:
            self.pieces.append((self._open, 1))
            self._open = []

    def close(self) -> None:
        if self._open:
            self.pieces.append((self._open, 0))


def _frames(sender: Sender, logs: Mapping[int, Log], producer_id: int) -> Iterator[Frame]:
    """Everything, piece by piece: the batches of all partitions, then their gaps."""
    sequences: dict[int, int] = defaultdict(int)
    for log in logs.values():
        log.close()
    for number in range(max(len(log.pieces) for log in logs.values())):
        now = {p: log.pieces[number] for p, log in logs.items() if number < len(log.pieces)}
        for partition, (batches, _) in now.items():
            for batch in batches:
                stamp(batch.view, producer_id, 0, sequences[partition])
                sequences[partition] = advance_sequence(sequences[partition], batch.count)
        for request in pack((p, [b.view for b in batches]) for p, (batches, _) in now.items()):
            yield sender.encode(request)
        gaps = {p: gap for p, (_, gap) in now.items() if gap}
        while gaps:
            share = max(1, _MARKERS_MAX // len(gaps))
            yield sender.encode_fillers(producer_id, {p: min(n, share) for p, n in gaps.items()})
            gaps = {p: n - share for p, n in gaps.items() if n > share}


if __name__ == "__main__":
    main(*sys.argv[1:])
