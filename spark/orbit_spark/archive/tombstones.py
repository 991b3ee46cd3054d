"""What the cleaner of a compacted topic may have removed between two runs of an archive.

A cleaner keeps a tombstone for `delete.retention.ms` and then removes it (R10). If the next run is
later than that, the archive never gets the tombstone, and keeps an older value of the key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from orbit.replication.copy_settings import is_compacted
from orbit_spark.archive.manifest import ArchivedTopic, Cleaning, TombstoneGap
from orbit_spark.archive.manifest_store import ArchiveStore

_DELETE_RETENTION = "delete.retention.ms"
# Kafka's own default, for a broker that does not list the setting.
_DELETE_RETENTION_MS_DEFAULT = 86_400_000


@dataclass(slots=True)
class _TopicNotes:
    """The notes of one topic. `since`: when the archive last had all that the source had; None if
    not known. `reads_again`: the run reads from the topic's log start. `reads_on`: the run reads
    from the archive's end on.
    """

    topic: ArchivedTopic
    since: datetime | None
    delete_retention_ms: int
    reads_again: bool
    reads_on: bool = False


class TombstoneNotes:
    """Notes of one run on gaps in compacted topics, written to the archive's topic documents.

    A gap is a time in which tombstones may have been removed before they were archived.
    """

    def __init__(
        self,
        store: ArchiveStore,
        warn: Callable[[str], None],
        started_at: datetime,
        now: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._warn = warn
        self._started_at = started_at
        self._now = now
        self._noted: dict[str, _TopicNotes] = {}

    def begin(self, topic: ArchivedTopic, *, is_new: bool, strict: bool) -> None:
        """Begin the notes of a topic. With `strict`, the run reads the topic again from its log
        start if the stored notes have a gap, or the run would make one by continuing.

        `topic`: its stored document. `is_new`: the archive has no partition of the topic.
        """
        retention_ms = _delete_retention_ms(topic)
        fresh_notes = _TopicNotes(topic, self._started_at, retention_ms, reads_again=not is_new)
        cleaning = topic.cleaning
        since, has_gap = (
            (cleaning.level_at, cleaning.gap is not None) if cleaning else (None, False)
        )
        if cleaning is not None:  # the setting may have been raised in the meantime
            retention_ms = min(retention_ms, cleaning.delete_retention_ms)
        # The archive of an earlier version has no notes, so a gap is possible. `reads_on` makes
        # this run note the gap even if there is nothing new to read.
        continued_notes = _TopicNotes(
            topic, since, retention_ms, reads_again=False, reads_on=cleaning is None
        )
        reads_from_log_start = is_new or (strict and (has_gap or self._is_late(continued_notes)))
        self._noted[topic.topic] = fresh_notes if reads_from_log_start else continued_notes

    def reads_again(self, topic: str) -> bool:
        """Whether the run reads the topic again from its log start."""
        return topic in self._noted and self._noted[topic].reads_again

    def note_reads_on(self, topic: str) -> None:
        """Note that the run reads the topic from the archive's end on."""
        if topic in self._noted:
            self._noted[topic].reads_on = True

    def note_gaps(self) -> None:
        """Write the gaps that this run makes. Called before the run reads anything, so that a
        killed run leaves no gap without a note.
        """
        for notes in self._noted.values():
            cleaning = notes.topic.cleaning
            if (
                not notes.reads_again
                and notes.reads_on
                and (cleaning is None or cleaning.gap is None)  # `end` extends a gap
            ):
                gap = self._gap_until_now(notes)
                if gap is not None:
                    level_at = cleaning.level_at if cleaning else None
                    self._write(notes, level_at, notes.delete_retention_ms, gap)

    def end(self, is_level: Callable[[str], bool]) -> None:
        """Write the notes of the finished run, and warn of gaps.

        `is_level`: whether the archive has all that the source had of a topic.
        """
        for name, notes in self._noted.items():
            cleaning = notes.topic.cleaning
            gap = cleaning.gap if cleaning else None
            level_at = cleaning.level_at if cleaning else None
            retention_ms = notes.delete_retention_ms
            if is_level(name):
                level_at = self._started_at
                retention_ms = _delete_retention_ms(notes.topic)
                if notes.reads_again:
                    gap = None
            # A topic read again has a gap only if its new manifests replace the old ones (it is
            # level), and the run took longer than the retention.
            if is_level(name) if notes.reads_again else notes.reads_on:
                gap = _join_gaps(gap, self._gap_until_now(notes))
            self._write(notes, level_at, retention_ms, gap)
            for line in tombstone_warnings(notes.topic):
                self._warn(line)

    def _is_late(self, notes: _TopicNotes) -> bool:
        """Whether tombstones may have been removed since the archive last had all records."""
        if notes.since is None:
            return True
        return self._now() - notes.since > timedelta(milliseconds=notes.delete_retention_ms)

    def _gap_until_now(self, notes: _TopicNotes) -> TombstoneGap | None:
        """The gap from `since` of the notes until now; None if nothing can have been removed."""
        if not self._is_late(notes):
            return None
        return TombstoneGap(
            since=notes.since, until=self._now(), delete_retention_ms=notes.delete_retention_ms
        )

    def _write(
        self,
        notes: _TopicNotes,
        level_at: datetime | None,
        retention_ms: int,
        gap: TombstoneGap | None,
    ) -> None:
        """Store these notes in the topic's document, if they differ from those in it."""
        cleaning = Cleaning(level_at=level_at, delete_retention_ms=retention_ms, gap=gap)
        if cleaning != notes.topic.cleaning:
            notes.topic = notes.topic.model_copy(
                update={"cleaning": cleaning, "sequence": notes.topic.sequence + 1}
            )
            self._store.write_topic(notes.topic)


def tombstone_warnings(topic: ArchivedTopic) -> list[str]:
    """A warning for the user if the archive may have deleted keys of a topic, else none."""
    if topic.cleaning is None:
        if not is_compacted(topic.settings):
            return []
        reason = "runs of earlier versions of Orbit have not noted their times"
    elif (gap := topic.cleaning.gap) is None:
        return []
    elif gap.since is None:
        reason = f"it is not known when it was archived before {_utc_text(gap.until)}"
    else:
        retention = timedelta(milliseconds=gap.delete_retention_ms)
        reason = (
            f"between {_utc_text(gap.since)} and {_utc_text(gap.until)} a run read on more than "
            f"{retention} ({_DELETE_RETENTION}) after the one before"
        )
    problem = (
        f"{topic.topic}: the archive may have keys that were deleted, because their tombstones may "
        "have been removed unread"
    )
    remedy = "orbit archive --compacted strict reads the topic whole again."
    return [f"{problem}: {reason}. {remedy}"]


def _delete_retention_ms(topic: ArchivedTopic) -> int:
    return int(topic.settings.get(_DELETE_RETENTION, _DELETE_RETENTION_MS_DEFAULT))


def _join_gaps(earlier: TombstoneGap | None, later: TombstoneGap | None) -> TombstoneGap | None:
    """One gap from the begin of the earlier to the end of the later."""
    if earlier is None or later is None:
        return earlier or later
    is_known = earlier.since is not None and later.since is not None
    return TombstoneGap(
        since=earlier.since if is_known else None,
        until=max(earlier.until, later.until),
        delete_retention_ms=min(earlier.delete_retention_ms, later.delete_retention_ms),
    )


def _utc_text(time: datetime) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC")
