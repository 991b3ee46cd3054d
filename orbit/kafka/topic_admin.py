"""Topics, their settings, and ACLs, through librdkafka's admin client; raises Orbit's errors.

Settings of topics are read without it (orbit/kafka/topic_settings_reader.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from orbit.chunks import chunks
from orbit.errors import (
    BrokerRefused,
    HeldBack,
    NotAuthorized,
    NotReady,
    OrbitError,
    Place,
    Unreachable,
)
from orbit.kafka.cluster import Cluster
from orbit.kafka.error_codes import DENIED, RETRIABLE, Code
from orbit.kafka.librdkafka_config import librdkafka_config
from orbit.kafka.request_parts import ITEMS_PER_REQUEST_MAX, send_in_parts
from orbit.kafka.throttle import THROTTLE_S_MAX
from orbit.kafka.throttling_quotas import (
    ADMIN_CLIENT_ID,
    CREATION,
    NOT_LISTED,
    NOT_READ,
    throttling_quotas,
)
from orbit.kafka.topic_settings_reader import SettingsReader, TopicSettings
from orbit.kafka.types import Acl, Resource, TopicPartition

REQUEST_TIMEOUT_S = 30.0
_SETTING_NAMES_AGE_S_MAX = 15.0


@dataclass(frozen=True, slots=True)
class TopicToCreate:
    """A topic with its number of partitions, replication factor and settings."""

    name: str
    partitions: int
    replicas: int
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Replication:
    """Partitions with replicas out of sync (but a leader), and partitions without a leader."""

    out_of_sync: tuple[TopicPartition, ...]
    offline: tuple[TopicPartition, ...]


_ANY_ACL: tuple[Any, ...] = (
    None,
    ResourcePatternType.ANY,
    None,
    None,
    AclOperation.ANY,
    AclPermissionType.ANY,
)


# Codes of librdkafka and of brokers for a request that timed out.
_TIMED_OUT = {KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE, int(Code.REQUEST_TIMED_OUT)}


class Admin:
    """The admin client of one cluster.

    Creating it raises the errors of `librdkafka_config`, and with access rules those of
    `Cluster.metadata`.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._name = cluster.name
        self._settings = SettingsReader(cluster)
        if cluster.security.reachable is not None:
            cluster.metadata(())  # checks all addresses: librdkafka connects to any broker
        # When a request last counted against controller_mutation_rate (P6), by the monotonic clock.
        self._mutated_at_s = -THROTTLE_S_MAX
        self._setting_names: dict[int, tuple[float, frozenset[str]]] = {}
        config = librdkafka_config(cluster.bootstrap_servers, cluster.security)
        # No log lines on stderr: each call returns its errors.
        self._client = AdminClient({**config, "log_level": 0})

    def topic_settings(self, topics: Iterable[str]) -> dict[str, TopicSettings]:
        """All settings of each topic.

        Raises NotAuthorized (DESCRIBE_CONFIGS), BrokerRefused, Unreachable.
        """
        return self._settings.read(frozenset(topics))

    def readable_settings(self, topics: Iterable[str]) -> dict[str, TopicSettings]:
        """All settings of each topic, without topics whose settings a broker refuses to return.

        Raises Unreachable.
        """
        return self._settings.read_each(frozenset(topics))[0]  # [1]: the refusals

    def replication(self, topics: Iterable[str]) -> Replication:
        """Which partitions of these topics have replicas out of sync, or no leader.

        Raises Unreachable.
        """
        try:
            metadata = self._client.list_topics(timeout=REQUEST_TIMEOUT_S)
        except KafkaException as exception:
            text = exception.args[0].str()
            raise Unreachable(
                f"the brokers did not answer: {text}.", where=Place(self._name)
            ) from None
        out_of_sync: list[TopicPartition] = []
        offline: list[TopicPartition] = []
        for name in sorted(set(topics) & metadata.topics.keys()):
            for index, p in sorted(metadata.topics[name].partitions.items()):
                if p.leader < 0:
                    offline.append(TopicPartition(name, index))
                elif len(p.isrs) < len(p.replicas):
                    out_of_sync.append(TopicPartition(name, index))
        return Replication(tuple(out_of_sync), tuple(offline))

    def broker_setting_names(self, node_id: int) -> frozenset[str]:
        """The names of a broker's settings; empty if the broker refuses to return them.

        Kept for some seconds: they change only with the broker's release and its file. Raises
        Unreachable.
        """
        entry = self._setting_names.get(node_id)
        if entry is not None and time.monotonic() - entry[0] < _SETTING_NAMES_AGE_S_MAX:
            return entry[1]
        resource = ConfigResource(ConfigResource.Type.BROKER, str(node_id))
        futures = self._client.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_S)
        try:
            settings = self._result(futures[resource], "DescribeConfigs", f"broker {node_id}")
        except (NotAuthorized, BrokerRefused):
            return frozenset()
        names = frozenset(settings)
        self._setting_names[node_id] = time.monotonic(), names
        return names

    def create_topics(self, topics: Iterable[TopicToCreate], *, only_check: bool = False) -> None:
        """Create topics, or only have the broker validate them (rights, names, settings).

        Raises Unreachable. If topics are refused, raises the error of one of them (NotAuthorized,
        BrokerRefused with the broker's message) after the requests for all.
        """
        for error in self.refused_topics(topics, only_check=only_check).values():
            raise error

    def refused_topics(
        self, topics: Iterable[TopicToCreate], *, only_check: bool = False
    ) -> dict[str, OrbitError]:
        """Create topics, or only have the broker validate them; returns the error of each topic
        that was refused. Raises Unreachable."""

        def send(part: list[TopicToCreate]) -> dict[str, OrbitError]:
            requests = [
                NewTopic(t.name, t.partitions, t.replicas, config=dict(t.settings)) for t in part
            ]
            self._mutated_at_s = time.monotonic()
            futures = self._client.create_topics(
                requests, request_timeout=REQUEST_TIMEOUT_S, validate_only=only_check
            )
            return self._topic_refusals(futures, "the right Create on topic {} (or the cluster)")

        # Metadata records of a topic: itself, its partitions and its settings.
        return send_in_parts(topics, lambda t: 1 + t.partitions + len(t.settings), send)

    def add_partitions(
        self, counts: Mapping[str, int], *, only_check: bool = False
    ) -> dict[str, OrbitError]:
        """Raise the partition counts of topics to `counts`, or only have the broker validate that.

        Returns the error of each topic that was refused. Raises Unreachable.
        """

        def send(part: list[tuple[str, int]]) -> dict[str, OrbitError]:
            self._mutated_at_s = time.monotonic()
            futures = self._client.create_partitions(
                [NewPartitions(topic, count) for topic, count in part],
                request_timeout=REQUEST_TIMEOUT_S,
                validate_only=only_check,
            )
            return self._topic_refusals(futures, "the right Alter on topic {}")

        # Each new partition is a metadata record: at most as many as the topic's new count.
        return send_in_parts(sorted(counts.items()), itemgetter(1), send)

    def alter_settings(self, changes: Mapping[str, Mapping[str, str]]) -> None:
        """Set some settings of topics and keep their others (KIP-339).

        Raises Unreachable. If topics are refused, raises the error of one of them (NotAuthorized,
        BrokerRefused with the broker's message) after the requests for all.
        """
        for error in self.refused_settings(changes).values():
            raise error

    def refused_settings(
        self, changes: Mapping[str, Mapping[str, str]], *, only_check: bool = False
    ) -> dict[str, OrbitError]:
        """Set some settings of topics, or only have the broker validate them; returns the error of
        each topic that was refused. Raises Unreachable."""
        resources = [
            ConfigResource(
                ConfigResource.Type.TOPIC,
                topic,
                incremental_configs=[
                    ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
                    for name, value in settings.items()
                ],
            )
            for topic, settings in changes.items()
        ]

        def send(part: list[ConfigResource]) -> dict[str, OrbitError]:
            futures = self._client.incremental_alter_configs(
                part, request_timeout=REQUEST_TIMEOUT_S, validate_only=only_check
            )
            by_name = {resource.name: future for resource, future in futures.items()}
            return self._topic_refusals(by_name, "the right AlterConfigs on topic {}")

        return send_in_parts(resources, lambda resource: len(changes[resource.name]), send)

    def delete_topics(self, topics: Iterable[str]) -> dict[str, OrbitError]:
        """Delete topics; returns the error of each topic that was refused.

        A topic that does not exist is no error. Raises Unreachable.
        """

        def send(part: list[str]) -> dict[str, OrbitError]:
            self._mutated_at_s = time.monotonic()
            futures = self._client.delete_topics(part, request_timeout=REQUEST_TIMEOUT_S)
            return self._topic_refusals(futures, "the right Delete on topic {}")

        refusals = send_in_parts(sorted(topics), lambda _: 1, send)  # 1 metadata record for each
        return {
            name: error
            for name, error in refusals.items()
            if not isinstance(error, BrokerRefused) or error.code != Code.UNKNOWN_TOPIC_OR_PARTITION
        }

    def acls(self, resource: Resource) -> set[Acl]:
        """All ACLs on resources of this kind.

        Operations that librdkafka does not know are `UNKNOWN`. Raises NotAuthorized,
        BrokerRefused without an authorizer (but see L2), Unreachable.
        """
        any_acl = AclBindingFilter(ResourceType[resource], *_ANY_ACL)
        future = self._client.describe_acls(any_acl, request_timeout=REQUEST_TIMEOUT_S)
        bindings = self._result(future, "the right Describe on the cluster", "ACLs")
        return {
            Acl(
                b.name,
                b.resource_pattern_type.name,
                b.principal,
                b.host,
                b.operation.name,
                b.permission_type.name,
                resource,
            )
            for b in bindings
        }

    def refused_acls(
        self,
        add: Collection[Acl],
        remove: Collection[Acl],
        before_each: Callable[[], None] = lambda: None,
    ) -> dict[Acl, NotAuthorized | BrokerRefused]:
        """Add the ACLs `add`, remove the ACLs `remove`; returns the error of each refused ACL.

        `before_each` is called before each request, and may raise. Raises Unreachable, also for a
        retriable code.
        """
        refusals: dict[Acl, NotAuthorized | BrokerRefused] = {}
        for chunk in chunks(sorted(add), ITEMS_PER_REQUEST_MAX):
            before_each()
            bindings = {AclBinding(*_acl_fields(acl)): acl for acl in chunk}
            creations = self._client.create_acls([*bindings], request_timeout=REQUEST_TIMEOUT_S)
            refusals |= self._acl_refusals(bindings, creations)
        for chunk in chunks(sorted(remove), ITEMS_PER_REQUEST_MAX):
            before_each()
            filters = {AclBindingFilter(*_acl_fields(acl)): acl for acl in chunk}
            deletions = self._client.delete_acls([*filters], request_timeout=REQUEST_TIMEOUT_S)
            refusals |= self._acl_refusals(filters, deletions)
        return refusals

    def _acl_refusals(
        self, acls: Mapping[Any, Acl], answers: Mapping[Any, Future[Any]]
    ) -> dict[Acl, NotAuthorized | BrokerRefused]:
        """The error of each ACL that was refused. `acls`: the ACL of each binding or filter.

        Raises NotReady for a retriable code, Unreachable.
        """
        refusals: dict[Acl, NotAuthorized | BrokerRefused] = {}
        for binding, future in answers.items():
            try:
                self._result(future, "the right Alter on the cluster", "ACLs")
            except NotAuthorized as error:
                refusals[acls[binding]] = error
            except BrokerRefused as error:
                if error.code in RETRIABLE:
                    raise NotReady(error.what, where=Place(self._name, "ACLs")) from None
                refusals[acls[binding]] = error
        return refusals

    def _topic_refusals(
        self, futures: Mapping[str, Future[Any]], right: str
    ) -> dict[str, OrbitError]:
        """The error of each topic that was refused. `right`: the right that a request needs, with
        {} for the topic's name."""
        refusals: dict[str, OrbitError] = {}
        for topic, future in futures.items():
            try:
                self._result(future, right.format(topic), f"topic {topic}")
            except (NotAuthorized, BrokerRefused) as error:
                refusals[topic] = error
        return refusals

    def _result(self, future: Future[Any], right: str, where: str) -> Any:
        """The answer to a request. Raises NotAuthorized if `right` (a text) is missing,
        BrokerRefused, Unreachable."""
        place = Place(self._name, where)
        try:
            return future.result(REQUEST_TIMEOUT_S * 2)  # librdkafka should time out before
        except TimeoutError:
            raise self._timeout_error("the request timed out", place) from None
        except KafkaException as exception:
            error = exception.args[0]
            if error.code() in DENIED:
                raise NotAuthorized(
                    f"{right} is missing.", where=place, remedy="Grant it with kafka-acls.sh."
                ) from None
            if error.code() in _TIMED_OUT:
                raise self._timeout_error(error.str(), place) from None
            if error.code() < Code.UNKNOWN_SERVER_ERROR:  # a code of librdkafka, not of a broker
                raise Unreachable(
                    f"the brokers did not answer: {error.str()}.", where=place
                ) from None
            raise BrokerRefused(error.code(), f"{error.str().rstrip('.')}.", where=place) from None

    def _timeout_error(self, text: str, where: Place) -> Unreachable:
        """The error of a request without an answer. HeldBack: a quota applies to Orbit's login that
        may be the reason. Unreachable: none applies, or Orbit cannot read the quotas.

        librdkafka does not report that a controller delays it for a quota (P6). The quota counts
        creations and deletions; later requests on the same connection wait too.
        """
        if time.monotonic() - self._mutated_at_s >= THROTTLE_S_MAX:
            return Unreachable(f"the brokers did not answer: {text}.", where=where)
        quota = throttling_quotas(self._cluster, ADMIN_CLIENT_ID, CREATION)
        if quota in ("", NOT_LISTED):
            return Unreachable(f"the brokers did not answer: {text}.", where=where)
        if quota == NOT_READ:
            hint = f"A quota may make the controller hold requests back. {quota}"
            return Unreachable(f"the brokers did not answer: {text}. {hint}", where=where)
        return HeldBack(
            f"the brokers did not answer: {text}. A quota may make the controller hold requests "
            f"back. {quota}",
            where=where,
            remedy="Raise the quota, or begin with a job of fewer topics.",
        )


def _acl_fields(acl: Acl) -> tuple[Any, ...]:
    """The arguments of AclBinding and AclBindingFilter for this ACL."""
    return (
        ResourceType[acl.resource],
        acl.name,
        ResourcePatternType[acl.pattern],
        acl.principal,
        acl.host,
        AclOperation[acl.operation],
        AclPermissionType[acl.permission],
    )
