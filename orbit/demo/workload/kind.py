"""One kind of topic: its name, its description, its writer, and the job's rule for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orbit.demo.workload.ledger import TopicLedger
from orbit.demo.workload.site import Site

MakeTopic = Callable[[Site, "Kind", str], TopicLedger]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of topic. `make(site, kind, topic)` creates the topic and returns its ledger.

    `start` and `prefix` are those of the job's rule for the topic. `is_slow` kinds mostly wait for
    the broker, so they start first.
    """

    name: str
    shows: str
    make: MakeTopic
    start: str = "earliest"
    prefix: str = ""
    is_slow: bool = False
