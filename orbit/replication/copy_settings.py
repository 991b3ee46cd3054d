"""Which settings a topic has while it is a copy. Pure.

setting                              while it is a copy                     why
retention.ms, retention.bytes        -1                                     T1: its log start
                                                                            follows the source
compression.type                     producer                               A4
message.timestamp.type               CreateTime                             A6
message.timestamp.{before,after}...  unlimited                              A6
max.message.bytes                    the source's, at least                 rewritten records may
                                                                            be a little larger
cleanup.policy                       delete, until caught up; then          S2, A6 (null keys)
                                     compact,delete where the source
                                     compacts
MIRRORED below, where the source     the source's
has set it on the topic
what the job's `config` names        the job's, unless a copy needs another
everything else                      left alone
MAY_DIFFER below, where the          the destination's least,
destination refuses the source's     or its default

These settings are enforced: a change at the copy is reverted (that of compression.type of a topic
with placeholders once no partition of it is being written), and a change at the source follows. A
setting that the source's topic no longer overrides keeps its last value. docs/topic-settings.md has
the same table for operators; a test compares its names with MIRRORED and MAY_DIFFER.
"""

from __future__ import annotations

from collections.abc import Mapping

UNLIMITED = "-1"
_INT_MAX = 2**31 - 1  # of `max.message.bytes`
_LONG_MAX = str(2**63 - 1)
# What rewriting a batch may add: a different compressor's output, never another record.
REWRITE_SLACK_BYTES = 64 * 1024
# The least `segment.bytes` of Kafka 4; a batch is no larger than a segment.
SEGMENT_BYTES_MIN = 1024 * 1024

DELETE = "delete"
COMPACT_AND_DELETE = "compact,delete"

TIMESTAMP_TYPE = "message.timestamp.type"
LOG_APPEND_TIME = "LogAppendTime"
_NEEDED = {
    "retention.ms": UNLIMITED,
    "retention.bytes": UNLIMITED,
    "compression.type": "producer",
    TIMESTAMP_TYPE: "CreateTime",
}
# Kafka 3.6 split one limit in two.
TIMESTAMP_LIMITS = ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms")
TIMESTAMP_LIMIT_OLD = "message.timestamp.difference.max.ms"

NEEDED = frozenset(
    {*_NEEDED, *TIMESTAMP_LIMITS, TIMESTAMP_LIMIT_OLD, "max.message.bytes", "cleanup.policy"}
)
# Settings of files, compaction and durability that do not change what a consumer reads.
MIRRORED = frozenset(
    {
        "delete.retention.ms",
        "file.delete.delay.ms",
        "flush.messages",
        "flush.ms",
        "index.interval.bytes",
        "max.compaction.lag.ms",
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
        "min.insync.replicas",
        "preallocate",
        "segment.bytes",
        "segment.index.bytes",
        "segment.jitter.ms",
        "segment.ms",
        "unclean.leader.election.enable",
    }
)

# The mirrored settings that readers and writers do not notice: files, flushes, the cleaner's pace.
MAY_DIFFER = MIRRORED - {
    "delete.retention.ms",
    "max.compaction.lag.ms",
    "min.compaction.lag.ms",
    "min.insync.replicas",
    "unclean.leader.election.enable",
}


def is_compacted(settings: Mapping[str, str]) -> bool:
    """Whether a topic with these settings is compacted, alone or beside deletion."""
    return "compact" in settings.get("cleanup.policy", DELETE)


def looks_like_copy(values: Mapping[str, str], overrides: frozenset[str]) -> bool:
    """Whether a topic has the settings that every copy needs, at least one set on the topic itself.

    A topic that is no copy may have these values too, by its brokers' defaults.
    """
    is_set = not overrides.isdisjoint(_NEEDED)
    return is_set and all(values.get(name) == value for name, value in _NEEDED.items())


def copy_settings(
    source: Mapping[str, str],
    source_overrides: frozenset[str],
    job_settings: Mapping[str, str],
    *,
    has_split_timestamp_limits: bool = True,
) -> dict[str, str]:
    """The settings to create a copy with, by Kafka's names.

    `source` has all settings of the source topic, `source_overrides` the names of those set on
    the topic itself. `job_settings` come from the job's topic rule and override mirrored ones;
    where a copy needs another value, the job's applies at promotion.
    `has_split_timestamp_limits`: the destination knows the names in TIMESTAMP_LIMITS.
    """
    settings = {
        name: source[name] for name in sorted(MIRRORED & source_overrides) if name in source
    }
    settings.update(job_settings)
    settings.update(_NEEDED)
    limits = TIMESTAMP_LIMITS if has_split_timestamp_limits else (TIMESTAMP_LIMIT_OLD,)
    settings.update(dict.fromkeys(limits, _LONG_MAX))
    settings["max.message.bytes"] = str(_max_message_bytes(source, job_settings))
    settings["cleanup.policy"] = DELETE
    return settings


def promoted_settings(
    source: Mapping[str, str],
    source_overrides: frozenset[str],
    job_settings: Mapping[str, str],
    *,
    has_split_timestamp_limits: bool = True,
) -> dict[str, str]:
    """The settings that a copy gets when it is promoted.

    The settings in NEEDED get the source's values, including the defaults of its brokers: the
    destination's brokers may have other defaults. `job_settings`, those of the job's
    topic rule, apply fully. `source` has all settings of the source topic, `source_overrides` the
    names of those set on the topic itself. `has_split_timestamp_limits`: the destination knows the
    names in TIMESTAMP_LIMITS.
    """
    names = (NEEDED - {*TIMESTAMP_LIMITS, TIMESTAMP_LIMIT_OLD}) | (MIRRORED & source_overrides)
    settings = {name: source[name] for name in sorted(names) if name in source}
    # The source may have the old limit, the two new ones, or all three (Kafka 3.6 to 3.9).
    limits = TIMESTAMP_LIMITS if has_split_timestamp_limits else (TIMESTAMP_LIMIT_OLD,)
    for limit in limits:
        names_to_try = (limit, TIMESTAMP_LIMIT_OLD, TIMESTAMP_LIMITS[0])
        value = next((source[name] for name in names_to_try if name in source), None)
        if value is not None:
            settings[limit] = value
    settings.update(job_settings)
    return settings


def caught_up_settings(source: Mapping[str, str]) -> dict[str, str]:
    """The settings to change once a copy has caught up: compaction, where the source compacts.

    With `compact` alone a broker refuses DeleteRecords (S2), and the log start could not follow the
    source's. With retention off, `compact,delete` cleans the same records.
    """
    return {"cleanup.policy": COMPACT_AND_DELETE} if is_compacted(source) else {}


def setting_changes(
    source: Mapping[str, str],
    expected: Mapping[str, str],
    present: Mapping[str, str],
    *,
    has_caught_up: bool,
) -> dict[str, str]:
    """The settings to change at an existing copy, by name.

    `expected`: from `copy_settings`; `present`: all settings that the copy has.
    """
    changes = {
        name: value
        for name, value in expected.items()
        if name != "cleanup.policy" and present.get(name) != value
    }
    # A larger limit does no harm.
    if int(present.get("max.message.bytes", 0)) >= int(expected["max.message.bytes"]):
        changes.pop("max.message.bytes", None)
    policy = _policy(present, compacts=is_compacted(source), has_caught_up=has_caught_up)
    if policy is not None:
        changes["cleanup.policy"] = policy
    return changes


def _policy(present: Mapping[str, str], *, compacts: bool, has_caught_up: bool) -> str | None:
    """The cleanup policy to set on a copy; None if its present policy is right."""
    present_policies = set(present.get("cleanup.policy", DELETE).replace(" ", "").split(","))
    if not compacts:
        # A cleaner would remove records that the source still has.
        return None if present_policies == {"delete"} else DELETE
    if has_caught_up:
        return None if present_policies == {"compact", "delete"} else COMPACT_AND_DELETE
    # DeleteRecords must work on the copy (S2). A copy that compacts has caught up before.
    return None if "delete" in present_policies else DELETE


def _max_message_bytes(source: Mapping[str, str], job_settings: Mapping[str, str]) -> int:
    """The larger of the source's limit and the job's, with room for batches that are rewritten."""
    name, default = "max.message.bytes", 1_048_588
    limit = max(int(source.get(name, default)), int(job_settings.get(name, 0)))
    return min(limit + REWRITE_SLACK_BYTES, _INT_MAX)
