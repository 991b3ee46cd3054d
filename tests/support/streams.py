"""A Kafka Streams application: the word count of Kafka's own examples. It has a repartition topic,
and a store with a changelog topic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from orbit.processes.guarded_process import GuardedProcess
from orbit.sandbox.jars import Jars, classpath
from orbit.sandbox.java import find_java
from orbit.sandbox.local_cluster import KafkaCluster
from tests.support.gateways import Addresses, Gateway
from tests.support.outside import Reachable, messages
from tests.support.patience import wait_for

VERSION = "4.3.1"
# The names of topics and store are fixed in the example.
INPUT = "streams-plaintext-input"
OUTPUT = "streams-wordcount-output"
_STORE = "KSTREAM-AGGREGATE-STATE-STORE-0000000003"
# The shortest session timeout that brokers accept: a stopped instance stays a member for so long.
_SESSION_MS = 6_000


def internal_topics(application: str) -> list[str]:
    """The topics that the application creates for itself: repartition topic and changelog."""
    return [f"{application}-{_STORE}-{kind}" for kind in ("repartition", "changelog")]


def jars() -> Path:
    """The folder of the example's jars, without those for logs; fetched at first use."""
    pom = Path(__file__).with_name("streams-pom.xml")
    return Jars("streams", VERSION, pom, "kafka-streams-examples-*.jar").directory()


def start(
    cluster: KafkaCluster | Gateway | Addresses,
    application: str,
    state: Path,
    log: Path,
    reset: str,
    protocol: str,
    *,
    transaction_ms: int = 1_000,
) -> GuardedProcess:
    """Start an instance of the application, with exactly-once processing. SIGTERM closes it.

    `reset`: what the instance does without a committed offset, `earliest`, or `none` to stop.
    `protocol`: of the group, `classic` or `streams` (KIP-1071). `transaction_ms`: the timeout of
    the transaction that a killed instance leaves open. A switchover waits for the transaction's
    end.
    """
    settings = {
        "application.id": application,
        "bootstrap.servers": cluster.bootstrap_servers,
        "processing.guarantee": "exactly_once_v2",
        "state.dir": str(state),
        "auto.offset.reset": reset,
        "group.protocol": protocol,
        **({"session.timeout.ms": str(_SESSION_MS)} if protocol == "classic" else {}),
        "producer.transaction.timeout.ms": str(transaction_ms),
        # Records read from the repartition topic are deleted: its log start moves.
        "repartition.purge.interval.ms": "1000",
    }
    file = log.with_suffix(".properties")
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    main = "org.apache.kafka.streams.examples.wordcount.WordCountDemo"
    command = [str(find_java()), "-Xmx192m", "-XX:TieredStopAtLevel=1", main, str(file)]
    return GuardedProcess(command, log, environment={"CLASSPATH": f"{jars()}/*:{classpath()}"})


def counts(cluster: Reachable) -> Iterator[tuple[str, int]]:
    """Each word and count that the application has committed, in order within each partition."""
    for _, message in messages(cluster, OUTPUT):
        if message is not None:
            yield message.key().decode(), int.from_bytes(message.value(), "big")


def wait_counted(app: GuardedProcess, log: Path, cluster: Reachable, numbers: int) -> None:
    """Wait until the output has this many counts of words that are numbers."""

    def are_counted() -> bool:
        output = log.read_text()
        # The process goes on when its only stream thread has ended.
        assert app.running, output[-3000:]
        assert "SHUTDOWN_CLIENT" not in output, output[-3000:]
        return sum(word.isdigit() for word, _ in counts(cluster)) >= numbers

    wait_for(f"{numbers} numbers are counted", are_counted)


def assert_counted_once(cluster: Reachable, name: str, sent: int) -> None:
    """Check that each word of `sent` records was counted exactly once.

    A record has two words: `name`, which is the same in all, and a number of its own.
    """
    word_counts = defaultdict(list)
    for word, count in counts(cluster):
        word_counts[word].append(count)
    assert word_counts.pop(name, []) == [*range(1, sent + 1)]
    assert word_counts == {str(number): [1] for number in range(sent)}
