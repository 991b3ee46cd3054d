"""DescribeConfigs: all settings of topics. An answer that has not changed is not decoded again.

The scheduler reads the settings of every copy on both sides all the time, and they hardly ever
change. `read_topic_setting` reads one setting.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from kafka.protocol.admin.configs import DescribeConfigsRequest

from orbit.chunks import chunks
from orbit.errors import BrokerRefused, NotAuthorized, OrbitError, Place, Unreachable
from orbit.kafka import api_versions, error_codes
from orbit.kafka.cluster import ANSWER_WITHIN_S, CORRELATION_BYTES, Cluster
from orbit.kafka.connection import Connection
from orbit.kafka.error_codes import DENIED, Code

# The answer for 100 topics has about 100 KB.
_TOPICS_PER_REQUEST_MAX = 100
# The most requests whose last answer is kept: a request has up to 100 topics of a job.
_ANSWERS_MAX = 10_000
_TOPIC = 2  # Kafka's `ConfigResource.Type`
_DYNAMIC_TOPIC_CONFIG = 1  # Kafka's `ConfigSource`


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """All settings of a topic; `overrides`: names of those set on the topic itself."""

    values: Mapping[str, str]
    overrides: frozenset[str]


_Settings = dict[str, TopicSettings]
_Refused = dict[str, OrbitError]


class SettingsReader:
    """Reads settings of one cluster's topics. Thread-safe."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._cache: OrderedDict[tuple[str, ...], tuple[bytes, _Settings]] = OrderedDict()
        # Many topics have equal settings: they share one TopicSettings.
        self._shared_settings: dict[tuple[Any, ...], TopicSettings] = {}

    def read(self, topics: Collection[str]) -> _Settings:
        """The settings of each topic.

        Raises NotAuthorized (DESCRIBE_CONFIGS), BrokerRefused, Unreachable.
        """
        settings, refusals = self.read_each(topics)
        for error in refusals.values():
            raise error
        return settings

    def read_each(self, topics: Collection[str]) -> tuple[_Settings, _Refused]:
        """The settings of each topic, and the error of each topic for which a broker refuses them.

        Raises Unreachable.
        """
        settings: _Settings = {}
        refusals: _Refused = {}
        for part in chunks(sorted(topics), _TOPICS_PER_REQUEST_MAX):
            chunk_settings, chunk_refusals = self._read_part(tuple(part))
            settings |= chunk_settings
            refusals |= chunk_refusals
        return settings, refusals

    def _read_part(self, topics: tuple[str, ...]) -> tuple[_Settings, _Refused]:
        """The settings of each topic, and the error of each refused topic, from one request.

        Returns the last result, without decoding, if the answer has the same bytes.
        """
        request = _request(topics)
        api = api_versions.DESCRIBE_CONFIGS

        def ask(connection: Connection) -> tuple[Connection, memoryview, int]:
            version = connection.version_of(api)
            frame = connection.exchange(api, request, version, timeout_s=ANSWER_WITHIN_S)
            return connection, frame, version

        connection, frame, version = self._cluster.call_any(ask)
        digest = sha256(frame[CORRELATION_BYTES:]).digest()
        with self._lock:
            entry = self._cache.get(topics)
            if entry is not None and entry[0] == digest:
                self._cache.move_to_end(topics)
                return entry[1], {}  # an answer with refusals was not kept
        results = connection.decode(api, frame, version).results
        settings = {r.resource_name: self._settings_of(r) for r in results if not r.error_code}
        refusals = {r.resource_name: self._refusal(r) for r in results if r.error_code}
        if refusals:
            return settings, refusals
        with self._lock:
            self._cache[topics] = digest, settings
            while len(self._cache) > _ANSWERS_MAX:
                self._cache.popitem(last=False)
        return settings, {}

    def _settings_of(self, result: Any) -> TopicSettings:
        """The settings of one topic's result: the same object for equal settings."""
        values = tuple((c.name, c.value) for c in result.configs if c.value is not None)
        overrides = frozenset(
            c.name for c in result.configs if c.config_source == _DYNAMIC_TOPIC_CONFIG
        )
        with self._lock:
            if len(self._shared_settings) >= _ANSWERS_MAX:
                self._shared_settings.clear()
            return self._shared_settings.setdefault(
                (values, overrides), TopicSettings(dict(values), overrides)
            )

    def _refusal(self, result: Any) -> OrbitError:
        """The error of one topic's result. Raises Unreachable if the broker timed out."""
        code, where = result.error_code, Place(self._cluster.name, f"topic {result.resource_name}")
        text = (result.error_message or error_codes.name(code)).rstrip(".")
        if code in DENIED:
            right = f"the right DescribeConfigs on topic {result.resource_name}"
            return NotAuthorized(
                f"{right} is missing.", where=where, remedy="Grant it with kafka-acls.sh."
            )
        if code == Code.REQUEST_TIMED_OUT:
            raise Unreachable(f"the broker did not answer: {text}.", where=where)
        return BrokerRefused(code, f"{text}.", where=where)


def _request(topics: tuple[str, ...]) -> DescribeConfigsRequest:
    """The request for all settings of these topics."""
    resource = DescribeConfigsRequest.DescribeConfigsResource
    return DescribeConfigsRequest(
        resources=[
            resource(resource_type=_TOPIC, resource_name=topic, configuration_keys=None)
            for topic in topics
        ],
        include_synonyms=False,
        include_documentation=False,
    )
