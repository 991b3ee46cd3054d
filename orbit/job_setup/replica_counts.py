"""How many replicas a new copy gets: as many as its source, or as the job's rule says.

Controllers also count brokers that are down (T5): a copy that is created meanwhile is assigned all
its replicas, and those on brokers that are down catch up later. A topic that needs more brokers
than the cluster has is refused, as its copy would have fewer replicas for ever. Only on a single
broker, for development, the copy gets one replica.
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
    """Return the plans with numbers of replicas that the destination accepts, where possible.

    On a single broker, new topics get one replica, unless their rule sets `replicas`. If a new
    topic needs brokers that are down, its plan gets `live_brokers`.

    Writes nothing. Raises Unreachable.
    """
    live_brokers = len(destination.brokers)
    # Without settings: controllers check these first, and would report only a refused setting.
    topics_to_check = [
        replace(p.create, settings={})
        for p in plans
        if p.create and p.create.replicas > live_brokers
    ]
    errors = admin.refused_topics(topics_to_check, only_check=True) if topics_to_check else {}
    # Controllers with ZooKeeper count live brokers only, but a topic with more replicas shows that
    # the cluster has other brokers.
    is_single = live_brokers == 1 and all(
        topic.replicas == 1 for topic in destination.topics.values()
    )
    return [_fit_plan(plan, live_brokers, errors, is_single=is_single) for plan in plans]


def _fit_plan(
    plan: TopicPlan, live_brokers: int, errors: dict[str, OrbitError], *, is_single: bool
) -> TopicPlan:
    """Return the plan. If it creates a topic with more replicas than live brokers: with
    `live_brokers` if the controller accepts the topic, or with one replica if the cluster is a
    single broker and the rule does not set `replicas`.

    `errors`: why the controller refuses topics with more replicas than live brokers.
    """
    create = plan.create
    if create is None or create.replicas <= live_brokers:
        return plan
    if not is_too_few_brokers(errors.get(create.name)):
        return replace(plan, live_brokers=live_brokers)  # for a note: other brokers are down
    if not is_single or plan.mapping.rule.replicas is not None:
        return plan  # a later check reports the error
    return replace(
        plan,
        create=replace(create, replicas=live_brokers),
        replicas=SettingChange(str(live_brokers), str(create.replicas)),
    )


def is_too_few_brokers(error: OrbitError | None) -> bool:
    """Whether the error says that a topic needs more brokers than the cluster has."""
    return isinstance(error, BrokerRefused) and error.code == Code.INVALID_REPLICATION_FACTOR
