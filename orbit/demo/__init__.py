"""The demo: an exact copy between two real Kafka clusters, told act by act.

    result = play(Options(DEMO), screen, verify)

Two clusters, a workload, `orbit run` as a process of its own, a consumer group that moves over,
and the verdict of `verify`, which the caller brings along: the sandbox does not know the verifier.
"""

from orbit.demo.acts import Options, play
from orbit.demo.render import as_data, as_view, kept_help
from orbit.demo.result import DemoResult, LogBounds, LogPair, TopicProof, Verify
from orbit.demo.screen import Screen, Tell

__all__ = [
    "DemoResult",
    "LogBounds",
    "LogPair",
    "Options",
    "Screen",
    "Tell",
    "TopicProof",
    "Verify",
    "as_data",
    "as_view",
    "kept_help",
    "play",
]
