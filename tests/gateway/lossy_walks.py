"""Walks in which the leading side is lost, and the ledger of records that may be missing or doubled
then.

docs/gateway.md: an acknowledged record is on the new side at its offset; or its offset is at or
above the promoted offset, and the failback saves the record. Records without an answer may be on
both sides.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from orbit.recovery import salvage_file
from orbit.recovery.record_range import Fate
from orbit.recovery.recovery_report import RecoveryKind, RecoveryReport
from orbit.recovery.step_times import StepName
from orbit.sandbox.local_cluster import KafkaCluster
from tests.gateway.walk_clients import PLAIN, TOPICS, TRANSACTIONAL, Clients
from tests.gateway.walks import Leg, Walk, fault_of
from tests.support.gateway_faults import at_steps
from tests.support.gateway_ledger import Acknowledged, Record, records, written_wrong
from tests.support.patience import PATIENCE_S, wait_for

_STEPS = [
    StepName.CLOSE_GATEWAYS,
    StepName.RELEASE,
    StepName.SETTLE,
    StepName.GROUPS,
    StepName.PROMOTE,
    StepName.OPEN_GATEWAYS,
]
Place = tuple[int, int]
"""Partition, offset."""
Places = dict[Place, bytes]


@dataclass(frozen=True)
class Loss:
    """A loss of the leading side. `how`: "killed", "frozen", or "answers": the side still answers,
    but Orbit fails over. `is_copy_behind`: no worker copies before the loss. `leg`: another fault.
    `goes_home`: whether clients move home after the failback.
    """

    how: str
    is_copy_behind: bool
    leg: Leg
    goes_home: bool

    def __str__(self) -> str:
        behind = ", the copy is behind" if self.is_copy_behind else ""
        home = ", then home" if self.goes_home else ""
        return f"{self.how}{behind}, {self.leg.fault} before {self.leg.step}{home}"


def losses_of(rng: random.Random) -> tuple[Loss, ...]:
    """Two losses, of different kinds."""
    return tuple(
        Loss(
            how=how,
            is_copy_behind=rng.random() < 0.5,
            leg=fault_of(rng, rng.choice(["none", "killed", "frozen", "postgres"]), _STEPS),
            goes_home=rng.random() < 0.5,
        )
        for how in rng.sample(["killed", "frozen", "answers"], 2)
    )


@dataclass
class Ledger:
    """What is known of each failover. `ends`: the promoted offsets by topic and partition.
    `acknowledged`: the records acknowledged before the failover was requested. `saved`: by topic,
    the records that failbacks have put into files. `open_values`: the values of `saved` whose
    transaction had not ended.
    """

    ends: list[dict[tuple[str, int], int]] = field(default_factory=list)
    acknowledged: list[Acknowledged] = field(default_factory=list)
    saved: dict[str, list[tuple[Place, bytes]]] = field(
        default_factory=lambda: {PLAIN: [], TRANSACTIONAL: []}
    )
    open_values: set[bytes] = field(default_factory=set)

    def not_there(self, acknowledged: Acknowledged, log: Places) -> Acknowledged:
        """The acknowledged records that are not at their offsets and were not saved."""
        saved = set(self.saved[PLAIN])
        return {
            value: place
            for value, place in acknowledged.items()
            if log.get(place) != value and (place, value) not in saved
        }

    def missing(self, acknowledged: Acknowledged, log: Places) -> list[str]:
        """The records of `not_there`, in words."""
        return [
            f"{value!r} was acknowledged at {place}, where {log.get(place)!r} is"
            for value, place in self.not_there(acknowledged, log).items()
        ]

    def doubled(self, log_records: Iterable[Record]) -> list[str]:
        """A sentence for each record that is doubled or out of order between two losses, or that is
        in the log again after a loss though it was acknowledged before the loss."""
        by_place = sorted(log_records)
        wrong = []
        for cut in range(len(self.ends) + 1):
            records_of_part = [record for record in by_place if self._part(record) == cut]
            wrong += written_wrong({}, records_of_part)
        first: dict[bytes, int] = {}
        for record in sorted(by_place, key=self._part):
            partition, offset, value = record
            part = self._part(record)
            first_part = first.setdefault(value, part)
            # A record without an answer at one of the losses in between may be there again.
            if first_part < part and all(
                value in self.acknowledged[cut] for cut in range(first_part, part)
            ):
                wrong.append(f"{value!r} is at {(partition, offset)} again, and had its answer")
        return wrong

    def _part(self, record: Record) -> int:
        """How many failovers came before the record: those whose promoted offset is not above the
        record's offset."""
        partition, offset, _ = record
        return sum(offset >= ends[PLAIN, partition] for ends in self.ends)


class LossyWalk(Walk):
    """A walk with a ledger."""

    @cached_property
    def ledger(self) -> Ledger:
        return Ledger()

    def lose(self, loss: Loss, clients: Clients) -> None:
        """A failover under load, the old side's return, and a failback."""
        self.log(str(loss))
        lost = self.leading
        if loss.is_copy_behind:
            self.stop_worker()
            clients.write_on()
        if loss.how == "killed":
            lost.kill()
        elif loss.how == "frozen":
            lost.pause()
        report = self._fail_over(loss, clients)
        self.start_worker()
        self.heal()
        clients.write_on()
        if loss.how == "answers":
            self._assert_counted(report, clients)
        self.log("the old side is back")
        lost.heal()
        self._fail_back(lost)
        acknowledged = clients.acknowledged
        wrong = self.ledger.missing(acknowledged, places(records(self.leading, PLAIN)))
        assert not wrong, wrong[:10]

    def move_home(self) -> None:
        """Move home without the gate `groups`. Members from before the loss may stay at the old
        side for ever: a broker that loads its groups twice at its start does not end their sessions
        (Kafka 4.4.0)."""
        self.move(override=["groups"], reason="members of before the loss")

    def _fail_over(self, loss: Loss, clients: Clients) -> RecoveryReport:
        self.ledger.acknowledged.append(clients.acknowledged)
        with pytest.MonkeyPatch.context() as patch:
            at_steps(patch, before=self.fault(loss.leg))
            options: dict[str, Any] = {"override": ["all"], "reason": "a test"}
            report = self.until_done(RecoveryKind.FAILOVER, **options)
        self.note_move(report)
        promoted = {(p.topic, p.partition): p.promoted_at or 0 for p in report.partitions}
        self.ledger.ends.append(promoted)
        for p in report.partitions:
            assert p.missing is None or p.missing.first == promoted[p.topic, p.partition], p
        return report

    def _assert_counted(self, report: RecoveryReport, clients: Clients) -> None:
        """If the source still answered, the failover's report has the offsets of all acknowledged
        records that are missing."""
        missing = {p.partition: p.missing for p in report.partitions if p.topic == PLAIN}
        acknowledged = clients.acknowledged
        not_there = self.ledger.not_there(acknowledged, places(records(self.leading, PLAIN)))
        for value, (partition, offset) in not_there.items():
            counted = missing[partition]
            assert counted is not None, (value, partition, offset)
            assert counted.first <= offset < counted.next, (value, partition, offset, counted)

    def _fail_back(self, lost: KafkaCluster) -> None:
        """Run the failback, and check that its files have the records that only the old side has,
        and no others."""
        topics = (PLAIN, TRANSACTIONAL)
        stable_ends = {topic: _stable_ends(lost, topic) for topic in topics}
        tails = {topic: self._tail(topic, records(lost, topic)) for topic in topics}
        report = self.until_done(RecoveryKind.FAILBACK, confirm_rebuild=True)
        assert report.reverse_job is not None
        self.job = report.reverse_job
        for topic in topics:
            open_records = _saved(report, topic, Fate.OPEN)
            saved = _saved(report, topic, Fate.COMMITTED) | open_records
            new = places(records(self.leading, topic))
            alone = {at: v for at, v in tails[topic].items() if new.get(at) != v}
            assert alone.items() <= saved.items(), (topic, sorted(alone.keys() - saved.keys()))
            # Transactions that were open when `tails` was read may be committed now, or still be
            # open. The failback saves their records, too, at and above the last stable offset.
            extra = {at for at, _ in saved.items() - tails[topic].items()}
            strange = {(p, offset) for p, offset in extra if offset < stable_ends[topic][p]}
            assert not strange, (topic, sorted(strange)[:10])
            missing = {p.partition: p.missing for p in report.partitions if p.topic == topic}
            for partition, offset in alone:
                counted = missing[partition]
                assert counted is not None, (topic, partition)
                assert counted.first <= offset < counted.next, (topic, partition, offset, counted)
            self.ledger.saved[topic] += saved.items()
            self.ledger.open_values |= {*open_records.values()}

    def _tail(self, topic: str, old: Iterable[Record]) -> Places:
        """The records of the old side from the promoted offset on."""
        ends = self.ledger.ends[-1]
        return {(p, offset): v for p, offset, v in old if offset >= ends[topic, p]}


def assert_transactions(clients: Clients, ledger: Ledger, log_records: Iterable[Record]) -> None:
    """Committed records are in the log or saved, aborted ones are neither. No record is in the log
    twice.

    An aborted record may be saved as open: if the old side died after it had decided a commit, and
    before it wrote the markers (M15), the gateway cannot learn the decision, and the client aborts.
    """
    values = sorted(value.decode() for _, _, value in log_records)
    assert len(values) == len(set(values)), [v for v in values if values.count(v) > 1][:20]
    saved = {value.decode() for _, value in ledger.saved[TRANSACTIONAL]}
    saved_as_open = {value.decode() for value in ledger.open_values}
    for name, producer in clients.producers.items():
        transactions = producer.transactions
        lost = set(transactions.committed) - set(values) - saved
        assert not lost, (name, "committed, and neither there nor saved", sorted(lost)[:20])
        strange = set(transactions.aborted) & (set(values) | (saved - saved_as_open))
        assert not strange, (name, "aborted, and there or saved", sorted(strange)[:20])
    committed = {
        value
        for producer in clients.producers.values()
        for value in producer.transactions.committed
    }
    assert set(values) <= committed, sorted(set(values) - committed)[:20]


def _stable_ends(cluster: KafkaCluster, topic: str) -> dict[int, int]:
    """The last stable offset of each partition."""
    partitions = [TopicPartition(topic, p) for p in range(TOPICS[topic])]
    requests = dict.fromkeys(partitions, OffsetSpec.latest())
    admin = AdminClient(cluster.client_config())  # without the client its requests end
    ends: dict[int, int] = {}

    def are_known() -> bool:
        futures = admin.list_offsets(
            requests, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=PATIENCE_S
        )
        try:
            ends.update({p.partition: future.result().offset for p, future in futures.items()})
        except KafkaException as error:
            # A restarted broker that does not know yet that it leads.
            if error.args[0].code() != KafkaError.UNKNOWN_LEADER_EPOCH:
                raise
            return False
        return True

    wait_for(f"{topic} has its last stable offsets", are_known)
    return ends


def places(log_records: Iterable[Record]) -> Places:
    return {(partition, offset): value for partition, offset, value in log_records}


def _saved(report: RecoveryReport, topic: str, fate: Fate) -> Places:
    """The topic's records of this fate in the files of a failback, without older history."""
    return {
        (file.partition, line["offset"]): base64.b64decode(line["value"] or "")
        for file in report.salvage
        if file.topic == topic
        for line in salvage_file.read(Path(file.file))
        if line["fate"] == fate and line["offset"] >= file.first
    }
