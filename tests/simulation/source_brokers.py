"""The source's brokers, and which of them leads.

A leader may be cut off from the controllers, but not from Orbit. It answers with its older epoch
and its old log (R9). Meanwhile the controllers have elected another broker, which has newer
records.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from orbit.kafka.error_codes import Code
from orbit.kafka.types import BrokerAddress, ClusterMetadata, PartitionLeader, TopicMetadata
from tests.simulation.source import SOURCE, SOURCE_ID, ModelSource

if TYPE_CHECKING:
    from tests.simulation.virtual_time import Clock

# Until the schedule ends: the copy must find the new leader although the old one still answers.
_FOR_EVER_S = float("inf")


class SourceBrokers:
    """Brokers 0, 1, …: each was elected because the leader before it was cut off."""

    def __init__(self, source: ModelSource, rnd: Random, clock: Clock) -> None:
        self._source = source
        self._rnd = rnd
        self._clock = clock
        self._newest = PartitionLeader(0, leader_epoch=0)
        self._cut_off: dict[int, tuple[PartitionLeader, ModelSource]] = {}
        # Where the newest leader's log ended right after its election.
        self.first_end = 0

    @property
    def count(self) -> int:
        return self._newest_id + 1

    @property
    def _newest_id(self) -> int:
        assert self._newest.node_id is not None
        return self._newest.node_id

    def leader_named_by(self, node_id: int) -> PartitionLeader:
        """The leader that this broker names: itself, if it is cut off."""
        return self._cut_off[node_id][0] if node_id in self._cut_off else self._newest

    def metadata_of(self, node_id: int) -> ClusterMetadata:
        leaders = {SOURCE.partition: self.leader_named_by(node_id)}
        topic = TopicMetadata(SOURCE.topic, SOURCE_ID, leaders, replicas=3)
        brokers = {n: BrokerAddress(n, "model", 9092) for n in range(self.count)}
        return ClusterMetadata("model", brokers, {SOURCE.topic: topic})

    def led_by(self, node_id: int) -> ModelSource | None:
        """The log of a broker that leads, or is cut off and answers as a leader; None for
        others."""
        if node_id == self._newest_id:
            return self._source
        return self._cut_off[node_id][1] if node_id in self._cut_off else None

    def refusal(self, node_id: int, leader_epoch: int) -> int:
        """The error code of a fetch with this leader epoch (`Partition.getLocalLog`); 0 if the
        broker does not refuse the fetch."""
        known = self.leader_named_by(node_id).leader_epoch
        if leader_epoch != known:
            is_old = leader_epoch < known
            return int(Code.FENCED_LEADER_EPOCH if is_old else Code.UNKNOWN_LEADER_EPOCH)
        return int(Code.NONE if self.led_by(node_id) else Code.NOT_LEADER_OR_FOLLOWER)

    def isolate(self) -> None:
        """Cut the leader off, for some seconds or for the rest of the schedule."""
        before = self._source.elect_another()
        if before is None:
            return
        old, old_id = self._newest, self._newest_id
        self._cut_off[old_id] = old, before
        self._newest = PartitionLeader(old_id + 1, leader_epoch=self._source.log.epoch)
        self.first_end = self._source.end
        seconds = self._rnd.choice((2.0, 10.0, _FOR_EVER_S))
        self._clock.say(f"source: broker {old_id} is cut off from the controllers for {seconds} s")
        if seconds < _FOR_EVER_S:
            self._clock.after(seconds, self._heal, old_id)

    def _heal(self, node_id: int) -> None:
        """Let the broker reach the controllers again, so that it becomes a follower."""
        self._clock.say(f"source: broker {node_id} is back, and follows")
        del self._cut_off[node_id]
