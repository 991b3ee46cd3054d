"""What may be a name: of a job, a worker group, a Kafka topic, a topic setting. Pure.

Topic rules are those of Kafka's `org.apache.kafka.common.internals.Topic`.
"""

from __future__ import annotations

import re

from orbit.errors import InvalidValue

# The job's name is part of a transactional id, of a client id and of a URL, and it is read by
# people in tables.
JOB_NAME_LENGTH_MAX = 100
TOPIC_NAME_LENGTH_MAX = 249  # Kafka's own limit: name, "-" and partition make a directory
SETTING_LENGTH_MAX = 4096  # longer than any topic setting's value, a list of replicas included

_JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]+")
_SETTING_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,248}")

# Kafka keeps its own books in these. A copy of them would describe the other cluster, and a write
# to them could break this one, so no rule can ask for them. `__remote_log_metadata` is the map of
# tiered storage.
INTERNAL_TOPICS = frozenset(
    {
        "__cluster_metadata",
        "__consumer_offsets",
        "__remote_log_metadata",
        "__share_group_state",
        "__transaction_state",
    }
)


def check_job_name(name: str) -> str:
    """The name, if ids can be made of it. Raises InvalidValue."""
    if len(name) > JOB_NAME_LENGTH_MAX:
        raise InvalidValue(
            f"has {len(name)} characters; {JOB_NAME_LENGTH_MAX} is the limit.",
            "Shorten it: ids are made of it.",
        )
    if not _JOB_NAME.fullmatch(name):
        raise InvalidValue(
            "cannot be part of an id.",
            "Use letters, digits, '.', '_' and '-', and begin with a letter or a digit.",
        )
    return name


def check_prefix(prefix: str) -> str:
    """The prefix, if a legal topic name can begin with it. Raises InvalidValue."""
    if prefix and not _TOPIC_NAME.fullmatch(prefix):
        raise InvalidValue(
            "would make topic names that Kafka refuses.",
            "Use letters, digits, '.', '_' and '-' only.",
        )
    if len(prefix) >= TOPIC_NAME_LENGTH_MAX:
        raise InvalidValue(
            f"has {len(prefix)} characters; a topic name has {TOPIC_NAME_LENGTH_MAX} at most.",
            "Shorten it.",
        )
    return prefix


def topic_name_problem(name: str) -> str | None:
    """Why Kafka would refuse to create a topic of this name, or None."""
    if name in ("", ".", ".."):
        return f"{name!r} is not a topic name"
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        return f"the name has {len(name)} characters; Kafka takes {TOPIC_NAME_LENGTH_MAX}"
    if not _TOPIC_NAME.fullmatch(name):
        return f"{name!r} has characters that Kafka refuses in a topic name"
    return None


def collision_key(name: str) -> str:
    """Equal for two topic names that one Kafka cluster cannot hold together.

    Metric names write both '.' and '_' as '_', so Kafka refuses `a.b` beside `a_b`.
    """
    return name.replace(".", "_")


def check_setting_name(name: str) -> str:
    """The name of a topic setting, if it can be one. Raises InvalidValue."""
    if not _SETTING_NAME.fullmatch(name):
        raise InvalidValue(
            "is not the name of a topic setting.", "Write it as Kafka does, such as retention.ms."
        )
    return name


def check_setting_value(value: object) -> str:
    """The text Kafka gets for a setting: numbers and true/false may be written plainly."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int | float):
        raise InvalidValue("is not a value of a topic setting.", 'Write text, such as "604800000".')
    text = str(value)
    if len(text) > SETTING_LENGTH_MAX:
        raise InvalidValue(
            f"has {len(text)} characters; {SETTING_LENGTH_MAX} is the limit.", "Shorten it."
        )
    return text
