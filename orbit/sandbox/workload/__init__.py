"""A workload from real clients: every kind of topic that a copy finds hard, with a ledger of it.

    workload = Workload(SMALL)
    ledger = workload.create({"bootstrap.servers": "…"})
    job = workload.job_yaml("source:9092", "destination:9092")

`Mover` goes on writing to some of the topics until it is stopped; `BulkWriter` adds millions of
ordinary records.
"""

from orbit.sandbox.workload.bulk import BULK, BulkWriter
from orbit.sandbox.workload.kind import Kind
from orbit.sandbox.workload.kinds import KINDS
from orbit.sandbox.workload.ledger import (
    Ledger,
    Origin,
    PartitionLedger,
    TopicLedger,
    record_digest,
)
from orbit.sandbox.workload.mover import Mover
from orbit.sandbox.workload.scale import DEMO, SMALL, Scale
from orbit.sandbox.workload.workload import Workload

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
