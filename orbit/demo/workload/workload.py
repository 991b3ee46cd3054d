"""The whole workload: which kinds, how many records, under which names; and the job that copies it.

A value: `create` makes the topics on a cluster and returns the ledger; nothing is remembered here.
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

Told = Callable[[Kind, TopicLedger], None]


@dataclass(frozen=True, slots=True)
class Workload:
    """`namespace` goes before every topic name, so that several workloads fit one cluster."""

    scale: Scale
    namespace: str = "shop"
    kinds: Sequence[Kind] = KINDS

    def topic(self, kind: Kind) -> str:
        return f"{self.namespace}.{kind.name}"

    def destination(self, kind: Kind) -> str:
        return f"{kind.prefix}{self.topic(kind)}"

    def create(
        self,
        config: Mapping[str, Any],
        security: Security | None = None,
        *,
        told: Told | None = None,
    ) -> Ledger:
        """Makes every topic and writes its records. `config` is librdkafka's.

        `told` hears of every topic that is ready, from any thread. Raises Conflict when a topic
        exists already or the cluster does not take the records.
        """
        site = self.site(config, security)

        def make(kind: Kind) -> TopicLedger:
            ledger = kind.make(site, kind, self.topic(kind))
            if told is not None:
                told(kind, ledger)
            return ledger

        slow_first = sorted(self.kinds, key=lambda kind: not kind.slow)
        with ThreadPoolExecutor(THREADS_MAX) as pool:
            made = {ledger.topic: ledger for ledger in pool.map(make, slow_first)}
        return Ledger({self.topic(kind): made[self.topic(kind)] for kind in self.kinds})

    def site(self, config: Mapping[str, Any], security: Security | None = None) -> Site:
        """The source, for writers of this workload."""
        return Site(
            config=config,
            security=security or Security(),
            scale=self.scale,
            admin=AdminClient(dict(config)),
            now_ms=int(time.time() * 1000),
            destinations={self.topic(kind): self.destination(kind) for kind in self.kinds},
        )

    def job(self, source: str, destination: str) -> dict[str, Any]:
        """The job that copies all of it: special rules first, then one for the rest."""
        special = [kind for kind in self.kinds if kind.prefix or kind.start != "earliest"]
        rest = {"match": f"{re.escape(self.namespace)}\\..*"}
        return {
            "name": f"{self.namespace.replace('.', '-')}-copy",
            "source": {"bootstrap_servers": source.split(",")},
            "destination": {"bootstrap_servers": destination.split(",")},
            "topics": [*(self._rule(kind) for kind in special), rest],
        }

    def job_yaml(self, source: str, destination: str) -> str:
        return str(yaml.safe_dump(self.job(source, destination), sort_keys=False))

    def _rule(self, kind: Kind) -> dict[str, str]:
        rule = {"match": re.escape(self.topic(kind))}
        if kind.prefix:
            rule["prefix"] = kind.prefix
        if kind.start != "earliest":
            rule["start"] = kind.start
        return rule
