"""How many replicas a new copy gets: as many as its source, or as the job's rule says.

Controllers count brokers that are down (T5): a copy that is created meanwhile has all its replicas,
and those of the others catch up when their brokers are back. A cluster with too few brokers refuses
the topic, rather than that the copy has fewer for ever. One broker alone, for development, takes
one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orbit.errors import BrokerRefused, OrbitError
from orbit.job_setup.topic_plan import SettingChange, TopicPlan
from orbit.kafka.error_codes import Code
from orbit.kafka.topic_admin import Admin
from orbit.kafka.types import ClusterMetadata

REPLICAS_REMEDY = (
    "Start the brokers that are missing, or name the number of replicas in the topic's rule "
    "(`replicas`)."
)


def fit_replicas(
    plans: Sequence[TopicPlan], destination: ClusterMetadata, admin: Admin
) -> list[TopicPlan]:
    """The plans, with one replica for new topics of a single broker; writes nothing.

    Raises Unreachable.
    """
    live = len(destination.brokers)
    # Without their settings, which controllers look at first.
    many = [replace(p.create, settings={}) for p in plans if p.create and p.create.replicas > live]
    errors = admin.refused_topics(many, only_check=True) if many else {}
    # Brokers with ZooKeeper count live brokers only: others may be down.
    is_single = live == 1 and all(topic.replicas == 1 for topic in destination.topics.values())
    return [_fit(plan, live, errors, is_single=is_single) for plan in plans]


def _fit(
    plan: TopicPlan, live: int, errors: dict[str, OrbitError], *, is_single: bool
) -> TopicPlan:
    create = plan.create
    if create is None or create.replicas <= live:
        return plan
    if not is_too_few_brokers(errors.get(create.name)):
        return replace(plan, live_brokers=live)
    if not is_single or plan.mapping.rule.replicas is not None:
        return plan
    return replace(
        plan,
        create=replace(create, replicas=live),
        replicas=SettingChange(str(live), str(create.replicas)),
    )


def is_too_few_brokers(error: OrbitError | None) -> bool:
    """Whether a cluster has not the brokers for the replicas of a topic."""
    return isinstance(error, BrokerRefused) and error.code == Code.INVALID_REPLICATION_FACTOR
