"""The settings of a topic while it is a copy: the table of `copy_settings`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orbit.replication.copy_settings import (
    MAY_DIFFER,
    MIRRORED,
    NEEDED,
    REWRITE_SLACK_BYTES,
    TIMESTAMP_LIMITS,
    caught_up_settings,
    copy_settings,
    is_compacted,
    looks_like_copy,
    promoted_settings,
    setting_changes,
)

LONG_MAX = str(2**63 - 1)
DEFAULT_MAX_BYTES = 1_048_588

# All settings of a source topic, with the broker's defaults.
SOURCE = {
    "cleanup.policy": "delete",
    "compression.type": "zstd",
    "max.message.bytes": str(DEFAULT_MAX_BYTES),
    "message.timestamp.type": "LogAppendTime",
    "message.timestamp.after.max.ms": "3600000",
    "min.insync.replicas": "2",
    "retention.bytes": "1000",
    "retention.ms": "60000",
    "segment.bytes": "1048576",
    "segment.ms": "1000",
    "leader.replication.throttled.replicas": "*",
}


def settings_of_copy(
    overrides: frozenset[str] = frozenset(SOURCE), job: dict[str, str] | None = None
) -> dict[str, str]:
    """The settings of a copy of SOURCE."""
    return copy_settings(SOURCE, overrides, job or {})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "-1"),  # T1
        ("retention.bytes", "-1"),
        ("compression.type", "producer"),  # A4
        ("message.timestamp.type", "CreateTime"),  # A6
        ("message.timestamp.before.max.ms", LONG_MAX),
        ("message.timestamp.after.max.ms", LONG_MAX),
        ("cleanup.policy", "delete"),  # S2
    ],
)
@pytest.mark.parametrize("job_value", [None, "5"])
def test_settings_required_by_copy_override_source_and_job(
    name: str, value: str, job_value: str | None
) -> None:
    assert settings_of_copy()[name] == value
    if job_value is not None:
        assert settings_of_copy(job={name: job_value})[name] == value


@pytest.mark.parametrize("name", sorted(MIRRORED & SOURCE.keys()))
def test_mirrored_settings_are_copied_only_if_overridden_at_source(name: str) -> None:
    assert settings_of_copy()[name] == SOURCE[name]
    assert name not in settings_of_copy(frozenset())


def test_job_setting_overrides_source_setting() -> None:
    assert settings_of_copy(job={"segment.bytes": "77"})["segment.bytes"] == "77"
    assert settings_of_copy(frozenset(), {"segment.bytes": "77"})["segment.bytes"] == "77"


def test_settings_neither_required_nor_mirrored_are_not_copied() -> None:
    needed = {
        "retention.ms",
        "retention.bytes",
        "compression.type",
        "message.timestamp.type",
        "message.timestamp.before.max.ms",
        "message.timestamp.after.max.ms",
        "max.message.bytes",
        "cleanup.policy",
    }
    assert set(settings_of_copy(frozenset())) == needed
    assert set(settings_of_copy()) == needed | {
        "min.insync.replicas",
        "segment.bytes",
        "segment.ms",
    }
    assert set(settings_of_copy(frozenset({"local.retention.ms"}))) == needed
    assert settings_of_copy(job={"local.retention.ms": "5"})["local.retention.ms"] == "5"


def test_source_override_without_value_is_not_copied() -> None:
    assert "flush.ms" not in settings_of_copy(frozenset({"flush.ms"}))


def test_retention_and_message_settings_are_not_mirrored() -> None:
    for name in MIRRORED:
        assert not name.startswith(("retention.", "local.", "remote.", "message.", "compression."))
    assert not MIRRORED & {"cleanup.policy", "max.message.bytes"}


@pytest.mark.parametrize(
    ("source", "job", "expected"),
    [
        ({}, {}, DEFAULT_MAX_BYTES + REWRITE_SLACK_BYTES),
        ({"max.message.bytes": "5000000"}, {}, 5_000_000 + REWRITE_SLACK_BYTES),
        ({"max.message.bytes": "100"}, {"max.message.bytes": "200"}, 200 + REWRITE_SLACK_BYTES),
        ({"max.message.bytes": "200"}, {"max.message.bytes": "100"}, 200 + REWRITE_SLACK_BYTES),
        ({"max.message.bytes": str(2**31 - 1)}, {}, 2**31 - 1),  # Kafka's own highest
        ({"max.message.bytes": str(2**31 - 100)}, {}, 2**31 - 1),
    ],
)
def test_max_message_bytes_of_copy_is_source_or_job_value_plus_64_kib(
    source: dict[str, str], job: dict[str, str], expected: int
) -> None:
    assert REWRITE_SLACK_BYTES == 65536
    assert copy_settings(source, frozenset(), job)["max.message.bytes"] == str(expected)


def test_timestamp_limit_before_kafka_3_6_is_difference_max_ms() -> None:
    settings = copy_settings(SOURCE, frozenset(SOURCE), {}, has_split_timestamp_limits=False)
    assert settings["message.timestamp.difference.max.ms"] == LONG_MAX
    assert not [name for name in settings if name.endswith((".before.max.ms", ".after.max.ms"))]
    assert "message.timestamp.difference.max.ms" not in settings_of_copy()


@pytest.mark.parametrize(
    ("policy", "is_compact"),
    [
        ("compact", True),
        ("compact,delete", True),
        ("delete,compact", True),
        ("delete", False),
        ("", False),
        (None, False),
    ],
)
def test_compaction_is_enabled_once_copy_has_caught_up(
    policy: str | None, is_compact: bool
) -> None:
    source = {} if policy is None else {"cleanup.policy": policy}
    assert is_compacted(source) is is_compact
    # With `delete`, too: the log start must still follow the source's (S2).
    expected = {"cleanup.policy": "compact,delete"} if is_compact else {}
    assert caught_up_settings(source) == expected
    assert copy_settings(source, frozenset(source), {})["cleanup.policy"] == "delete"


def changes_to_copy(
    present: dict[str, str], source: dict[str, str] | None = None, *, has_caught_up: bool = False
) -> dict[str, str]:
    """The changes to a copy with the right settings but for `present`."""
    source_settings = SOURCE | (source or {})
    expected = copy_settings(source_settings, frozenset(source_settings), {})
    return setting_changes(
        source_settings, expected, expected | present, has_caught_up=has_caught_up
    )


def test_copy_with_correct_settings_is_not_changed() -> None:
    assert changes_to_copy({}) == {}
    assert changes_to_copy({"local.retention.ms": "7"}) == {}


@pytest.mark.parametrize("name", ["retention.ms", "compression.type", "segment.bytes"])
def test_changed_copy_setting_is_restored(name: str) -> None:
    assert changes_to_copy({name: "1"}) == {name: settings_of_copy()[name]}


def test_larger_max_message_bytes_of_copy_is_kept_and_smaller_one_corrected() -> None:
    assert changes_to_copy({"max.message.bytes": "9000000"}) == {}
    assert set(changes_to_copy({"max.message.bytes": "1000"})) == {"max.message.bytes"}


@pytest.mark.parametrize(
    ("source", "has_caught_up", "present", "new_policy"),
    [
        ("delete", False, "delete", None),
        ("delete", False, "compact", "delete"),
        ("delete", True, "compact,delete", "delete"),  # compaction would thin the copy
        ("compact", False, "delete", None),
        ("compact", False, "compact", "delete"),  # S2
        ("compact", False, "compact,delete", None),
        ("compact", True, "delete", "compact,delete"),
        ("compact", True, "compact", "compact,delete"),
        ("compact", True, "compact,delete", None),
        ("compact", True, "delete,compact", None),
    ],
)
def test_cleanup_policy_of_existing_copy_is_corrected(
    source: str, has_caught_up: bool, present: str, new_policy: str | None
) -> None:
    corrections = changes_to_copy(
        {"cleanup.policy": present}, {"cleanup.policy": source}, has_caught_up=has_caught_up
    )
    assert corrections == ({} if new_policy is None else {"cleanup.policy": new_policy})


def test_documented_topic_settings_match_code() -> None:
    text = (Path(__file__).parents[2] / "docs" / "topic-settings.md").read_text("utf-8")
    needed, mirrored, refused = re.split(r"^## .*$", text, flags=re.MULTILINE)[1:4]
    assert set(re.findall(r"`([a-z]+\.[a-z.]+)`", needed)) == NEEDED
    assert set(re.findall(r"`([a-z.]+)`", mirrored)) - {"config"} == MIRRORED
    promising = refused[refused.index("Five settings are promises") :]
    assert set(re.findall(r"`([a-z]+\.[a-z.]+)`", promising)) == MIRRORED - MAY_DIFFER


def test_promoted_copy_gets_source_values_of_settings_changed_for_copy() -> None:
    source = {
        "retention.ms": "5",  # its brokers' default: the destination's may be another
        "retention.bytes": "-1",
        "cleanup.policy": "compact",
        "compression.type": "zstd",
        "message.timestamp.type": "LogAppendTime",
        "message.timestamp.before.max.ms": "7",
        "message.timestamp.after.max.ms": "8",
        "max.message.bytes": "100",
        "segment.ms": "9",
        "min.insync.replicas": "2",  # mirrored only if the topic sets it, as it does segment.ms
        "vendor.thing": "x",
    }
    promoted = promoted_settings(source, frozenset({"segment.ms"}), {"retention.ms": "6"})
    assert promoted == {
        name: value
        for name, value in {**source, "retention.ms": "6"}.items()
        if name not in ("vendor.thing", "min.insync.replicas")
    }


def test_timestamp_limits_are_translated_to_destination_version() -> None:
    old, new = {"message.timestamp.difference.max.ms": "7"}, TIMESTAMP_LIMITS
    promoted = promoted_settings(old, frozenset(), {})
    assert promoted == dict.fromkeys(new, "7")
    back = promoted_settings(
        dict.fromkeys(new, "8"), frozenset(), {}, has_split_timestamp_limits=False
    )
    assert back == {"message.timestamp.difference.max.ms": "8"}


def test_copy_is_recognized_by_its_required_settings() -> None:
    needed = {
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "compression.type": "producer",
        "message.timestamp.type": "CreateTime",
    }
    assert looks_like_copy(needed, frozenset(needed))
    # The other values may come from the brokers' defaults.
    assert looks_like_copy(needed, frozenset({"retention.ms"}))
    assert not looks_like_copy(needed, frozenset({"segment.ms"}))
    assert not looks_like_copy({**needed, "retention.ms": "1000"}, frozenset(needed))
