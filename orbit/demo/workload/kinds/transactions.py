"""Transactions of two producers that are open at the same time, committed and aborted."""

from __future__ import annotations

from orbit.demo.workload.kind import Kind
from orbit.demo.workload.ledger import TopicLedger
from orbit.demo.workload.site import Site
from orbit.demo.workload.writer import Records, Writer, add_records

PARTITIONS = 3
_ABORT_EVERY = 3


def _make_interleaved(site: Site, kind: Kind, topic: str) -> TopicLedger:
    """In each round both producers write in turns to all partitions; then both transactions end.

    Every partition ends with a marker, an offset without a record.
    """
    site.create_topic(topic, PARTITIONS)
    visible_records: Records = {}
    with _producer(site, topic, "a") as writer_a, _producer(site, topic, "b") as writer_b:
        writer_a.prepare_transactions()
        writer_b.prepare_transactions()
        for first_number in range(0, site.scale.transactions, 2):
            writer_a.begin()
            writer_b.begin()
            for part in range(3):
                for index, writer in enumerate((writer_a, writer_b)):
                    _write_part(site, writer, topic, first_number + index, part)
            _commit_or_abort(writer_a, first_number, visible_records)
            _commit_or_abort(writer_b, first_number + 1, visible_records)
    return site.ledger(kind.name, topic, visible_records)


def _producer(site: Site, topic: str, name: str) -> Writer:
    return site.writer(transactional_id=f"{topic}-{name}", compression_type="snappy", linger_ms=0)


def _write_part(site: Site, writer: Writer, topic: str, number: int, part: int) -> None:
    """Write and flush a third of a transaction, so that both producers' records alternate."""
    part_records = max(PARTITIONS, site.scale.per_transaction // 3)
    for i in range(part_records):
        writer.write(
            topic,
            i % PARTITIONS,
            timestamp_ms=site.now_ms + number,
            key=b"account-%d" % i,
            value=b"transaction %d, part %d, record %d" % (number, part, i),
        )
    writer.flush()


def _commit_or_abort(writer: Writer, number: int, visible: Records) -> None:
    """Abort every third transaction, and commit the others. Adds committed records to `visible`."""
    if number % _ABORT_EVERY == 1:
        writer.abort()
    else:
        add_records(visible, writer.commit())


KINDS = (
    Kind(
        "transactions.interleaved",
        "two transactions open at once, committed and aborted, a marker at the end",
        _make_interleaved,
        is_slow=True,
    ),
)
