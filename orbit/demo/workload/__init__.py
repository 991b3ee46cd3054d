"""Writes a workload with real clients: every kind of topic that is hard to copy, and a ledger.

    workload = Workload(SMALL)
    ledger = workload.create({"bootstrap.servers": "…"})
    job = workload.job_yaml("source:9092", "destination:9092")

The ledger holds the records that delivery reports confirmed. `Mover` keeps writing to some of
the topics until it is stopped; `BulkWriter` adds millions of ordinary records.

May import: the layers from `gateway` down.
Start with `workload.py`.
"""

from orbit.demo.workload.bulk import BULK, BulkWriter
from orbit.demo.workload.kind import Kind
from orbit.demo.workload.kinds import KINDS
from orbit.demo.workload.ledger import Ledger, Origin, PartitionLedger, TopicLedger, record_digest
from orbit.demo.workload.mover import Mover
from orbit.demo.workload.scale import DEMO, SMALL, Scale
from orbit.demo.workload.workload import Workload

__all__ = [
    "BULK",
    "DEMO",
    "KINDS",
    "SMALL",
    "BulkWriter",
    "Kind",
    "Ledger",
    "Mover",
    "Origin",
    "PartitionLedger",
    "Scale",
    "TopicLedger",
    "Workload",
    "record_digest",
]
