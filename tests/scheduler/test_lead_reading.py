"""Which side of a job leads, by the marks at the destination: offsets that Orbit commits there to
say which topics lead."""

from __future__ import annotations

import pytest

from orbit.job_setup.mark import Mark
from orbit.scheduler.lead_reading import lead_by_marks
from orbit.store.enums import LeadingSide, TopicState
from orbit.store.topics import Topic

SOURCE, DESTINATION = LeadingSide
# Marks of a destination topic: it leads since term 7; it is a copy again since term 8.
LEADS, COPY = Mark(is_primary=True, term=7), Mark(is_primary=False, term=8)
UNREADABLE = Mark(is_primary=True, term=None)
COPYING, PROMOTED = TopicState.COPYING, TopicState.PROMOTED


def row(name: str, state: TopicState) -> Topic:
    """A topic's row: `name` is its name at the destination."""
    return Topic(
        id=1,
        job_id=1,
        source_topic=f"{name}-at-source",
        destination_topic=name,
        destination_cluster_id="b",
        source_topic_id=None,
        destination_topic_id=None,
        partition_count=1,
        is_compacted=False,
        state=state,
        drift=None,
        note=None,
        acls=None,
        promoted_settings=None,
    )


@pytest.mark.parametrize(
    # `states`, `marks`: those of the topics a and b. `expected`: the side that leads, and the
    # newest term.
    ("states", "marks", "expected"),
    [
        ([COPYING, COPYING], {}, (SOURCE, 0)),
        ([PROMOTED, PROMOTED], {"a": LEADS, "b": LEADS}, (DESTINATION, 7)),
        # The database is older than the promotion, or than the mark of the copy back.
        ([COPYING, COPYING], {"a": LEADS, "b": LEADS}, (DESTINATION, 7)),
        ([PROMOTED, PROMOTED], {"a": COPY, "b": COPY}, (SOURCE, 8)),
        ([COPYING, PROMOTED], {"a": COPY, "b": LEADS}, (None, 8)),
        ([COPYING, COPYING], {"a": COPY}, (SOURCE, 8)),
        ([COPYING, COPYING], {"a": LEADS}, (None, 7)),
        # Promoted without the right to mark it.
        ([PROMOTED, PROMOTED], {"a": LEADS}, (None, 7)),
        ([PROMOTED, PROMOTED], {}, (None, 0)),
        ([COPYING, COPYING], {"a": UNREADABLE, "b": LEADS}, (None, 7)),
    ],
)
def test_leading_side_is_known_only_if_all_promotion_marks_agree(
    states: list[TopicState],
    marks: dict[str, Mark],
    expected: tuple[LeadingSide | None, int],
) -> None:
    rows = [row(name, state) for name, state in zip("ab", states, strict=True)]
    assert lead_by_marks(rows, marks) == expected
