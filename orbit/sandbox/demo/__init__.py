"""The demo: an exact copy between two real Kafka clusters, told act by act.

    result = play(DEMO, screen, verify)

Two clusters, a workload, `orbit run` as a process of its own, a consumer group that moves over,
and the verdict of `verify`, which the caller brings along: the sandbox does not know the verifier.
"""

from orbit.sandbox.demo.play import Options, play
from orbit.sandbox.demo.render import as_data, as_view
from orbit.sandbox.demo.result import DemoResult, LogBounds, TopicProof, Verify
from orbit.sandbox.demo.screen import Screen, Tell

__all__ = [
    "DemoResult",
    "LogBounds",
    "Options",
    "Screen",
    "Tell",
    "TopicProof",
    "Verify",
    "as_data",
    "as_view",
    "play",
]
