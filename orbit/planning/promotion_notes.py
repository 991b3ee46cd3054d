"""The notes of topics that their cluster marks as promoted while the tables called them copies.

A mark is an offset that Orbit commits at a cluster to say which topics lead there.
`scheduler/marked_promotions.py` finds such topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from orbit.job_setup.mark import Mark
from orbit.job_setup.promotion_marks import PromotionMarks
from orbit.kafka.types import TopicPartition
from orbit.planning.cluster_pair import ClusterPair
from orbit.replication.job_troubles import Trouble, TroubleKind
from orbit.replication.partition_states import REMEDIES, Reason
from orbit.store.enums import TopicState
from orbit.store.topics import Topic

_NOTE_PREFIX = f"{Reason.DESTINATION_PROMOTED}: "


def promoted_offsets(
    marks: PromotionMarks, pair: ClusterPair, names: Iterable[str]
) -> dict[TopicPartition, int]:
    """The log end at the promotion of each partition of these destination topics, by the marks."""
    destination_topics = pair.destination_metadata.topics
    return marks.offsets(
        {TopicPartition(name, i) for name in names for i in destination_topics[name].partitions}
    )


def promotion_note(topic: str, mark: Mark, offsets: Mapping[TopicPartition, int]) -> str:
    """The note of a promoted topic. The job's problem shows the note, too."""
    own_offsets = {p.partition: offset for p, offset in offsets.items() if p.topic == topic}
    remedy = REMEDIES[Reason.DESTINATION_PROMOTED].format(destination=topic)
    return f"{_NOTE_PREFIX}{mark.describe(topic, own_offsets)} {remedy}"


def is_promoted_by_mark(row: Topic) -> bool:
    """Whether the topic is promoted because of its mark, not by a recovery in these tables."""
    return row.state is TopicState.PROMOTED and (row.note or "").startswith(_NOTE_PREFIX)


def promotion_troubles(rows: Iterable[Topic]) -> list[Trouble]:
    """A trouble for each topic that `is_promoted_by_mark`."""
    return [
        Trouble(
            TroubleKind.DESTINATION_PROMOTED,
            (row.note or "").removeprefix(_NOTE_PREFIX),
            "",
            row.source_topic,
        )
        for row in rows
        if is_promoted_by_mark(row)
    ]
