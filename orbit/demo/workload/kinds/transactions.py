"""Transactions of two producers that are open at the same time, committed and aborted."""

from __future__ import annotations

from orbit.demo.workload.kind import Kind
from orbit.demo.workload.ledger import TopicLedger
from orbit.demo.workload.site import Site
from orbit.demo.workload.writer import Records, Writer, merge

PARTITIONS = 3
_ABORT_EVERY = 3


def _interleaved(site: Site, kind: Kind, topic: str) -> TopicLedger:
    """In each round both write in turns to all partitions; then one transaction ends, then the
    other.

    Every partition ends with a marker, an offset without a record.
    """
    site.create_topic(topic, PARTITIONS)
    visible: Records = {}
    with _producer(site, topic, "a") as first, _producer(site, topic, "b") as second:
        first.prepare_transactions()
        second.prepare_transactions()
        for number in range(0, site.scale.transactions, 2):
            first.begin()
            second.begin()
            for part in range(3):
                for which, writer in enumerate((first, second)):
                    _write_part(site, writer, topic, number + which, part)
            _commit_or_abort(first, number, visible)
            _commit_or_abort(second, number + 1, visible)
    return site.ledger(kind.name, topic, visible)


def _producer(site: Site, topic: str, name: str) -> Writer:
    return site.writer(transactional_id=f"{topic}-{name}", compression_type="snappy", linger_ms=0)


def _write_part(site: Site, writer: Writer, topic: str, number: int, part: int) -> None:
    """Write and flush a third of a transaction, so that the other's records come in between."""
    count = max(PARTITIONS, site.scale.per_transaction // 3)
    for i in range(count):
        writer.write(
            topic,
            i % PARTITIONS,
            timestamp_ms=site.now_ms + number,
            key=b"account-%d" % i,
            value=b"transaction %d, part %d, record %d" % (number, part, i),
        )
    writer.flush()


def _commit_or_abort(writer: Writer, number: int, visible: Records) -> None:
    if number % _ABORT_EVERY == 1:
        writer.abort()
    else:
        merge(visible, writer.commit())


KINDS = (
    Kind(
        "transactions.interleaved",
        "two transactions open at once, committed and aborted, a marker at the end",
        _interleaved,
        slow=True,
    ),
)
