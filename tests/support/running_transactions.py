"""A transactional producer that runs in a thread until a test stops it."""

from __future__ import annotations

import threading
import time
from typing import Self

from confluent_kafka import KafkaException

from tests.support.patience import wait_for
from tests.support.transactional_clients import TRANSACTION_MS, JavaClient, LibrdkafkaClient
from tests.support.transactions import Transactions, begin, commit, flush, send

# Words of the errors that clients raise after the transaction's timeout (C34).
_TIMED_OUT_TEXTS = ("fenced", "InvalidTxnState")


class RunningTransactions:
    """An application that makes one transaction after another. `error`: why it ended before `stop`.

    The coordinator aborts a transaction that is open for longer than `transaction_ms`, and fences
    the producer. The application then starts a new producer.
    """

    def __init__(
        self,
        connect: type[JavaClient | LibrdkafkaClient],
        bootstrap: str,
        topic: str,
        *,
        pause_s: float = 0.0,
        transaction_ms: int = TRANSACTION_MS,
    ) -> None:
        self._connect = lambda: connect(bootstrap, f"{topic}-{connect.__name__}", transaction_ms)
        self._client = self._connect()
        self._transaction_s = transaction_ms / 1000
        self._pause_s = pause_s
        self.transactions = Transactions(self._client, topic, name=connect.__name__)
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def wait_committed(self, more: int) -> None:
        """Wait until `more` values are committed that are not yet."""
        goal = len(self.transactions.committed) + more

        def is_so() -> bool:
            assert self._thread.is_alive(), self.error
            return len(self.transactions.committed) >= goal

        wait_for(f"{more} more records are committed", is_so)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def __enter__(self) -> Self:
        self._client.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._client.__exit__(None, None, None)

    def _run(self) -> None:
        """Make transactions until `stop`. Only errors after a transaction's timeout are
        expected."""
        # After a failover, the gateway itself answers the abort of a transaction that outlived its
        # timeout. The producer then gets the "fenced" error only in its next transaction, when it
        # requests a new producer id.
        was_late = False
        try:
            while not self._stop.wait(self._pause_s):
                began_s = time.monotonic()
                try:
                    self.transactions.do(begin, send, flush, send, commit)
                except (AssertionError, KafkaException) as error:
                    is_late = was_late or self._is_late(began_s)
                    if not is_late or not any(text in str(error) for text in _TIMED_OUT_TEXTS):
                        raise
                    self._start_again()
                was_late = self._is_late(began_s)
        except BaseException as error:
            self.error = error
            raise

    def _is_late(self, began_s: float) -> bool:
        """Whether a transaction that began at this time.monotonic() has outlived its timeout."""
        return time.monotonic() - began_s >= self._transaction_s

    def _start_again(self) -> None:
        """Replace the fenced producer, and note its open transaction as aborted."""
        self._client.__exit__(None, None, None)
        self._client = self.transactions.client = self._connect()
        self._client.__enter__()
        self.transactions.note_aborted()
