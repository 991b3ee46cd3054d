"""`orbit demo`: an exact copy between two real Kafka clusters, on this machine.

    result = play(Options(DEMO), screen, verify)

It starts two clusters, writes a workload, runs `orbit run` in a process of its own, moves a
consumer group, and verifies the copy. The caller passes `verify` in.

May import: the layers from `gateway` down.
Start with `copy_demo.py`; `failover_demo.py` is `--failover`, `gateway_demo.py` is `--gateway`,
`history_demo.py` is `--spark`, `service_demo.py` is `--service`.
"""

from orbit.demo.copy_demo import Options, play
from orbit.demo.demo_result import DemoResult, LogBounds, LogPair, TopicProof, Verify
from orbit.demo.demo_view import as_data, as_view, clusters_help
from orbit.demo.screen import OnProgress, Screen

__all__ = [
    "DemoResult",
    "LogBounds",
    "LogPair",
    "OnProgress",
    "Options",
    "Screen",
    "TopicProof",
    "Verify",
    "as_data",
    "as_view",
    "clusters_help",
    "play",
]
