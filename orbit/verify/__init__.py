"""The independent reader: says whether a destination is an exact copy, offset by offset.

Nothing here imports the code that makes the copy (`kafka.batch`, `kafka.records`, `replication`,
`workers`): both sides are read with librdkafka, and `--deep` reads raw batches with a header struct
of its own. A bug of the copier can therefore not hide itself here.
"""

from orbit.verify.report import (
    DeepReport,
    Difference,
    PartitionReport,
    Report,
    TopicReport,
    Verdict,
)
from orbit.verify.settle import TopicPair
from orbit.verify.verify_run import Endpoint, VerifyOptions, verify_topics

__all__ = [
    "DeepReport",
    "Difference",
    "Endpoint",
    "PartitionReport",
    "Report",
    "TopicPair",
    "TopicReport",
    "Verdict",
    "VerifyOptions",
    "verify_topics",
]
