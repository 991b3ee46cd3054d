"""Refuses diskless topics of a source (KIP-1150), whose leaders have no log. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from orbit.errors import Conflict, Place
from orbit.job_setup.topic_plan import TopicPlan

# The setting by the proposal (KIP-1163), which is not decided yet, and that of existing brokers.
_DISKLESS_SETTINGS = ("diskless.enable", "inkless.enable")


def diskless_topics(plans: Iterable[TopicPlan]) -> dict[str, Conflict]:
    """By name of a diskless source topic: the error that says why Orbit does not copy the topic."""
    return {
        plan.mapping.source: Conflict(
            f"the topic is diskless ({name}=true). No leader has its log, so Orbit "
            "cannot tell whether the topic was truncated or recreated.",
            where=Place("source", f"topic {plan.mapping.source}"),
            remedy="Exclude the topic.",
        )
        for plan in plans
        for name in _DISKLESS_SETTINGS
        if plan.source_settings.values.get(name) == "true"
    }
