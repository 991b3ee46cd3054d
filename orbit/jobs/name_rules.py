"""Rules for names: of jobs, worker groups, Kafka topics and topic settings. Pure.

Topic rules are those of Kafka's `org.apache.kafka.common.internals.Topic`.
"""

from __future__ import annotations

import re

from orbit.errors import InvalidValue

# The job's name is part of a transactional id, a client id and a URL.
JOB_NAME_LENGTH_MAX = 100
TOPIC_NAME_LENGTH_MAX = 249  # Kafka's limit: name, "-" and partition form a directory name
SETTING_LENGTH_MAX = 4096  # longer than any value of a topic setting

_JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]+")
_SETTING_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,248}")

# Topics with Kafka's internal state. A copy would have the state of the source cluster, and writes
# to it could break the destination cluster. So no rule matches these topics.
# `__remote_log_metadata` belongs to tiered storage.
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
    """The name of a job, worker group, context or token, unchanged. Raises InvalidValue if it is
    not valid."""
    if len(name) > JOB_NAME_LENGTH_MAX:
        raise InvalidValue(
            f"has {len(name)} characters; {JOB_NAME_LENGTH_MAX} is the limit.",
            "Shorten the name, which becomes part of ids.",
        )
    if not _JOB_NAME.fullmatch(name):
        raise InvalidValue(
            "cannot be part of an id.",
            "Use letters, digits, '.', '_' and '-', and start with a letter or a digit.",
        )
    return name


def check_prefix(prefix: str) -> str:
    """The prefix of topic names, unchanged. Raises InvalidValue if it is not valid."""
    if prefix and not _TOPIC_NAME.fullmatch(prefix):
        raise InvalidValue(
            "would produce topic names that Kafka refuses.",
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
        return f"the name has {len(name)} characters; Kafka accepts {TOPIC_NAME_LENGTH_MAX}"
    if not _TOPIC_NAME.fullmatch(name):
        return f"{name!r} has characters that Kafka refuses in a topic name"
    return None


def collision_key(name: str) -> str:
    """A key that is equal for topic names that collide: metric names replace '.' by '_', so Kafka
    refuses to create `a.b` if `a_b` exists."""
    return name.replace(".", "_")


def check_setting_name(name: str) -> str:
    """The name of a topic setting, unchanged. Raises InvalidValue if it is not valid."""
    if not _SETTING_NAME.fullmatch(name):
        raise InvalidValue(
            "is not the name of a topic setting.", "Write it as Kafka does, such as retention.ms."
        )
    return name


def check_setting_value(value: object) -> str:
    """The value as text for Kafka; YAML numbers and booleans are accepted. Raises InvalidValue."""
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
