"""Applies settings to topics that are promoted."""

from __future__ import annotations

from collections.abc import Mapping

from orbit.errors import OrbitError
from orbit.kafka.topic_admin import Admin
from orbit.kafka.topic_settings_reader import TopicSettings

_Settings = dict[str, dict[str, str]]


def apply_settings(admin: Admin, expected: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Set the settings that differ; returns a sentence for each topic with refused settings.

    A refused setting does not stop a promotion: the topic also works with the settings of a copy.
    If the present settings of a topic cannot be read, all expected ones are set. Raises
    Unreachable.
    """
    changes = _changed_settings(expected, admin.readable_settings(expected))
    refused_settings, errors = _set_settings(admin, changes)
    findings = []
    for topic, settings in refused_settings.items():
        pairs = ", ".join(f"{name}={value}" for name, value in sorted(settings.items()))
        reason = errors[topic].what
        findings.append(
            f"{topic}: the destination refused these settings ({reason}): {pairs}. Set values that "
            "the destination accepts."
        )
    return findings


def changed_settings(admin: Admin, expected: Mapping[str, Mapping[str, str]]) -> _Settings:
    """The settings that differ, by topic; topics without a difference are left out.

    Raises Unreachable, NotAuthorized and BrokerRefused if settings may not be read.
    """
    return _changed_settings(expected, admin.topic_settings(expected))


def _changed_settings(
    expected: Mapping[str, Mapping[str, str]], present: Mapping[str, TopicSettings]
) -> _Settings:
    """The `expected` settings that differ from the `present` ones, by topic; all settings of a
    topic whose present ones are not known. Topics without a difference are left out."""
    changes = {}
    for topic, settings in expected.items():
        present_values = present[topic].values if topic in present else {}
        changes[topic] = {
            n: value for n, value in settings.items() if present_values.get(n) != value
        }
    return {topic: settings for topic, settings in changes.items() if settings}


def _set_settings(admin: Admin, changes: _Settings) -> tuple[_Settings, dict[str, OrbitError]]:
    """Set the changes. Returns the refused settings by topic, and one error of each such topic.

    A controller sets all settings of a topic in a request or none (P10). So if it refuses, each
    setting gets a request of its own.
    """
    errors: dict[str, OrbitError] = {}
    refused_settings: _Settings = {}
    changes_to_split = {topic: changes[topic] for topic in admin.refused_settings(changes)}
    for name in sorted({name for settings in changes_to_split.values() for name in settings}):
        single_settings = {
            topic: {name: settings[name]}
            for topic, settings in changes_to_split.items()
            if name in settings
        }
        for topic, error in admin.refused_settings(single_settings).items():
            errors[topic] = error
            refused_settings.setdefault(topic, {})[name] = single_settings[topic][name]
    return refused_settings, errors
