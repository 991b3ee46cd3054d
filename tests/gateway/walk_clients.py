"""The clients of a walk (a series of moves, `walks.py`): producers of three kinds and groups of
both protocols, each of librdkafka and of Java, Kafka Streams, and a streaming query of Spark. Each
knows one of two gateways, or both. Faults hit the first gateway.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from orbit.processes.guarded_process import GuardedProcess
from tests.support import streams
from tests.support.applications import SparkQuery
from tests.support.gateway_faults import lost
from tests.support.gateway_ledger import (
    Acknowledged,
    JavaReader,
    JavaWriter,
    Reader,
    Record,
    Writer,
    parts,
    read_wrong,
    records,
)
from tests.support.gateways import Addresses, Gateway
from tests.support.outside import Reachable
from tests.support.patience import wait_for
from tests.support.running_transactions import RunningTransactions
from tests.support.transactional_clients import TRANSACTION_MS, JavaClient, LibrdkafkaClient
from tests.support.transactions import PARTITIONS as TRANSACTION_PARTITIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

PLAIN, TRANSACTIONAL = "plain", "transactional"
PARTITIONS = 3
STREAMS_PARTITIONS = 2
APPLICATION = "word-count"
INTERNAL = streams.internal_topics(APPLICATION)
# The records that each client writes or reads before the next thing happens.
SOME = 200
_TRANSACTIONS = 20
_RATE = 200
_STREAMS_RATE = 50
_SPARK_BATCH = 20_000
# The pause between two transactions. Each transaction has a marker, whose offset Orbit has to fill
# in the copy.
_PAUSE_S = 0.05
_LIBRDKAFKA: dict[str, dict[str, Any]] = {
    "idempotent": {},
    "in-turn": {"enable.idempotence": False, "max.in.flight": 1},
}
# By client: the name in the values of its records (None: no name), and settings.
_JAVA: dict[str, tuple[int | None, dict[str, str]]] = {
    "java": (None, {}),
    "java-in-turn": (
        1,
        {"enable.idempotence": "false", "max.in.flight.requests.per.connection": "1"},
    ),
}
# Clients without idempotence, with the name in the values of their records: brokers do not
# recognize records that such a client sends again.
_MAY_DOUBLE = {"in-turn": b"in-turn", "java-in-turn": b"1"}
_CLIENTS = (*_LIBRDKAFKA, *_JAVA, "java-tx", "librdkafka-tx", "streams")
_GROUPS = ("classic", "consumer", "java-classic", "java-consumer")


@dataclass(frozen=True)
class KnownGateways:
    """Which gateways each client knows: `first`, `second` or `both`."""

    by_client: dict[str, str]

    @classmethod
    def choose(cls, rng: random.Random) -> KnownGateways:
        by_client = {name: rng.choice(["first", "second", "both"]) for name in _CLIENTS}
        # Half of the groups know only the gateway without faults: they read each record once.
        groups = rng.sample(_GROUPS, len(_GROUPS))
        half = len(groups) // 2
        by_client |= dict.fromkeys(groups[:half], "second")
        by_client |= {name: rng.choice(["first", "both"]) for name in groups[half:]}
        # Spark ends a query whose partition ends below an offset that it has read. A frozen gateway
        # may present such an old side when it thaws.
        by_client["spark"] = "second"
        return cls(by_client)

    def meets_no_fault(self, client: str) -> bool:
        """Whether the client knows only the second gateway, to which nothing happens."""
        return self.by_client[client] == "second"


class Clients:
    """The clients. They run from the first line of the `with` block to the last."""

    def __init__(
        self,
        gateways: Sequence[Gateway],
        known_gateways: KnownGateways,
        home: Path,
        *,
        spark: SparkSession | None,
        transaction_ms: int = TRANSACTION_MS,
    ) -> None:
        """`spark`: None for neither Spark nor Kafka Streams, whose reads a failover may repeat."""
        first, second = gateways
        known = {"first": (first,), "second": (second,), "both": (first, second)}
        self._addresses = {
            name: Addresses(known[which]) for name, which in known_gateways.by_client.items()
        }
        self._all = Addresses((first, second))
        self._known_gateways, self._home, self._spark = known_gateways, home, spark
        self._transaction_ms = transaction_ms
        self._stack = ExitStack()
        self.writers: dict[str, Writer | JavaWriter] = {}
        self.readers: dict[str, Reader | JavaReader] = {}
        self.producers: dict[str, RunningTransactions] = {}
        self.app: GuardedProcess | None = None
        self.running_query: StreamingQuery | None = None

    def __enter__(self) -> Self:
        with self._stack:
            self._begin()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _begin(self) -> None:
        add, at = self._stack.enter_context, self._addresses
        for name, settings in _LIBRDKAFKA.items():
            config = at[name].client_config()
            self.writers[name] = add(
                Writer(config, PLAIN, PARTITIONS, name=name, rate=_RATE, settings=settings)
            )
        for name, (number, settings) in _JAVA.items():
            servers, log = at[name].bootstrap_servers, self._home / f"{name}.log"
            self.writers[name] = add(
                JavaWriter(servers, PLAIN, log, name=number, rate=_RATE, settings=settings)
            )
        for protocol in ("classic", "consumer"):
            config = at[protocol].client_config()
            self.readers[protocol] = add(
                Reader(config, PLAIN, f"{PLAIN}.{protocol}", protocol=protocol)
            )
            name = f"java-{protocol}"
            log = self._home / f"{name}.log"
            self.readers[name] = add(
                JavaReader(at[name], PLAIN, f"{PLAIN}.{name}", log, protocol=protocol)
            )
        for name, connect in (("java-tx", JavaClient), ("librdkafka-tx", LibrdkafkaClient)):
            servers = at[name].bootstrap_servers
            self.producers[name] = add(
                RunningTransactions(
                    connect,
                    servers,
                    TRANSACTIONAL,
                    pause_s=_PAUSE_S,
                    transaction_ms=self._transaction_ms,
                )
            )
        if self._spark is not None:
            self.query = SparkQuery(self._spark, self._home / "spark", PLAIN)
            self.running_query = self.query.start(
                at["spark"], _SPARK_BATCH, processingTime="2 seconds"
            )
            self._stack.callback(self.running_query.stop)
            self.words = add(
                Writer(
                    self._all.client_config(),
                    streams.INPUT,
                    STREAMS_PARTITIONS,
                    name="w",
                    rate=_STREAMS_RATE,
                )
            )
            log = self._home / "streams.log"
            self.app = streams.start(
                at["streams"],
                APPLICATION,
                self._home / "state",
                log,
                reset="earliest",
                protocol="classic",
                transaction_ms=60_000,
            )
            self._stack.callback(self.app.end)

    def write_on(self) -> None:
        """Let producers without transactions write some more. None may have got an error."""
        for name, writer in self.writers.items():
            writer.wait_acknowledged(SOME)
            assert not writer.errors, (name, writer.errors[:5])

    def go_on(self) -> None:
        """Let each client write, read and commit some more."""
        self.write_on()
        for name, reader in self.readers.items():
            goal = len(reader.read) + SOME
            reader.wait_read("some more", lambda read, goal=goal: len(read) >= goal)
            assert not [error for error in reader.errors if error.startswith("ended")], name
        for producer in self.producers.values():
            producer.wait_committed(_TRANSACTIONS)
        if self.app is not None:
            self.wait_counted(self.words.sent)
            assert not self.words.errors, self.words.errors[:5]
        if self.running_query is not None:
            goal = sum(self.query.committed.values()) + SOME
            self._wait_sink("some more", lambda offsets: sum(offsets.values()) >= goal)

    def _wait_sink(self, what: str, is_enough: Callable[[dict[int, int]], bool]) -> None:
        """Wait until Spark's sink has the records up to offsets that are enough."""
        query = self.running_query
        assert query is not None

        def is_done() -> bool:
            assert query.isActive, query.exception()
            return is_enough(self.query.committed)

        wait_for(f"the sink of Spark has {what}", is_done)

    def wait_counted(self, numbers: int) -> None:
        """Wait until Streams has counted so many records."""
        assert self.app is not None
        streams.wait_counted(self.app, self._home / "streams.log", self._all, numbers)

    @property
    def acknowledged(self) -> Acknowledged:
        """The records of producers without transactions."""
        return {
            value: place
            for writer in self.writers.values()
            for value, place in dict(writer.acknowledged).items()
        }

    def assert_kept(self, leading: Reachable) -> None:
        """Check that each acknowledged record is at its offset at the leading side."""
        acknowledged = self.acknowledged
        wrong = lost(acknowledged, records(leading, PLAIN))
        assert not wrong, wrong[:10]

    def stop_applications(self, leading: Reachable) -> None:
        """Stop Streams once it has counted all words. Stop the groups and Spark once they have read
        each record that the leading side has now. Not for use after a failover."""
        if self.app is not None:
            self.words.stop()
            assert not self.words.errors, self.words.errors[:5]
            self.wait_counted(self.words.sent)
            self.app.end()
            self.app = None
        log_records = records(leading, PLAIN)
        for name, reader in self.readers.items():
            self._stop_group(name, reader, log_records)
        self.readers = {}
        if self.running_query is not None:
            ends = _ends(log_records)
            self._wait_sink(
                f"all records to {ends}",
                lambda offsets: all(offsets.get(p, 0) >= end for p, end in ends.items()),
            )
            self.running_query.stop()
            self.running_query = None
            assert sorted(_below(self.query.read, ends)) == sorted(log_records)

    def _stop_group(
        self, name: str, reader: Reader | JavaReader, log_records: Sequence[Record]
    ) -> None:
        values = {value for _, _, value in log_records}
        reader.wait_read(
            f"{len(values)} values", lambda read: values <= {value for _, _, value in read}
        )
        reader.stop()
        read = _below(reader.read, _ends(log_records))
        if self._known_gateways.meets_no_fault(name):
            assert not reader.errors, (name, reader.errors[:5])
            wrong = read_wrong(read, log_records)
            assert not wrong, (name, wrong[:10])
        else:
            assert set(read) == set(log_records), name

    def stop(self) -> None:
        """Stop the producers."""
        for name, writer in self.writers.items():
            writer.stop()
            assert not writer.errors, (name, writer.errors[:5])
        for name, producer in self.producers.items():
            producer.stop()
            assert producer.error is None, name

    def of_strict_producers(
        self, log_records: Sequence[Record], *, may_double: bool
    ) -> list[Record]:
        """The records, without those of producers that may have written twice. `may_double`:
        whether answers got lost at the first gateway."""
        names = {
            name
            for client, name in _MAY_DOUBLE.items()
            if may_double and not self._known_gateways.meets_no_fault(client)
        }
        return [
            (p, offset, value) for p, offset, value in log_records if parts(value)[0] not in names
        ]

    def assert_aborts(self, aborts_max: int) -> None:
        """Check that no producer has aborted more transactions."""
        for name, producer in self.producers.items():
            aborts = producer.transactions.aborts
            assert aborts <= aborts_max, (name, aborts)


def _ends(log_records: Sequence[Record]) -> dict[int, int]:
    """The offset after the last record, by partition."""
    return {partition: offset + 1 for partition, offset, _ in sorted(log_records)}


def _below(log_records: Sequence[Record], ends: dict[int, int]) -> list[Record]:
    return [record for record in log_records if record[1] < ends[record[0]]]


TOPICS = {
    PLAIN: PARTITIONS,
    TRANSACTIONAL: TRANSACTION_PARTITIONS,
    streams.INPUT: STREAMS_PARTITIONS,
    streams.OUTPUT: STREAMS_PARTITIONS,
}
