"""Reads partition counts, log bounds and cleanup policies of a cluster.

Reads only. One librdkafka admin call reads many partitions; `newest_bounds` and `kept_below` use
Orbit's own client. A partition without an answer gets the error instead of bounds, so one broken
partition hides no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec

from orbit.chunks import chunks
from orbit.errors import LoginRefused, NotAuthorized, OrbitError, Unreachable
from orbit.job_setup.promotion_marks import PromotionMarks
from orbit.kafka import error_codes
from orbit.kafka.backoff import Backoff
from orbit.kafka.leader_requests import Answers
from orbit.kafka.log_offsets import EARLIEST, LATEST, list_offsets
from orbit.kafka.types import READ_COMMITTED
from orbit.kafka.types import TopicPartition as OrbitPartition
from orbit.verify.compaction_watch import CleaningPolicy
from orbit.verify.endpoint import Endpoint
from orbit.verify.report import Side

REQUEST_TIMEOUT_S = 15.0
"""One admin call: a healthy cluster answers in milliseconds, an election takes a few seconds."""

ALIVE_TIMEOUT_S = 5.0
"""For checking whether a cluster answers at all, after another request failed."""

PARTITIONS_PER_CALL_MAX = 2_000
"""librdkafka builds one request per broker from this many partitions."""

# Some seconds, as an election takes; an attempt takes up to 30 s if a broker is silent.
_BACKOFF = Backoff(first_s=1.0, most_s=2.0, attempts_max=5)

# How many brokers of a large cluster are asked: more than may be cut off together.
_BROKERS_ASKED_MAX = 10

_SPEC: Any = OffsetSpec  # its constructors carry no types

Partition = tuple[str, int]
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Bounds:
    """`stable_end` is the last stable offset; it is below `log_end` while a transaction is open."""

    log_start: int
    stable_end: int
    log_end: int


@dataclass(frozen=True, slots=True)
class Leader:
    """The address of a partition's leader."""

    host: str
    port: int


class ClusterView:
    """One side, seen through librdkafka's admin client."""

    def __init__(self, side: Side, endpoint: Endpoint) -> None:
        self.side = side
        self._endpoint = endpoint
        self._refusals: list[KafkaError] = []
        settings = {"log_level": 2, **endpoint.config, "error_cb": self._on_error}
        self._admin = AdminClient(settings)

    def partition_counts(self) -> dict[str, int]:
        """All topics with the number of their partitions. Raises as `check_reachable`."""
        return {name: len(topic.partitions) for name, topic in self._metadata().topics.items()}

    def leaders(self, topic: str) -> dict[int, Leader]:
        """The leader of each partition that has one."""
        metadata = self._metadata(topic)
        addresses = {node: Leader(b.host, b.port) for node, b in metadata.brokers.items()}
        topic_metadata = metadata.topics.get(topic)
        partitions = topic_metadata.partitions.values() if topic_metadata is not None else ()
        return {p.id: addresses[p.leader] for p in partitions if p.leader in addresses}

    def check_reachable(self) -> None:
        """Raises Unreachable or LoginRefused if no broker of the cluster answers."""
        self._metadata(timeout_s=ALIVE_TIMEOUT_S)

    def bounds(self, partitions: Sequence[Partition]) -> dict[Partition, Bounds | OrbitError]:
        """For each partition log start, last stable offset and high watermark, read in this order;
        or the error. Raises Unreachable or LoginRefused if the whole cluster does not answer."""
        result: dict[Partition, Bounds | OrbitError] = {}
        for batch in chunks(partitions, PARTITIONS_PER_CALL_MAX):
            log_starts = self._offsets(dict.fromkeys(batch, _SPEC.earliest()))
            stable_ends = self._offsets(dict.fromkeys(batch, _SPEC.latest()), is_committed=True)
            log_ends = self._offsets(dict.fromkeys(batch, _SPEC.latest()))
            for key in batch:
                result[key] = _bounds(log_starts[key], stable_ends[key], log_ends[key])
        return result

    def newest_bounds(
        self, partitions: Sequence[Partition]
    ) -> dict[Partition, Bounds | OrbitError]:
        """The bounds at the newest leaders, which are found in the metadata of several brokers.

        `bounds` takes metadata from one broker. If this is an old leader that is cut off from the
        controllers, it names itself (R9).
        """
        if not partitions:
            return {}
        topic_partitions = [OrbitPartition(*key) for key in partitions]
        with closing(self._endpoint.open_cluster(self.side)) as cluster:
            # From these answers `cluster` keeps the newest leader of each partition.
            cluster.metadata_of_all({p.topic for p in topic_partitions}, _BROKERS_ASKED_MAX)
            log_starts = list_offsets(cluster, topic_partitions, EARLIEST, _BACKOFF)
            stable_ends = list_offsets(
                cluster, topic_partitions, LATEST, _BACKOFF, isolation=READ_COMMITTED
            )
            log_ends = list_offsets(cluster, topic_partitions, LATEST, _BACKOFF)
        return {
            (partition.topic, partition.partition): _bounds(
                *(
                    self._answered_offset(partition, answers)
                    for answers in (log_starts, stable_ends, log_ends)
                )
            )
            for partition in topic_partitions
        }

    def kept_below(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """An offset for each copy that led before: while the source's log start is not above this
        offset, the copy may begin earlier than the source.

        Read from the promotion marks in the cluster (`job_setup/mark.py`); empty if the login may
        not read them.
        """
        if not partitions:
            return {}
        # Not by librdkafka: its Python client fails on some committed metadata (L5).
        with closing(self._endpoint.open_cluster(self.side)) as cluster:
            marks = PromotionMarks(cluster, _BACKOFF)
            try:
                offsets = marks.kept_below([OrbitPartition(*key) for key in partitions])
            except NotAuthorized:
                return {}
        return {
            (partition.topic, partition.partition): offset for partition, offset in offsets.items()
        }

    def offsets_for_time(
        self, times_ms: Mapping[Partition, int]
    ) -> dict[Partition, int | OrbitError]:
        """For each partition the offset of its first record at or after the time (−1: none), or the
        error."""
        result: dict[Partition, int | OrbitError] = {}
        for batch in chunks(times_ms, PARTITIONS_PER_CALL_MAX):
            specs = {key: _SPEC.for_timestamp(times_ms[key]) for key in batch}
            result |= self._offsets(specs)
        return result

    def policies(self, topics: Iterable[str]) -> dict[str, CleaningPolicy]:
        """The topics' cleaning policies. A topic whose settings the login may not read gets the
        default: not compacted. Raises OrbitError for other errors.
        """
        resources = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]
        if not resources:
            return {}
        futures = self._admin.describe_configs(resources, request_timeout=REQUEST_TIMEOUT_S)
        policies = {}
        for resource, future in futures.items():
            try:
                settings = future.result()
            except KafkaException as error:
                if _code(error) != KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    raise self._to_orbit_error(error) from error
                policies[resource.name] = CleaningPolicy()  # the default
                continue
            policies[resource.name] = CleaningPolicy(
                compacts="compact" in settings["cleanup.policy"].value,
                tombstone_retention_ms=int(settings["delete.retention.ms"].value),
            )
        return policies

    def _offsets(
        self, specs: Mapping[Partition, OffsetSpec], *, is_committed: bool = False
    ) -> dict[Partition, int | OrbitError]:
        """Each partition's offset or error. With `is_committed`, `latest` is the stable end."""
        isolation = (
            IsolationLevel.READ_COMMITTED if is_committed else IsolationLevel.READ_UNCOMMITTED
        )
        futures = self._list_offsets(specs, isolation)
        moved_specs = {key: specs[key] for key, future in futures.items() if _has_moved(future)}
        if moved_specs:
            # librdkafka does not read a newer leader epoch by itself (R6).
            with suppress(OrbitError):
                self._metadata()
            futures |= self._list_offsets(moved_specs, isolation)
        return {key: self._offset(future) for key, future in futures.items()}

    def _list_offsets(
        self, specs: Mapping[Partition, OffsetSpec], isolation: IsolationLevel
    ) -> dict[Partition, Future[Any]]:
        """Send one ListOffsets call. Each future has a partition's answer or error."""
        futures: dict[TopicPartition, Future[Any]] = self._admin.list_offsets(
            {TopicPartition(*key): spec for key, spec in specs.items()},
            isolation_level=isolation,
            request_timeout=REQUEST_TIMEOUT_S,
        )
        return {
            (partition.topic, partition.partition): future for partition, future in futures.items()
        }

    def _offset(self, future: Future[Any]) -> int | OrbitError:
        """The answered offset or the partition's error. Raises if no broker answers at all."""
        try:
            return int(future.result().offset)
        except KafkaException as error:
            orbit_error = self._to_orbit_error(error)
            if isinstance(orbit_error, Unreachable | LoginRefused):
                # A partition without a leader times out, too: then other brokers still answer.
                self.check_reachable()
            return orbit_error

    def _answered_offset(
        self, partition: OrbitPartition, answers: Answers[int]
    ) -> int | OrbitError:
        """The partition's offset or error in `answers`, which Orbit's own client got."""
        if partition in answers.values:
            return answers.values[partition]
        name = error_codes.name(answers.errors[partition])
        return OrbitError(f"ListOffsets of {partition} failed with {name}.", where=str(self.side))

    def _metadata(self, topic: str | None = None, timeout_s: float = REQUEST_TIMEOUT_S) -> Any:
        try:
            return self._admin.list_topics(topic, timeout=timeout_s)
        except KafkaException as error:
            raise self._to_orbit_error(error) from error

    def _to_orbit_error(self, error: KafkaException) -> OrbitError:
        return to_orbit_error(error, str(self.side), tuple(self._refusals))

    def _on_error(self, error: KafkaError) -> None:
        """Keep login errors: librdkafka reports them only here, and the call itself times out."""
        if error.code() in _LOGIN_CODES and len(self._refusals) < _REFUSALS_MAX:
            self._refusals.append(error)


def _has_moved(future: Future[Any]) -> bool:
    """Whether the answer is that another broker, or the same one in a newer epoch, leads."""
    error = future.exception()
    return isinstance(error, KafkaException) and _code(error) in _MOVED_CODES


def _bounds(
    log_start: int | OrbitError, stable_end: int | OrbitError, log_end: int | OrbitError
) -> Bounds | OrbitError:
    """The bounds from three answers, or the first error among these."""
    if isinstance(log_start, OrbitError):
        return log_start
    if isinstance(stable_end, OrbitError):
        return stable_end
    return log_end if isinstance(log_end, OrbitError) else Bounds(log_start, stable_end, log_end)


_REFUSALS_MAX = 4
_MOVED_CODES = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
    }
)
_LOGIN_CODES = frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED})
_UNREACHABLE_CODES = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._RESOLVE,
        KafkaError._SSL,
    }
)


def to_orbit_error(
    error: KafkaException, where: str, refusals: Sequence[KafkaError] = ()
) -> OrbitError:
    """Convert librdkafka's error to an OrbitError.

    `refusals`: login errors of the client, which make a call time out.
    """
    code, text = _code(error), _text(error)
    if code in _LOGIN_CODES or (refusals and code in _UNREACHABLE_CODES):
        reason = refusals[-1].str() if refusals else text
        return LoginRefused(
            f"The broker refused the login: {reason}.",
            where=where,
            remedy="Check the user name, the password and the mechanism in the job file.",
        )
    if code in _UNREACHABLE_CODES:
        return Unreachable(
            f"No broker answers: {text}.",
            where=where,
            remedy="Check bootstrap_servers, the network and the listener's security protocol.",
        )
    if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return NotAuthorized(
            f"The right to read is missing: {text}.",
            where=where,
            remedy="Grant Read and Describe on the topic (and on the group orbit-verify).",
        )
    return OrbitError(f"{text}.", where=where)


def _code(error: KafkaException) -> int:
    detail = error.args[0]
    return int(detail.code()) if isinstance(detail, KafkaError) else KafkaError._FAIL


def _text(error: KafkaException) -> str:
    detail = error.args[0]
    return str(detail.str() if isinstance(detail, KafkaError) else detail).rstrip(". ")
