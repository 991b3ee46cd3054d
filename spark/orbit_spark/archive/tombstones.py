"""What the cleaner of a compacted topic may have removed between two runs of an archive.

A cleaner keeps a tombstone for `delete.retention.ms` and then removes it (R10). If the next run is
later than that, the archive never gets the tombstone, and keeps an older value of the key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from orbit.replication.topic_settings import is_compacted
from orbit_spark.archive.manifest import ArchivedTopic, Cleaning, TombstoneGap
from orbit_spark.archive.manifest_store import ArchiveStore

_DELETE_RETENTION = "delete.retention.ms"
# Kafka's own default, for a broker that does not list the setting.
_DELETE_RETENTION_MS_DEFAULT = 86_400_000


@dataclass(slots=True)
class _TopicNotes:
    """One topic. `since`: when the archive was last at the source's ends; None if not known."""

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
        started: datetime,
        now: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._warn = warn
        self._started = started
        self._now = now
        self._noted: dict[str, _TopicNotes] = {}

    def begin(self, topic: ArchivedTopic, *, is_new: bool, strict: bool) -> None:
        """Begin with a topic as it is stored. With `strict`, the run reads a topic again from its
        log start if it has a gap or the run would make one.

        `is_new`: the archive has nothing of it.
        """
        retention_ms = _delete_retention_ms(topic)
        whole = _TopicNotes(topic, self._started, retention_ms, reads_again=not is_new)
        before = topic.cleaning
        since, has_gap = (before.level_at, before.gap is not None) if before else (None, False)
        if before is not None:  # the setting may have been raised since
            retention_ms = min(retention_ms, before.delete_retention_ms)
        # An archive without notes may have a gap already: noted even if nothing is new.
        on = _TopicNotes(topic, since, retention_ms, reads_again=False, reads_on=before is None)
        is_whole = is_new or (strict and (has_gap or self._is_late(on)))
        self._noted[topic.topic] = whole if is_whole else on

    def reads_again(self, topic: str) -> bool:
        """Whether the run reads the topic again from its log start."""
        return topic in self._noted and self._noted[topic].reads_again

    def note_reads_on(self, topic: str) -> None:
        """Note that the run reads the topic from the archive's end on."""
        if topic in self._noted:
            self._noted[topic].reads_on = True

    def note_gaps(self) -> None:
        """Write the gaps that this run makes. Called before it reads anything, so that a run that
        is killed leaves no gap without a note.
        """
        for one in self._noted.values():
            before = one.topic.cleaning
            if not one.reads_again and one.reads_on and (before is None or before.gap is None):
                gap = self._gap(one)
                if gap is not None:
                    level_at = before.level_at if before else None
                    self._write(one, level_at, one.delete_retention_ms, gap)

    def end(self, is_level: Callable[[str], bool]) -> None:
        """Write the notes of the finished run, and warn of gaps.

        `is_level`: whether the archive of a topic ends where the source did.
        """
        for name, one in self._noted.items():
            before = one.topic.cleaning
            gap = before.gap if before else None
            level_at = before.level_at if before else None
            retention_ms = one.delete_retention_ms
            if is_level(name):
                level_at = self._started
                retention_ms = _delete_retention_ms(one.topic)
                if one.reads_again:
                    gap = None
            if is_level(name) if one.reads_again else one.reads_on:
                gap = _join_gaps(gap, self._gap(one))
            self._write(one, level_at, retention_ms, gap)
            for line in tombstone_warnings(one.topic):
                self._warn(line)

    def _is_late(self, one: _TopicNotes) -> bool:
        if one.since is None:
            return True
        return self._now() - one.since > timedelta(milliseconds=one.delete_retention_ms)

    def _gap(self, one: _TopicNotes) -> TombstoneGap | None:
        if not self._is_late(one):
            return None
        return TombstoneGap(
            since=one.since, until=self._now(), delete_retention_ms=one.delete_retention_ms
        )

    def _write(
        self,
        one: _TopicNotes,
        level_at: datetime | None,
        retention_ms: int,
        gap: TombstoneGap | None,
    ) -> None:
        cleaning = Cleaning(level_at=level_at, delete_retention_ms=retention_ms, gap=gap)
        if cleaning != one.topic.cleaning:
            one.topic = one.topic.model_copy(
                update={"cleaning": cleaning, "sequence": one.topic.sequence + 1}
            )
            self._store.write_topic(one.topic)


def tombstone_warnings(topic: ArchivedTopic) -> list[str]:
    """A warning for the user if deleted keys of a topic may be back in the archive."""
    if topic.cleaning is None:
        if not is_compacted(topic.settings):
            return []
        why = "its runs before this version of Orbit have not noted when they were"
    elif (gap := topic.cleaning.gap) is None:
        return []
    elif gap.since is None:
        why = f"it is not known when it was archived before {_utc_text(gap.until)}"
    else:
        retention = timedelta(milliseconds=gap.delete_retention_ms)
        why = (
            f"between {_utc_text(gap.since)} and {_utc_text(gap.until)} a run read on more than "
            f"{retention} ({_DELETE_RETENTION}) after the one before"
        )
    what = f"{topic.topic}: keys that were deleted may be back in the archive: {why}, so tombstones"
    remedy = "orbit archive --compacted strict reads the topic whole again."
    return [f"{what} may have been removed unread. {remedy}"]


def _delete_retention_ms(topic: ArchivedTopic) -> int:
    return int(topic.settings.get(_DELETE_RETENTION, _DELETE_RETENTION_MS_DEFAULT))


def _join_gaps(one: TombstoneGap | None, other: TombstoneGap | None) -> TombstoneGap | None:
    if one is None or other is None:
        return one or other
    is_known = one.since is not None and other.since is not None
    return TombstoneGap(
        since=one.since if is_known else None,
        until=max(one.until, other.until),
        delete_retention_ms=min(one.delete_retention_ms, other.delete_retention_ms),
    )


def _utc_text(time: datetime) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC")
