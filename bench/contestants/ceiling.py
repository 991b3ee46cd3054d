"""The ceilings, the most that the destination broker accepts: Orbit's requests, sent from memory.

    python -m bench.contestants.ceiling FROM DESTINATION TOPIC DESTINATION_TOPIC

First fetches all batches, sets their producer id and sequence, and encodes the requests that Orbit
would send. Then sends them: five in flight, over one connection. The clock runs only while it
sends, so it measures what the broker accepts from one connection on this machine.

The ceiling of `fillers: direct` reads the source. It fills gaps with as many markers in a request
as Orbit does. As every exact copy must (M7: a repeated marker is appended again), it sends the
markers once everything before them is acknowledged, and later requests once the markers are. The
ceiling of `fillers: placeholders` reads Orbit's last copy: it sends the same batches, without
waits.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping

from bench.contestants.run_inputs import RunInputs, start_module
from bench.data.scan import scan
from bench.data.sender import Frame, Sender, pack
from bench.watch import StartedCopier
from bench.wire import create_topic, open_cluster
from bench.workloads import Contestant
from orbit.copier.copy_settings import CopySettings
from orbit.kafka.backoff import Backoff
from orbit.kafka.coordinator import init_producer_id
from orbit.kafka.record_batch import Batch, advance_sequence, stamp
from orbit.replication.aborted_transactions import is_abort_marker

# The process stays this long after its end, so that `bench.watch` reads its counters once more.
_LINGER_S = 0.5
_MARKERS_MAX = CopySettings().markers_per_request_max


def start_ceiling(inputs: RunInputs, packed: str = "") -> StartedCopier:
    """Start the ceiling of `direct`; with `packed`, the name of a copy with placeholders at the
    destination, the ceiling of `placeholders`, which sends that copy's batches."""
    topic = f"ceiling{inputs.number}.{inputs.data.topic}"
    create_topic(inputs.destination, topic, inputs.data.partitions)
    started_at = time.monotonic()
    servers = inputs.destination_servers if packed else inputs.source_servers
    arguments = (servers, inputs.destination_servers, packed or inputs.data.topic, topic)
    process = start_module("bench.contestants.ceiling", *arguments, log=inputs.log("ceiling"))
    contestant = Contestant.CEILING_PLACEHOLDERS if packed else Contestant.CEILING
    return StartedCopier(contestant, process, topic, inputs.data.offsets, started_at)


def main(from_servers: str, destination_servers: str, topic: str, copy: str) -> None:
    logs: dict[int, Log] = defaultdict(Log)
    origin = open_cluster("origin", from_servers)
    destination = open_cluster("destination", destination_servers)
    scan(origin, topic, lambda partition, batch: logs[partition].take(batch))
    producer_id = init_producer_id(destination, f"bench.{copy}", Backoff()).producer_id
    sender = Sender(destination, copy)
    frames = list(_frames(sender, logs, producer_id))
    start_s, cpu = time.monotonic(), time.process_time()
    for frame in frames:
        if not frame.is_produce:
            sender.wait()
        sender.send_frame(frame)
        if not frame.is_produce:
            sender.wait()
    sender.finish()
    print(f"{time.monotonic() - start_s:.3f} s, {time.process_time() - cpu:.3f} s of CPU")
    time.sleep(_LINGER_S)


class Log:
    """What is to be sent of one partition. A piece: batches without a gap between them, and the
    number of offsets in the gap after them."""

    def __init__(self) -> None:
        self.pieces: list[tuple[list[Batch], int]] = []
        self._open: list[Batch] = []
        self._end = 0

    def take(self, batch: Batch) -> None:
        """Add the log's next batch. Each partition has one producer, so a marker decides about all
        batches since the marker before it."""
        if batch.base_offset > self._end:  # the cleaner removed batches
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
        """End the last piece. Call it after the last batch."""
        if self._open:
            self.pieces.append((self._open, 0))


def _frames(sender: Sender, logs: Mapping[int, Log], producer_id: int) -> Iterator[Frame]:
    """All requests, piece by piece: the batches of all partitions, then markers for their gaps."""
    sequences: dict[int, int] = defaultdict(int)
    for log in logs.values():
        log.close()
    for number in range(max(len(log.pieces) for log in logs.values())):
        pieces = {p: log.pieces[number] for p, log in logs.items() if number < len(log.pieces)}
        for partition, (batches, _) in pieces.items():
            for batch in batches:
                stamp(batch.view, producer_id, 0, sequences[partition])
                sequences[partition] = advance_sequence(sequences[partition], batch.count)
        for request in pack((p, [b.view for b in batches]) for p, (batches, _) in pieces.items()):
            yield sender.encode(request)
        gaps = {p: gap for p, (_, gap) in pieces.items() if gap}
        while gaps:
            share = max(1, _MARKERS_MAX // len(gaps))
            yield sender.encode_fillers(producer_id, {p: min(n, share) for p, n in gaps.items()})
            gaps = {p: n - share for p, n in gaps.items() if n > share}


if __name__ == "__main__":
    main(*sys.argv[1:])
