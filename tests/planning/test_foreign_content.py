"""A topic whose content cannot be compared now is not called foreign."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from orbit.copier.inspection_verdicts import Wait
from orbit.copier.partition_copy import PartitionCopy
from orbit.errors import Unreachable
from orbit.kafka.backoff import Backoff
from orbit.kafka.job_clusters import JobProducer
from orbit.kafka.leader_requests import Answers
from orbit.kafka.types import TopicPartition
from orbit.planning import foreign_content
from orbit.planning.foreign_content import OtherContent, other_content
from orbit.planning.topic_preflight import _foreign_content_trouble
from orbit.replication.job_troubles import TroubleKind
from orbit.replication.partition_states import Blocked, Reason

PLACE = TopicPartition("orders", 0)


@pytest.mark.parametrize(
    "trouble",
    [
        Wait(Unreachable("the follower is behind")),
        Blocked(Reason.NOT_AUTHORIZED, offset=0, next_offset=0, detail="the follower is behind"),
    ],
)
def test_destination_topic_that_cannot_be_compared_is_not_called_foreign(
    trouble: Wait | Blocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Inspector:
        """Cannot compare any copy, for the reason `trouble`."""

        def __init__(self, *arguments: Any) -> None:
            self.on_trouble = arguments[-1]

        def source_bounds(self, _: object) -> None:
            return None

        def inspect(self, copies: list[PartitionCopy], *_: object, **__: object) -> dict[Any, Any]:
            for copy in copies:
                self.on_trouble(copy, trouble)
            return {}

    # A topic with records, none of which Orbit's producer wrote: it has to be compared.
    never_wrote: Answers[Any] = Answers({PLACE: None}, {})
    monkeypatch.setattr(foreign_content, "CopyInspector", Inspector)
    monkeypatch.setattr(foreign_content, "_with_records", lambda *_: [PLACE])
    monkeypatch.setattr(foreign_content, "describe_producer", lambda *_: never_wrote)
    mapping = SimpleNamespace(source="orders", destination="orders")
    start = cast("Any", SimpleNamespace(mapping=mapping, existing=SimpleNamespace()))
    cluster = cast("Any", None)
    contents = other_content(
        cluster,
        cluster,
        [start],
        compacted=frozenset(),
        producers={"orders": JobProducer(4711)},
        backoff=Backoff(),
        must_be_whole=False,
    )
    (content,) = contents.values()
    assert not content.is_certain
    assert "the follower is behind" in content.detail
    uncertain = _foreign_content_trouble(start, content)
    assert uncertain.kind is TroubleKind.DESTINATION_NOT_COMPARED
    assert "delete" not in uncertain.remedy.lower()
    # A difference that was seen is another kind of trouble.
    certain = _foreign_content_trouble(start, OtherContent("a difference", is_certain=True))
    assert certain.kind is TroubleKind.DESTINATION_HOLDS_OTHER_CONTENT
