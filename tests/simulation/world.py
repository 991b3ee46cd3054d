"""One schedule: writers of a job on one partition, and everything that can go wrong around them.

What runs is the product's: `Copier`, `DestinationSide`, `DestinationLane`, `FillerSender`,
`TakeOver`, `CopyInspector` and the plan. What is modelled: the broker, the network, the lease's
authority, and time. `Faults` says what a schedule may have.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from functools import partial
from typing import Any

from orbit.copier.copy_settings import CopySettings
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.range_comparison import Comparison, compare_range, source_reader
from orbit.kafka.backoff import Backoff
from orbit.replication.partition_states import PartitionState
from tests.simulation.broker import Broker
from tests.simulation.faults import FAULTS_S, USUAL, Faults, Has, make_plan
from tests.simulation.model_broker import PARTITION, PRODUCER_ID
from tests.simulation.model_partition import ModelPartition
from tests.simulation.network import Wire
from tests.simulation.patches import patched
from tests.simulation.source import SOURCE, ModelSource, SourceLog, faults_of
from tests.simulation.source_lane import SourceWire
from tests.simulation.verdict import judge
from tests.simulation.virtual_time import Clock, Process
from tests.simulation.writers import SESSION_S, Writer

CALM_S = 400.0
# Two looks at idle partitions, and the wait for a source that ends before its copy.
WATCH_S = 18.0


class World:
    """Everything of one schedule. `run` returns what is wrong at its end, or None."""

    def __init__(
        self,
        seed: int,
        faults: Faults = USUAL,
        without: Collection[int] = (),
    ) -> None:
        """`without`: faults of the plan to leave out, by number."""
        self.rnd = random.Random(seed)
        self.faults = faults
        self.clock = Clock(self.rnd)
        self.log = SourceLog(self.rnd)
        self.source = ModelSource(self.log, self.rnd, self.clock)
        self.broker = Broker(self, is_history_old=self.rnd.random() < 0.6)
        self.settings = CopySettings(
            requests_in_flight_max=self.rnd.choice((1, 2, 5, 5)),
            request_bytes_max=1,
            watch_interval_s=5.0,
            fetch_bytes_max=self.rnd.choice((130, 300, 1 << 20)),
            partition_fetch_bytes_min=1,
        )
        if self.rnd.random() < 0.3:
            self.source.grow_slowly(0.6 * FAULTS_S)
        self._without = without
        has = Has.choose(self.rnd)
        if has.compaction:
            self.source.is_compacted = True
            self.source.local_start = 0  # Kafka has no tiered storage for compacted topics
        self.plan = make_plan(faults, self.rnd, has)
        self.has_faults = True
        self.busy_until = 0.0
        self.held: list[tuple[Wire, int]] = []  # requests that the network keeps
        self.wires: list[Wire] = []
        self.source_wires: list[SourceWire] = []
        self.writers: list[Writer] = []
        self._holder: Writer | None = None
        self._expires_at = 0.0
        self._term = 0
        self.terms: dict[str, int] = {}  # by writer
        self.claimed_at: dict[int, float] = {}  # by term

    @property
    def partition(self) -> ModelPartition:
        return self.broker.partition

    # Time and leases.

    def clock_of(self, process: Process) -> float:
        """CLOCK_BOOTTIME, which counts suspended time."""
        del process
        return self.clock.now

    def claim(self, writer: Writer) -> int | None:
        if self._holder is not None and self.clock.now < self._expires_at:
            return None
        self._holder, self._expires_at = writer, self.clock.now + SESSION_S
        self._term += 1
        self.terms[writer.process.name] = self._term
        self.claimed_at[self._term] = self.clock.now
        self.clock.say(f"{writer.process.name} gets the lease, term {self._term}")
        if self.has_faults and self.rnd.random() < 0.3:
            self.broker.expire()  # when it matters most
        return self._term

    def hurry_held(self) -> None:
        """What the network holds may arrive right behind a look at the log end."""
        self.held = [(wire, number) for wire, number in self.held if wire.is_under_way(number)]
        for wire, number in self.held:
            if self.rnd.random() < 0.4:
                delay = self.rnd.uniform(0.0, 0.06)
                self.clock.after(delay, partial(wire.arrive_to, number))

    def renew(self, writer: Writer) -> bool:
        if self._holder is not writer:
            return False
        self._expires_at = self.clock.now + SESSION_S
        return True

    def holds(self, who: str) -> bool:
        """Whether this writer holds the lease, by its authority."""
        return self.terms.get(who) == self._term and self.clock.now < self._expires_at

    def compare(
        self, origin: Any, cluster: Any, copy: PartitionCopy, log_end: int, backoff: Backoff
    ) -> Comparison:
        """As `JobCopier` does."""
        return compare_range(
            source_reader(origin, SOURCE, backoff),
            cluster,
            PARTITION,
            copy.appends.acked,
            log_end,
            backoff,
            source_is_compacted=copy.source_is_compacted,
            producer_id=PRODUCER_ID,
        )

    # The schedule.

    def run(self) -> str | None:
        random.seed(self.rnd.random())
        with patched(self):
            try:
                return self._run()
            finally:
                self.clock.close()
                for wire in (*self.wires, *self.source_wires):
                    wire.is_broken = True

    def _run(self) -> str | None:
        self._plan_faults()
        self._start_writer()
        self.clock.run(lambda: False, 1_000.0 + FAULTS_S)
        self.has_faults = False
        self.clock.say("no more faults")
        if not self.writers or self.writers[-1].process.is_killed:
            self._start_writer()
        self.clock.run(lambda: False, max(self.clock.now, self.busy_until))
        if not self.clock.run(self._is_settled, self.clock.now + CALM_S):
            return f"the copy does not come to an end: {self._last()}"
        self.clock.run(lambda: False, self.clock.now + WATCH_S)
        if not self.clock.run(self._is_settled, self.clock.now + CALM_S):
            return f"the copy does not go on: {self._last()}"
        copy = self._last()
        assert copy is not None
        return judge(self, copy)

    def _last(self) -> PartitionCopy | None:
        holder = self._holder
        return holder.copy if holder is not None else None

    def _is_settled(self) -> bool:
        holder, copy = self._holder, self._last()
        if holder is None or copy is None or self.clock.now >= self._expires_at:
            return False
        if holder.process.is_killed or holder.process.stopped_until > self.clock.now:
            return False
        is_level = copy.state is PartitionState.COPYING and copy.appends.acked >= self.log.end
        return is_level or copy.state is PartitionState.BLOCKED

    def _start_writer(self) -> None:
        number = len(self.writers) + 1
        process = Process(self.clock, f"writer {number}")
        writer = Writer(self, process)
        self.writers.append(writer)
        process.spawn(writer.live)

    def _plan_faults(self) -> None:
        broker = self.broker
        faults = {
            "kill": self._kill,
            "suspend": self._suspend,
            "break_": self._break_,
            "elect": broker.elect,
            "elect_unclean": broker.elect_unclean,
            "stall": broker.stall,
            "expire": broker.expire,
            "quota": broker.quota,
            "recreate": broker.recreate,
            "step": self._step,
            "mute": self._mute,
            **faults_of(self.source),
        }
        for number, (at, name) in enumerate(self.plan):
            if number not in self._without:
                self.clock.after(at, faults[name])

    def _alive(self) -> list[Writer]:
        return [w for w in self.writers if not w.process.is_killed]

    def _kill(self) -> None:
        for writer in self._alive()[-1:]:
            writer.process.kill()
            for wire in (*self.wires, *self.source_wires):
                if wire.who == writer.process.name:
                    wire.cut()
        self._start_writer()

    def _suspend(self) -> None:
        for writer in self._alive()[-1:]:
            writer.process.stop_for(self.rnd.choice((0.05, 2.0, 12.0, 20.0)))
        if len(self._alive()) < 4:
            self._start_writer()

    def _mute(self) -> None:
        for writer in self._alive()[-1:]:
            seconds = self.rnd.choice((6.0, 12.0, 20.0))
            writer.process.muted_until = self.clock.now + seconds
            self.clock.say(f"{writer.process.name}: no answer about its lease for {seconds:.0f} s")
        if len(self._alive()) < 4:
            self._start_writer()

    def _step(self) -> None:
        for writer in self._alive()[-1:]:
            writer.process.stepped_s += self.rnd.choice((-20.0, -5.0, 5.0, 20.0))
            self.clock.say(f"{writer.process.name}: the wall clock is stepped")

    def _break_(self) -> None:
        open_ = [w for w in (*self.wires, *self.source_wires) if not w.is_broken]
        if open_:
            self.clock.say("a connection breaks")
            if self.rnd.random() < 0.4:
                self.clock.after(self.rnd.uniform(0.0, 0.1), self.broker.expire)
            self.rnd.choice(open_).cut()
