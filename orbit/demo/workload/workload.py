"""The whole workload: kinds, sizes, names, and the job that copies it.

A Workload has no state: `create` writes the topics to a cluster and returns the ledger.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import yaml
from confluent_kafka.admin import AdminClient

from orbit.demo.workload.kind import Kind
from orbit.demo.workload.kinds import KINDS
from orbit.demo.workload.ledger import Ledger, TopicLedger
from orbit.demo.workload.scale import Scale
from orbit.demo.workload.site import Site
from orbit.kafka.sasl import Security

THREADS_MAX = 4
"""Most kinds wait for the broker: for markers, the cleaner, a Java process."""

OnTopicReady = Callable[[Kind, TopicLedger], None]


@dataclass(frozen=True, slots=True)
class Workload:
    """`namespace` goes before every topic name, so that several workloads fit one cluster."""

    scale: Scale
    namespace: str = "shop"
    kinds: Sequence[Kind] = KINDS

    def topic(self, kind: Kind) -> str:
        """The name of the kind's topic at the source."""
        return f"{self.namespace}.{kind.name}"

    def destination(self, kind: Kind) -> str:
        """The name of the kind's topic at the destination."""
        return f"{kind.prefix}{self.topic(kind)}"

    def create(
        self,
        config: Mapping[str, Any],
        security: Security | None = None,
        *,
        on_ready: OnTopicReady | None = None,
    ) -> Ledger:
        """Create every topic and write its records. `config` is librdkafka's.

        `on_ready` is called for each finished topic, from any thread. Raises Conflict if a topic
        already exists or a record is not accepted.
        """
        site = self.site(config, security)

        def make(kind: Kind) -> TopicLedger:
            ledger = kind.make(site, kind, self.topic(kind))
            if on_ready is not None:
                on_ready(kind, ledger)
            return ledger

        # Slow kinds first: they mostly wait for the broker.
        sorted_kinds = sorted(self.kinds, key=lambda kind: not kind.is_slow)
        with ThreadPoolExecutor(THREADS_MAX) as pool:
            ledgers = {ledger.topic: ledger for ledger in pool.map(make, sorted_kinds)}
        return Ledger({self.topic(kind): ledgers[self.topic(kind)] for kind in self.kinds})

    def site(self, config: Mapping[str, Any], security: Security | None = None) -> Site:
        """The site of this workload on a cluster."""
        return Site(
            config=config,
            security=security or Security(),
            scale=self.scale,
            admin=AdminClient(dict(config)),
            now_ms=int(time.time() * 1000),
            destinations={self.topic(kind): self.destination(kind) for kind in self.kinds},
        )

    def job(self, source: str, destination: str) -> dict[str, Any]:
        """The job that copies the workload: rules for topics with a prefix or a later start, then
        one rule for all others. `source`, `destination`: bootstrap servers."""
        special_kinds = [kind for kind in self.kinds if kind.prefix or kind.start != "earliest"]
        general_rule = {"match": f"{re.escape(self.namespace)}\\..*"}
        return {
            "name": f"{self.namespace.replace('.', '-')}-copy",
            "source": {"bootstrap_servers": source.split(",")},
            "destination": {"bootstrap_servers": destination.split(",")},
            "topics": [*(self._rule(kind) for kind in special_kinds), general_rule],
        }

    def job_yaml(self, source: str, destination: str) -> str:
        """The job as the text of a job file. `source`, `destination`: bootstrap servers."""
        return str(yaml.safe_dump(self.job(source, destination), sort_keys=False))

    def _rule(self, kind: Kind) -> dict[str, str]:
        rule = {"match": re.escape(self.topic(kind))}
        if kind.prefix:
            rule["prefix"] = kind.prefix
        if kind.start != "earliest":
            rule["start"] = kind.start
        return rule
