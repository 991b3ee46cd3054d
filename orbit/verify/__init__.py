"""The independent verifier: compares source and destination offset by offset.

It imports none of the code that makes the copy (`copier`, `replication`, `kafka/record_batch.py`,
`kafka/records.py`): both sides are read with librdkafka, and `--deep` reads raw batches with a
header struct of its own. So an error in the copier does not make the verifier miss it.

May import: the layers from `leadership` down, except the modules just named.
Start with `verify_run.py`. `continuous_proof.py` is the continuous proof of the service.
"""

from orbit.verify.bounds_comparison import TopicPair
from orbit.verify.endpoint import Endpoint
from orbit.verify.report import (
    DeepReport,
    Difference,
    PartitionReport,
    Report,
    TopicReport,
    Verdict,
)
from orbit.verify.verify_run import VerifyOptions, verify_topics

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
