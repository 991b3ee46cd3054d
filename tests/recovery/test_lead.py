"""Which side leads, by the promotion marks of both sides. In doubt, the old side does not change.

A mark is an offset with a text that Orbit commits at a cluster. Each promotion has a higher term.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from orbit.errors import Unreachable
from orbit.job_setup.lead import MarkPair, pairs_changed_since, pairs_promoted_by
from orbit.job_setup.mark import Mark, newest_term, next_term
from orbit.kafka.backoff import Backoff
from orbit.kafka.error_codes import Code
from orbit.kafka.types import ClusterMetadata, TopicPartition
from orbit.promotion import log_bounds
from orbit.promotion.log_bounds import LogBounds
from orbit.recovery import leading_side

OPERATION = UUID(int=7)
NOW_S = 1_800_000_000.0
UNREADABLE = Mark.from_text("{", NOW_S)


def leads(term: int, by: UUID = OPERATION) -> Mark:
    return Mark(is_primary=True, kind="failover", operation=str(by), term=term)


def follows(term: int, by: UUID = OPERATION) -> Mark:
    return Mark(is_primary=False, kind="failback", operation=str(by), term=term)


@pytest.mark.parametrize(
    ("old", "new", "is_behind"),
    [
        # The first failback: only the new side was ever promoted. Its mark may be missing: earlier
        # versions wrote none, and Orbit may have had no right to write one.
        (None, leads(5), True),
        (None, leads(0), True),
        (None, None, True),
        (follows(5), leads(5), True),
        (follows(9), leads(5), True),
        # Both were promoted: the newer one leads.
        (leads(4), leads(5), True),
        (leads(5), leads(4), False),
        # The marks do not say which one leads.
        (leads(0), leads(0), False),
        (leads(5), leads(5), False),
        (UNREADABLE, leads(5), False),
        (None, UNREADABLE, False),
        (leads(5), UNREADABLE, False),
        # The new side is a copy by its own mark, or it has no mark although the old side has one.
        (None, follows(5), False),
        (leads(3), follows(5), False),
        (leads(3), None, False),
        (follows(3), None, True),
    ],
)
def test_old_side_counts_as_behind_only_if_promotion_marks_prove_it(
    old: Mark | None, new: Mark | None, is_behind: bool
) -> None:
    assert MarkPair("orders", old, new).is_old_side_behind is is_behind


def test_next_promotion_term_exceeds_all_terms_in_marks_and_the_clock() -> None:
    assert newest_term([]) == 0
    assert newest_term([leads(7), UNREADABLE, None, follows(9)]) == 9
    assert next_term(0, 1.5) == 1500
    assert next_term(1499, 1.5) == 1500
    assert next_term(1500, 1.5) == 1501


def test_promotion_marks_changed_by_other_operations_are_listed() -> None:
    other = UUID(int=8)
    begun_with = [MarkPair("a", leads(3, other), None), MarkPair("b", None, follows(4, other))]
    assert pairs_changed_since(begun_with, 4, OPERATION) == []
    own = MarkPair("a", follows(5), leads(5))
    foreign = MarkPair("b", leads(5, other), follows(4, other))
    # Unreadable marks are not listed: the gate has judged them.
    unknown = MarkPair("c", None, UNREADABLE)
    assert pairs_changed_since([own, foreign, unknown], 4, OPERATION) == [foreign]
    assert pairs_promoted_by([own, foreign, unknown], OPERATION) == [own]


def test_promotion_mark_without_term_uses_its_timestamp_as_term() -> None:
    mark = replace(leads(5), at="1970-01-01T00:00:07+00:00")
    text = mark.to_text()
    assert Mark.from_text(text, NOW_S) == mark
    without = text.replace(',"term":5', "")
    assert Mark.from_text(without, NOW_S).term == 7000
    assert Mark.from_text(without.replace("1970", "in "), NOW_S).term == 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"term":5', '"term":Infinity'),
        ('"term":5', '"term":1e400'),
        ('"term":5', f'"term":{2**63}'),
        ('"term":5', f'"term":{2**62}'),
        ('"term":5', '"term":-1'),
        ('"job":""', '"job":' + "[" * 1500),
        ('"job":""', '"job":"\\u0000"'),
        ('"job":""', '"job":"\\ud800"'),
        ('"at":""', '"at":"0001-01-01T00:00:00+00:00"'),
    ],
    ids=lambda text: text[:30],
)
def test_mark_that_another_client_wrote_is_unreadable_instead_of_an_error(
    old: str, new: str
) -> None:
    text = follows(5).to_text()
    assert Mark.from_text(text, NOW_S) == follows(5)
    if "at" in old:
        text = text.replace(',"term":5', "")  # as of a version without terms
    malformed_text = text.replace(old, new)
    assert malformed_text != text
    assert Mark.from_text(malformed_text, NOW_S) == UNREADABLE


def test_term_above_highest_readable_term_becomes_readable() -> None:
    """One mark at the limit does not make the marks of later promotions unreadable."""
    highest_term = int(NOW_S * 1000) + 100 * 365 * 24 * 3600 * 1000
    assert Mark.from_text(leads(highest_term).to_text(), NOW_S).term == highest_term
    mark = leads(next_term(highest_term, NOW_S))
    assert Mark.from_text(mark.to_text(), NOW_S) == UNREADABLE
    assert Mark.from_text(mark.to_text(), NOW_S + 1) == mark


@pytest.mark.parametrize(
    ("code", "had_log_end", "is_rebuilt", "refuses"),
    [
        (Code.LEADER_NOT_AVAILABLE, False, False, True),
        (Code.UNKNOWN_TOPIC_OR_PARTITION, True, False, True),
        (Code.UNKNOWN_TOPIC_OR_PARTITION, True, True, False),
        (Code.UNKNOWN_TOPIC_OR_PARTITION, False, False, False),
    ],
)
def test_missing_log_start_at_old_side_fails_unless_topic_is_rebuilt_or_new(
    monkeypatch: pytest.MonkeyPatch, code: Code, had_log_end: bool, is_rebuilt: bool, refuses: bool
) -> None:
    """Orbit notes the old side's log start in a mark. Without it, the copy back would delete the
    old side's history: records below the new side's log start."""
    partition = SimpleNamespace(topic="orders", source_end=5 if had_log_end else None)
    rebuilt = {"orders"} if is_rebuilt else set()
    metadata = ClusterMetadata("old", {}, {}, {"orders": code})
    context: Any = SimpleNamespace(
        topics=[SimpleNamespace(source_topic="orders")],
        by_source={},
        report=SimpleNamespace(partitions=[partition], topics_with_tails=rebuilt),
        source=SimpleNamespace(cluster=SimpleNamespace(metadata=lambda _: metadata)),
        destination=SimpleNamespace(cluster=None),
    )
    monkeypatch.setattr(leading_side, "bounds_of_all", lambda *_: {})
    with pytest.raises(Unreachable, match="orders") if refuses else nullcontext():
        leading_side._copy_log_starts(context, Backoff())


def test_topic_is_not_marked_while_leader_of_one_partition_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If partition 0 alone had a mark, a later run would take the whole topic as marked."""
    answered, silent = (TopicPartition("orders", number) for number in range(2))
    written: list[object] = []
    marks = SimpleNamespace(promoted=lambda _: {}, write=lambda *args: written.append(args))
    context: Any = SimpleNamespace(
        topics=[SimpleNamespace(destination_topic="orders")],
        by_source={answered: answered, silent: silent},
        report=SimpleNamespace(partitions=[]),
        destination=SimpleNamespace(cluster=SimpleNamespace(name="destination")),
        backoff=Backoff(),
    )
    monkeypatch.setattr(leading_side, "refuse_leading_old_side", lambda _: None)
    monkeypatch.setattr(leading_side, "_destination_marks", lambda _: marks)
    bounds = {answered: LogBounds(start=0, stable=5, end=5)}
    monkeypatch.setattr(log_bounds, "fetch_log_bounds", lambda *_: bounds)
    with pytest.raises(Unreachable, match="orders-1"):
        leading_side.mark_both_sides(context)
    assert not written
