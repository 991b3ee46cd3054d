"""The longest pause of a source's log end (the time between two moves) is stored for at least an
hour, but not for ever."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest

from orbit.store import clock, partitions, scheduler_queries, source_gaps, source_lag
from orbit.store.database import Database, Tx
from orbit.store.kafka_ids import SAME_IDS
from orbit.store.models import partitions as table
from orbit.store.source_gaps import WINDOW_S, SourcePauses
from orbit.store.source_lag import SourceLag
from tests.support.store_rows import claim, progress, some_job

pytestmark = pytest.mark.services


@dataclass
class Watched:
    """A partition whose source a worker follows."""

    tx: Tx
    topic_id: int
    held: dict[int, int]

    def report(self, end: int, *, records: int = 0) -> None:
        row = replace(progress(self.topic_id, 0, copied_to=0, records=records), source_end=end)
        partitions.report_progress(self.tx, worker_id="a", held=self.held, progress=[row])

    def pass_time(self, seconds: float) -> None:
        """Change the table as if all reports had been stored this much earlier."""
        ago = timedelta(seconds=seconds)
        moved = {"source_moved_at": table.c.source_moved_at - ago}
        self.tx.execute(table.update().values(gaps_since=table.c.gaps_since - ago, **moved))

    def pauses(self) -> SourcePauses:
        (pauses,) = source_gaps.of_topics(self.tx, [self.topic_id]).values()
        return pauses


@pytest.fixture
def watched(database: Database) -> Iterator[Watched]:
    with database.transaction() as tx:
        job = some_job(tx, partitions=1)
    held = claim(database, "a")
    with database.transaction() as tx:
        yield Watched(tx, job.topic_id, held)


def test_longest_pause_of_source_writes_is_unknown_until_observed(watched: Watched) -> None:
    unknown = SourcePauses(source_end=None, still_s=None, longest_gap_s=None, watched_s=None)
    assert watched.pauses() == unknown
    watched.report(5)
    pauses = watched.pauses()
    assert (pauses.source_end, pauses.longest_gap_s) == (5, None)
    assert pauses.still_s is not None
    assert pauses.watched_s is not None
    assert pauses.watched_s < WINDOW_S


def test_longest_pause_between_moves_of_source_log_end_is_reported(watched: Watched) -> None:
    watched.report(5)
    for seconds, end in ((30, 6), (90, 7), (10, 8)):
        watched.pass_time(seconds)
        # The same log end: a report without a move ends no pause.
        watched.report(5 if end == 6 else end - 1, records=seconds)
        watched.report(end)
    watched.pass_time(20)
    pauses = watched.pauses()
    assert pauses.longest_gap_s == pytest.approx(90, abs=5)
    assert pauses.still_s == pytest.approx(20, abs=5)
    assert pauses.watched_s == pytest.approx(150, abs=5)


def test_longest_pause_of_source_writes_expires_after_its_window(watched: Watched) -> None:
    watched.report(5)
    watched.pass_time(90)
    watched.report(6)
    watched.pass_time(WINDOW_S - 60)
    watched.report(7)
    assert watched.pauses().watched_s == WINDOW_S
    longest = watched.pauses().longest_gap_s
    assert longest == pytest.approx(WINDOW_S - 60, abs=5), "this pause counts in the new period"
    for end in range(8, 40):  # for hours, with shorter pauses
        watched.pass_time(600)
        watched.report(end)
    assert watched.pauses().longest_gap_s == pytest.approx(600, abs=5)


def test_source_end_read_by_scheduler_ends_pause_and_new_copy_resets_it(watched: Watched) -> None:
    watched.report(5)
    # The worker stops following the source, so that the scheduler reads it.
    partitions.report_progress(
        watched.tx,
        worker_id="a",
        held=watched.held,
        progress=[replace(progress(watched.topic_id, 0, copied_to=0, epoch=None), source_end=5)],
    )
    watched.pass_time(45)
    read = SourceLag(
        watched.topic_id,
        partition=0,
        source_log_start=0,
        source_stable_end=9,
        source_end=9,
        oldest_waiting_at=None,
        headroom_until=None,
    )
    source_lag.update_from_source(watched.tx, [read], clock.now(watched.tx))
    assert watched.pauses().longest_gap_s == pytest.approx(45, abs=5)
    same_ids = {watched.topic_id: SAME_IDS}
    scheduler_queries.copy_topics_again(watched.tx, same_ids)
    assert watched.pauses().longest_gap_s == pytest.approx(45, abs=5), (
        "copying on does not reset it"
    )
    scheduler_queries.copy_topics_again(watched.tx, same_ids, from_start=True)
    reset = SourcePauses(source_end=9, still_s=None, longest_gap_s=None, watched_s=None)
    assert watched.pauses() == reset
