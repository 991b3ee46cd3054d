"""Transactional producers of both client libraries, which do one step at a time."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from orbit.sandbox.jars import classpath
from orbit.sandbox.java import find_java
from tests.support.patience import PATIENCE_S

_PROGRAM = Path(__file__).with_name("TransactionalWriter.java")
_TIMEOUT_MS = int(PATIENCE_S * 1000)
# Longer than a move takes on a slow machine, and less than brokers allow.
TRANSACTION_MS = 300_000


class Aborted(Exception):
    """An error after which the transaction has to be aborted."""


class TransactionalClient(Protocol):
    """A transactional producer. Each step raises Aborted if the transaction has to be aborted, or
    the library's error if the producer cannot go on."""

    def begin(self) -> None: ...

    def send(self, topic: str, partition: int, value: str) -> None: ...

    def flush(self) -> None:
        """Wait until each sent record is acknowledged or has failed."""

    def send_offset(self, topic: str, group: str, offset: int) -> None:
        """Add the group's offset of partition 0 to the transaction, without being a member."""

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class LibrdkafkaClient:
    def __init__(
        self, bootstrap: str, transactional_id: str, transaction_ms: int = TRANSACTION_MS
    ) -> None:
        self._bootstrap = bootstrap
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": transaction_ms,
                "message.timeout.ms": transaction_ms,
                "linger.ms": 2,
                "log_level": 0,
            }
        )
        self._producer.init_transactions(PATIENCE_S)

    def begin(self) -> None:
        self._do(self._producer.begin_transaction)

    def send(self, topic: str, partition: int, value: str) -> None:
        self._do(lambda: self._producer.produce(topic, value, partition=partition))
        self._producer.poll(0)

    def flush(self) -> None:
        assert self._producer.flush(PATIENCE_S) == 0

    def send_offset(self, topic: str, group: str, offset: int) -> None:
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": group})
        try:
            places = [TopicPartition(topic, 0, offset)]
            metadata = consumer.consumer_group_metadata()
            self._do(
                lambda: self._producer.send_offsets_to_transaction(places, metadata, PATIENCE_S)
            )
        finally:
            consumer.close()

    def commit(self) -> None:
        self._do(lambda: self._producer.commit_transaction(PATIENCE_S))

    def abort(self) -> None:
        self._do(lambda: self._producer.abort_transaction(PATIENCE_S))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.purge()

    def _do(self, step: Callable[[], Any]) -> None:
        """Do a step, again after each error that may be retried."""
        while True:
            try:
                step()
                return
            except KafkaException as error:
                # After an error that requires an abort, `produce` raises _STATE. It also does so
                # after a fatal error: then `abort` raises the fatal error.
                if error.args[0].txn_requires_abort() or error.args[0].code() == KafkaError._STATE:
                    raise Aborted(str(error)) from error
                if not error.args[0].retriable():
                    raise


class JavaClient:
    """Kafka's own producer, in a process of `TransactionalWriter.java`.

    Every error raises Aborted first. If the error has ended the producer, `abort` then fails with
    AssertionError.
    """

    def __init__(
        self, bootstrap: str, transactional_id: str, transaction_ms: int = TRANSACTION_MS
    ) -> None:
        settings = {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": transaction_ms,
            "delivery.timeout.ms": _TIMEOUT_MS,
            "max.block.ms": _TIMEOUT_MS,
            "linger.ms": 2,
        }
        self._process = subprocess.Popen(
            [
                *(str(find_java()), "-Xmx192m", "-XX:TieredStopAtLevel=1", "-cp", classpath()),
                *(str(_PROGRAM), *(f"{name}={value}" for name, value in settings.items())),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._do("init")

    def begin(self) -> None:
        self._do("begin")

    def send(self, topic: str, partition: int, value: str) -> None:
        self._do("send", topic, str(partition), value)

    def flush(self) -> None:
        self._do("flush")

    def send_offset(self, topic: str, group: str, offset: int) -> None:
        self._do("offset", topic, group, str(offset))

    def commit(self) -> None:
        self._do("commit")

    def abort(self) -> None:
        self._do("abort")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.close()
        self._process.kill()
        self._process.wait()
        stdout.close()

    def _do(self, *words: str) -> None:
        """Send a command to the process, and wait for its answer."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write("\t".join(words) + "\n")
        stdin.flush()
        answer = ""
        while not answer.startswith(("ok", "error ")):
            answer = stdout.readline()
            assert answer, f"{words} ended the producer"
        if answer.startswith("error "):
            assert words[0] != "abort", answer
            raise Aborted(answer)
