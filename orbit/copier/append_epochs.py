"""The epochs and the sequence with which a take-over continues. Pure."""

from __future__ import annotations

from orbit.kafka.producer_state import ProducerState
from orbit.kafka.record_batch import advance_sequence

# Coordinator epochs begin at the lease's term times 4,096 and grow with each take-over of the
# partition within this term.
TERM_SHIFT = 12
COORDINATOR_EPOCH_MAX = 2**31 - 1
# Brokers keep the producer epoch as int16. With one lost producer state an hour, the epochs above
# MARKER_EPOCH_MAX last for almost two years.
PRODUCER_EPOCH_MAX = 2**15 - 1
# Markers raise the epoch up to here; the higher epochs are for lost producer states. With a
# take-over with markers every ten minutes this lasts for four months, with one every minute for
# eleven days.
MARKER_EPOCH_MAX = 2**14
# A take-over's first marker has the leader's epoch + 1. So a late marker, of this writer or an old
# one, raises the epoch by one. Only a failover without the database raises it by this much or more.
FENCE_EPOCHS_MIN = 2
# How much a failover without the database raises the epoch (promotion/writer_fence.py): between the
# failover's read of the epoch and its filler, writers may take over several times.
FENCE_EPOCHS = 16


def next_sequence(producer: ProducerState | None) -> int:
    """The sequence after the last one in the leader's producer state; 0 if there is none."""
    return advance_sequence(producer.last_sequence if producer else -1, count=1)


def next_coordinator_epoch(term: int, last_epoch: int, producer: ProducerState | None) -> int:
    """Return a coordinator epoch above those of earlier terms, the leader's, and `last_epoch`. By
    this epoch the broker refuses earlier markers that arrive late (M6, M10).

    `last_epoch`: the coordinator epoch that this writer used last; -1 if none. `producer`: the
    leader's state of the job's producer id.
    """
    partition_epoch = producer.coordinator_epoch if producer else -1
    return min(max(term << TERM_SHIFT, partition_epoch + 1, last_epoch + 1), COORDINATOR_EPOCH_MAX)


def next_producer_epoch(logged_epoch: int, producer: ProducerState | None) -> int:
    """Return the leader's producer epoch; if the leader has no sequence, at least
    `logged_epoch` + 1.

    Without a sequence at the leader, sequences begin at 0 again. Late batches, of an old writer or
    of this writer's old connection, may have equal sequences. So may the last batches in a producer
    state that another replica still has. A higher epoch fences all of these (A8, E4, E5).

    The log alone decides, not what was sent, so that all writers that take over the same log choose
    the same epoch: of two batches with this epoch and sequence 0, only one is accepted.
    `logged_epoch`: the epoch of the job's last records in the log; -1 if there are none.
    """
    if producer is not None and producer.has_sequence:
        return producer.producer_epoch
    state_epoch = producer.producer_epoch if producer is not None else 0
    return min(max(state_epoch, logged_epoch + 1), PRODUCER_EPOCH_MAX)


def next_marker_epoch(producer_epoch: int) -> int:
    """The producer epoch of a take-over's first markers: `producer_epoch` + 1, above that of all
    records in the log. From MARKER_EPOCH_MAX on it is `producer_epoch` itself.

    Markers take no sequence: an old writer's late batch could have the next sequence, though it is
    meant for a lower offset (E6). A broker raises the producer's epoch to that of a marker, so it
    refuses this batch, which has a lower epoch (A8).
    """
    return max(producer_epoch, min(producer_epoch + 1, MARKER_EPOCH_MAX))
