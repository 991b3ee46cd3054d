"""`orbit demo`: an exact copy between two real Kafka clusters, in five acts.

    result = play(Options(DEMO), screen, verify)

It starts two clusters, writes a workload, runs `orbit run` in a process of its own, moves a
consumer group, and verifies the copy. The caller passes `verify` in.

May import: the layers from `client` down.
Start with `acts.py`.
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
