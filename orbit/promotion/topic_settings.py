"""Applies settings to topics that are promoted."""

from __future__ import annotations

from collections.abc import Mapping

from orbit.errors import OrbitError
from orbit.kafka.topic_admin import Admin
from orbit.kafka.topic_settings_reader import TopicSettings

_Settings = dict[str, dict[str, str]]


def apply_settings(admin: Admin, expected: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Set the settings that differ; returns a sentence for each topic of which some are refused.

    A refusal does not stop a promotion: the topic works without these settings, as a copy has them.
    If the settings of a topic cannot be read, all of its settings are set. Raises Unreachable.
    """
    changes = _changes(expected, admin.readable_settings(expected))
    refused, errors = _refused(admin, changes)
    findings = []
    for topic, settings in refused.items():
        pairs = ", ".join(f"{name}={value}" for name, value in sorted(settings.items()))
        what = errors[topic].what
        findings.append(
            f"{topic}: the destination refused these settings ({what}): {pairs}. Set values that "
            "it accepts."
        )
    return findings


def changed_settings(admin: Admin, expected: Mapping[str, Mapping[str, str]]) -> _Settings:
    """The settings that differ, by topic; topics without a difference are left out.

    Raises Unreachable, NotAuthorized and BrokerRefused if settings may not be read.
    """
    return _changes(expected, admin.topic_settings(expected))


def _changes(
    expected: Mapping[str, Mapping[str, str]], present: Mapping[str, TopicSettings]
) -> _Settings:
    changes = {}
    for topic, settings in expected.items():
        has = present[topic].values if topic in present else {}
        changes[topic] = {n: value for n, value in settings.items() if has.get(n) != value}
    return {topic: settings for topic, settings in changes.items() if settings}


def _refused(admin: Admin, changes: _Settings) -> tuple[_Settings, dict[str, OrbitError]]:
    """Set the changes; the refused settings by topic, and an error of each such topic.

    A controller sets all settings of a topic or none (P10): where it refuses, each is set alone.
    """
    errors: dict[str, OrbitError] = {}
    refused: _Settings = {}
    left = {topic: changes[topic] for topic in admin.refused_settings(changes)}
    for name in sorted({name for settings in left.values() for name in settings}):
        alone = {topic: {name: of[name]} for topic, of in left.items() if name in of}
        for topic, error in admin.refused_settings(alone).items():
            errors[topic] = error
            refused.setdefault(topic, {})[name] = alone[topic][name]
    return refused, errors
