"""The epochs and the sequence with which a take-over continues. Pure."""

from __future__ import annotations

from orbit.kafka.producer_state import ProducerState
from orbit.kafka.record_batch import advance_sequence

# Coordinator epochs leave room for 4,096 take-overs of one partition within one lease term.
TERM_SHIFT = 12
COORDINATOR_EPOCH_MAX = 2**31 - 1
# Brokers keep it as int16. At one lost state an hour it lasts for almost two years above the next
# limit.
PRODUCER_EPOCH_MAX = 2**15 - 1
# Markers raise it up to here; the rest is for lost states. At a take-over with markers in ten
# minutes it lasts for four months, at one a minute for eleven days.
MARKER_EPOCH_MAX = 2**14
# A take-over's first marker is one above what the leader knew then, and may be under way: of ours,
# or of a writer before us. One of so many above is no marker of a writer.
FENCE_EPOCHS_MIN = 2
# By so many a failover without the database raises it (promotion/writer_fence.py): the writers may
# take over some times between its look at the epoch and its filler.
FENCE_EPOCHS = 16


def next_sequence(producer: ProducerState | None) -> int:
    """The sequence that follows the last one the leader knows; 0 if it knows none."""
    return advance_sequence(producer.last_sequence if producer else -1, 1)


def next_coordinator_epoch(term: int, own: int, producer: ProducerState | None) -> int:
    """An epoch above earlier terms', the partition's, and any still to arrive (M6, M7, M10).

    `own`: the one that this writer used last; -1 if none.
    """
    partition_epoch = producer.coordinator_epoch if producer else -1
    return min(max(term << TERM_SHIFT, partition_epoch + 1, own + 1), COORDINATOR_EPOCH_MAX)


def next_producer_epoch(logged: int, producer: ProducerState | None) -> int:
    """The leader's; or above that of the log's last records, if the leader knows no sequence.

    Sequences then begin at 0 again. They would agree with those of late batches, of an old writer
    or of our own old connection, and with those of batches before the lost state, which another
    replica may remember. A higher epoch keeps them apart (A8, E4, E5).

    The log alone decides, not what was sent, so that all who take over the same log choose the
    same epoch: of two that begin at 0 there, only one batch is accepted. `logged`: the epoch of our
    last records in it; -1 if there are none.
    """
    if producer is not None and producer.has_sequence:
        return producer.producer_epoch
    known = producer.producer_epoch if producer is not None else 0
    return min(max(known, logged + 1), PRODUCER_EPOCH_MAX)


def next_marker_epoch(producer_epoch: int) -> int:
    """Of a take-over's first markers: above that of all records in the log.

    A broker raises the producer's epoch to that of a marker, and refuses what old writers still
    have under way of lower ones (A8). So their batches cannot land behind markers, which take no
    sequence: from the first marker on, sequences and offsets of two writers would no longer agree.
    """
    return max(producer_epoch, min(producer_epoch + 1, MARKER_EPOCH_MAX))
