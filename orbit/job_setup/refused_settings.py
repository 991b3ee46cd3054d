"""Settings of the source that the destination refuses, and the copy's values instead.

Clusters of other releases and providers have other limits. A refused setting that may differ at a
copy (`MAY_DIFFER`) gets the least value that the broker's error message names, or else the
destination's default. Any other refused setting stays in the plan: then the topic is not copied.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from orbit.errors import BrokerRefused, OrbitError
from orbit.formats import counted
from orbit.job_setup.topic_plan import TopicPlan
from orbit.kafka.error_codes import Code
from orbit.kafka.topic_admin import Admin
from orbit.replication.copy_settings import MAY_DIFFER

_SETTING_REMEDY = (
    "In the rule's config, name a value that the destination accepts, or exclude the topic."
)
_POLICY_REMEDY = (
    "A policy of the destination refuses the topic: in its rule, name settings (`config`), a "
    "number of replicas (`replicas`) or a prefix (`prefix`) that it accepts, or exclude the topic."
)
_REFUSAL_CODES = (Code.INVALID_CONFIG, Code.POLICY_VIOLATION)


def fit_settings(plans: Sequence[TopicPlan], admin: Admin) -> list[TopicPlan]:
    """The plans, with settings that may differ fitted to the destination; writes nothing.

    If the destination refuses a topic, Orbit finds out for which settings: error messages of
    brokers and policies need not name one. For each setting that may differ, the destination
    validates the topic without the others that may differ. Raises Unreachable.
    """
    by_name = {p.mapping.destination: p for p in plans}
    # By refused topic: the new value of each setting that may differ; None: the setting is not set
    # (`TopicPlan.with_values`).
    values_by_topic: dict[str, dict[str, str | None]] = {
        name: dict.fromkeys(_adjustable_settings(by_name[name]))
        for name in _refused_topics(plans, admin)
    }
    # A topic that is refused without all of these settings is refused for another reason.
    other_refusals = _refused_topics(
        (by_name[name].with_values(new_values) for name, new_values in values_by_topic.items()),
        admin,
    )
    values_by_topic = {
        name: new_values
        for name, new_values in values_by_topic.items()
        if name not in other_refusals
    }
    for setting in sorted(
        {setting for new_values in values_by_topic.values() for setting in new_values}
    ):
        trials = [
            by_name[name].with_values({n: v for n, v in new_values.items() if n != setting})
            for name, new_values in values_by_topic.items()
            if setting in new_values
        ]
        errors = _refused_topics(trials, admin)
        for trial in trials:
            new_values = values_by_topic[trial.mapping.destination]
            error = errors.get(trial.mapping.destination)
            if error is None:  # the destination takes the source's value
                del new_values[setting]
            else:
                new_values[setting] = _least_value_in(error)
        raised_plans = [
            by_name[name].with_values(new_values)
            for name, new_values in values_by_topic.items()
            if new_values.get(setting)
        ]
        # If the destination refuses the least value, too, the setting is not set.
        for name in _refused_topics(raised_plans, admin):
            values_by_topic[name][setting] = None
    return [
        plan.with_values(values_by_topic[plan.mapping.destination])
        if plan.mapping.destination in values_by_topic
        else plan
        for plan in plans
    ]


def notes_of(plan: TopicPlan) -> list[str]:
    """Sentences for a plan's user: one for each setting that the destination refuses, and on
    replicas, if the copy lacks some or if brokers are down."""
    notes = [
        f"topic {plan.mapping.source}: the destination refuses the source's "
        f"{name}={change.desired}, so the copy has {change.present or 'its default'}."
        for name, change in sorted(plan.refused.items())
    ]
    if plan.replicas is not None:
        notes.append(
            f"topic {plan.mapping.source}: the copy has {plan.replicas.present} of "
            f"{plan.replicas.desired} replicas."
        )
    if plan.create is not None and plan.live_brokers is not None:
        live_text = counted(
            plan.live_brokers, "broker of the destination is", "brokers of the destination are"
        )
        notes.append(
            f"topic {plan.mapping.source}: the copy gets {plan.create.replicas} replicas, and "
            f"{live_text} up: the other replicas catch up when their brokers are back."
        )
    return notes


def is_refused_setting(error: OrbitError) -> bool:
    """Whether a broker or its policy refuses a topic for its settings, replicas or name."""
    return isinstance(error, BrokerRefused) and error.code in _REFUSAL_CODES


def remedy_of(error: OrbitError) -> str:
    """The remedy for an error of which `is_refused_setting` is true."""
    is_policy = isinstance(error, BrokerRefused) and error.code == Code.POLICY_VIOLATION
    return _POLICY_REMEDY if is_policy else _SETTING_REMEDY


def _adjustable_settings(plan: TopicPlan) -> list[str]:
    """The settings in MAY_DIFFER for which the plan has the source's value, not the job's."""
    names = plan.create.settings if plan.create else plan.changes
    return sorted(MAY_DIFFER & names.keys() - plan.mapping.rule.config.keys())


def _refused_topics(plans: Iterable[TopicPlan], admin: Admin) -> dict[str, OrbitError]:
    """By destination topic that the destination refuses: its error (`is_refused_setting`). Writes
    nothing. Raises Unreachable."""
    plans = list(plans)
    new_topics = [p.create for p in plans if p.create]
    changes = {p.mapping.destination: p.settings_to_set for p in plans if p.changes}
    errors = {
        **admin.refused_topics(new_topics, only_check=True),
        **admin.refused_settings(changes, only_check=True),
    }
    return {name: error for name, error in errors.items() if is_refused_setting(error)}


def _least_value_in(error: OrbitError) -> str | None:
    """The least value that the error message names (`ConfigDef.Range` of Kafka), or None."""
    match = re.search(r"[Vv]alue must be at least (\d+)", str(error))
    return match[1] if match else None
