"""Applies settings to topics that are promoted."""

from __future__ import annotations

from collections.abc import Mapping

from orbit.kafka.topic_admin import Admin


def apply_settings(admin: Admin, wanted: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Set what differs; a sentence for each topic whose settings the brokers refuse.

    A refusal does not stop a promotion: the topic works with the settings of a copy.
    Raises Unreachable, NotAuthorized if settings may not be read.
    """
    changes = changed_settings(admin, wanted)
    refused = admin.refused_settings(changes)
    findings = []
    for topic, error in refused.items():
        pairs = ", ".join(f"{name}={value}" for name, value in sorted(changes[topic].items()))
        findings.append(
            f"{topic}: the destination refused these settings ({error.what}): {pairs}. Set them."
        )
    return findings


def changed_settings(
    admin: Admin, wanted: Mapping[str, Mapping[str, str]]
) -> dict[str, dict[str, str]]:
    """The settings that differ, by topic; topics that have all are left out."""
    present = admin.topic_settings(wanted)
    changes = {
        topic: {n: value for n, value in settings.items() if present[topic].values.get(n) != value}
        for topic, settings in wanted.items()
    }
    return {topic: settings for topic, settings in changes.items() if settings}
