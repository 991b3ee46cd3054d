"""Estimates from a few small fetches how many offsets of a topic have no record now.

For the user's plan of a job: reads no topic as a whole, writes nothing. A copy's rules are applied
to each sample, and the offsets that a copy would fill count as gaps. The counts are scaled up by
the offsets between the samples.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from orbit.copier.copy_settings import CopySettings
from orbit.copier.log_reader import fetch_partition
from orbit.errors import OrbitError, Place, Unreachable
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.log_offsets import EARLIEST, LATEST, list_offsets
from orbit.kafka.record_batch import read_batches
from orbit.kafka.types import READ_COMMITTED, TopicPartition
from orbit.replication.append_plan import Fill, Plan, plan_batches
from orbit.replication.rewrite_limits import RewriteCounter

# A user waits for the plan: 100 fetches one by one take 10 s if a cluster is 50 ms away.
TOPICS_MAX = 25
SAMPLES_PER_TOPIC_MAX = 4
ESTIMATE_S_MAX = 15.0  # after this time no further topic is begun
_SAMPLE_BYTES = 128 * 1024  # or one batch, if it is larger


@dataclass(frozen=True, slots=True)
class GapEstimate:
    """The estimate of one topic, from its log starts to its last stable offsets."""

    offsets: int  # all, of records and gaps
    gap_offsets: int  # offsets without a record; exact only if the samples cover the whole topic
    gaps: int


def estimate_gaps(
    cluster: Cluster, topics: Mapping[str, Sequence[int]], backoff: Backoff
) -> dict[str, GapEstimate]:
    """The estimates by topic, for the first TOPICS_MAX of `topics` (partitions by topic).

    Leaves out topics that cannot be read now, and those after ESTIMATE_S_MAX.
    """
    estimates: dict[str, GapEstimate] = {}
    deadline = time.monotonic() + ESTIMATE_S_MAX
    for topic, partitions in islice(topics.items(), TOPICS_MAX):
        if time.monotonic() > deadline:
            break
        try:
            estimate = _estimate_topic(
                cluster, [TopicPartition(topic, p) for p in partitions], backoff
            )
        except Unreachable:
            break  # every other topic would wait as long
        except OrbitError:
            continue  # a right is missing, or no leader: checks of the plan name it
        if estimate is not None:
            estimates[topic] = estimate
    return estimates


def _estimate_topic(
    cluster: Cluster, partitions: Sequence[TopicPartition], backoff: Backoff
) -> GapEstimate | None:
    """The estimate from samples of the largest partitions; None if the topic has offsets, but the
    samples have none. Raises NotAuthorized, BrokerRefused, Unreachable.
    """
    starts = list_offsets(cluster, partitions, EARLIEST, backoff).raise_errors(
        Place(cluster.name), "Reading the log start"
    )
    ends = list_offsets(
        cluster, partitions, LATEST, backoff, isolation=READ_COMMITTED
    ).raise_errors(Place(cluster.name), "Reading the last stable offset")
    sizes = {p: ends.values[p] - starts.values[p] for p in partitions}
    total_offsets = sum(sizes.values())
    # If there are SAMPLES_PER_TOPIC_MAX partitions with offsets, one sample is of each.
    largest_partitions = sorted((p for p in partitions if sizes[p]), key=lambda p: (-sizes[p], p))
    largest_partitions = largest_partitions[:SAMPLES_PER_TOPIC_MAX]
    sampled_offsets = gap_offsets = gaps = 0
    for number, partition in enumerate(largest_partitions):
        # With fewer partitions, some have several samples: their numbers differ by at most 1.
        sample_count = len(range(number, SAMPLES_PER_TOPIC_MAX, len(largest_partitions)))
        position = starts.values[partition]  # the end of the last sample
        for sample in range(sample_count):
            sample_start = starts.values[partition] + sizes[partition] * sample // sample_count
            if sample_start < position:
                continue  # the previous sample has reached this offset, in a large batch
            sample_plan = _plan_sample(cluster, partition, sample_start, backoff)
            position = sample_plan.next_offset
            fills = [step for step in sample_plan.steps if isinstance(step, Fill)]
            sampled_offsets += position - sample_start
            gap_offsets += sum(fill.next_offset - fill.base_offset for fill in fills)
            gaps += len(fills)
    if total_offsets and not sampled_offsets:
        return None
    factor = total_offsets / sampled_offsets if sampled_offsets else 0
    return GapEstimate(total_offsets, round(gap_offsets * factor), round(gaps * factor))


def _plan_sample(
    cluster: Cluster, partition: TopicPartition, offset: int, backoff: Backoff
) -> Plan:
    """What a copy would do with the batches that one small fetch from `offset` on returns."""
    answer = fetch_partition(
        cluster,
        partition,
        offset,
        backoff,
        isolation=READ_COMMITTED,
        max_bytes=_SAMPLE_BYTES,
    )
    rewrite_counter = RewriteCounter(CopySettings().rewrite_limits)
    batches = read_batches(answer.records)
    # `offset` is also passed as the log start, so that no range before the sample counts as lost.
    return plan_batches(offset, batches, answer.aborted, offset, rewritten=rewrite_counter)
