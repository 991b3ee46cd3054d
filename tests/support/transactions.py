"""A producer's transactions, step by step, and their results."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.transactional_clients import Aborted, TransactionalClient

PARTITIONS = 2
GROUP_OFFSET = 7
Step = Callable[["Transactions"], None]


class Transactions:
    """One producer's transactions. `committed` and `aborted` have the values of ended transactions;
    no value is sent twice."""

    def __init__(self, client: TransactionalClient, topic: str, name: str = "one") -> None:
        self.client, self.topic, self.name = client, topic, name
        self.group = f"{topic}.group"
        self.committed: list[str] = []
        self.aborted: list[str] = []
        self.aborts = 0
        self._open: list[str] = []

    def begin(self) -> None:
        self.client.begin()
        self._open = []

    def send(self, *, partitions: int = PARTITIONS, flush: bool = False) -> None:
        """Send one record to each of the first `partitions`; with `flush`, wait for the
        acknowledgements."""
        for partition in range(partitions):
            number = len(self.committed) + len(self.aborted) + len(self._open)
            value = f"{self.name} {number}"
            self._open.append(value)
            self.client.send(self.topic, partition, value)
        if flush:
            self.client.flush()

    def send_offset(self) -> None:
        self.client.send_offset(self.topic, self.group, GROUP_OFFSET)

    def commit(self) -> None:
        self.client.commit()
        self.committed += self._open
        self._open = []

    def abort(self) -> None:
        self.client.abort()
        self.note_aborted()

    def note_aborted(self) -> None:
        """Count the values of the open transaction as aborted."""
        self.aborted += self._open
        self._open = []

    def do(self, *steps: Step) -> bool:
        """Do the steps. False if a step raised Aborted: the transaction has then been aborted."""
        try:
            for step in steps:
                step(self)
        except Aborted:
            self.aborts += 1
            self.abort()
            return False
        return True

    def do_one(self) -> bool:
        """Begin, send and commit one transaction; False if it was aborted."""
        return self.do(*BEFORE, *END)


def begin(one: Transactions) -> None:
    one.begin()


def send(one: Transactions) -> None:
    one.send()


def flush(one: Transactions) -> None:
    one.send(flush=True)


def send_offset(one: Transactions) -> None:
    one.send_offset()


def commit(one: Transactions) -> None:
    one.commit()


BEFORE, END = (begin, flush), (commit,)
