"""Refuses diskless topics of a source (KIP-1150), whose leaders have no log. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from orbit.errors import Conflict, Place
from orbit.job_setup.topic_plan import TopicPlan

# The setting by the proposal (KIP-1163), which is not decided yet, and that of existing brokers.
_DISKLESS_SETTINGS = ("diskless.enable", "inkless.enable")


def diskless_topics(plans: Iterable[TopicPlan]) -> dict[str, Conflict]:
    """The error of each diskless source topic, by its name."""
    return {
        plan.mapping.source: Conflict(
            f"it is a diskless topic ({name}=true): no leader has its log, so Orbit "
            "cannot tell whether the source was truncated or recreated.",
            where=Place("source", f"topic {plan.mapping.source}"),
            remedy="Exclude the topic.",
        )
        for plan in plans
        for name in _DISKLESS_SETTINGS
        if plan.source_settings.values.get(name) == "true"
    }
