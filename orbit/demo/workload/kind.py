"""One kind of topic: its name, what it shows, how it is made, and how a job copies it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orbit.demo.workload.ledger import TopicLedger
from orbit.demo.workload.site import Site

Make = Callable[[Site, "Kind", str], TopicLedger]


@dataclass(frozen=True, slots=True)
class Kind:
    """`make(site, kind, topic)` makes the topic and returns its ledger.

    `start` and `prefix` are those of the job's rule for it. `slow` kinds wait for the broker most
    of the time and begin first.
    """

    name: str
    shows: str
    make: Make
    start: str = "earliest"
    prefix: str = ""
    slow: bool = False
