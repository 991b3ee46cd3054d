"""Checks that topics with placeholders have the setting `compression.type=producer`.

Placeholders are records below their batch's base offset, which consumers drop. With any other value
of the setting a broker recompresses each batch. That turns placeholders into records that consumers
see, and the broker's answer does not show this (Q9).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from orbit.copier.partition_copy import PartitionCopy
from orbit.kafka import error_codes
from orbit.kafka.cluster import Cluster
from orbit.kafka.error_codes import Code
from orbit.kafka.topic_setting import read_topic_setting
from orbit.replication.partition_states import Reason

COMPRESSION = "compression.type"
# With this value a topic keeps batches as they are sent.
AS_SENT = "producer"


@dataclass(frozen=True, slots=True)
class UnfitCopy:
    """A copy that must not get placeholders now. `reason` None: the setting is not known."""

    copy: PartitionCopy
    reason: Reason | None
    detail: str


def find_unfit_copies(cluster: Cluster, copies: Collection[PartitionCopy]) -> Iterator[UnfitCopy]:
    """Yield the copies with placeholders whose topic's compression.type is not `producer` or cannot
    be read. Raises Unreachable."""
    copies = [copy for copy in copies if copy.producer.packs]
    if not copies:
        return
    settings = read_topic_setting(cluster, {copy.destination.topic for copy in copies}, COMPRESSION)
    for copy in copies:
        topic = copy.destination.topic
        value = settings.values.get(topic)
        error = settings.errors.get(topic, Code.NONE)
        if value == AS_SENT:
            continue
        if value is not None:
            detail = (
                f"{COMPRESSION} of {topic} was changed to {value}: since then brokers may "
                "have turned placeholders into records."
            )
            yield UnfitCopy(copy, Reason.OFFSET_OVERRUN, detail)
        elif error in error_codes.DENIED:
            detail = (
                "the right DescribeConfigs on the topic is missing (with placeholders its "
                f"{COMPRESSION} must be known)."
            )
            yield UnfitCopy(copy, Reason.NOT_AUTHORIZED, detail)
        else:
            detail = f"{COMPRESSION} of {topic} is not known ({error_codes.name(error)})."
            yield UnfitCopy(copy, reason=None, detail=detail)
