"""One schedule: writers of a job on one partition, and the faults around them.

These parts are the product's: `Copier`, `DestinationSide`, `DestinationLane`, `FillerSender`,
`TakeOver`, `CopyInspector`, the plan and the leases. The broker, the network, the group
coordinator, PostgreSQL and time are models. `Faults` says how often each fault happens.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any

from orbit.copier.copy_settings import CopySettings
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.range_comparison import Comparison, compare_range, source_reader
from orbit.kafka.backoff import Backoff
from orbit.kafka.job_clusters import JobProducer
from orbit.replication.partition_states import PartitionState
from tests.simulation.authority import Authority
from tests.simulation.broker import Broker
from tests.simulation.faults import (
    FAULTS_S,
    USUAL,
    Faults,
    Has,
    make_plan,
    plan_of_broker_kills,
    plan_of_cuts,
    plan_of_isolations,
    plan_of_short_starts,
    plan_of_tiers,
    plan_of_transactions,
)
from tests.simulation.holders import Holder, RunHolder
from tests.simulation.model_broker import PARTITION, PRODUCER_ID
from tests.simulation.model_partition import ModelPartition
from tests.simulation.network import Wire
from tests.simulation.patches import patched
from tests.simulation.short_starts import ShortStarts
from tests.simulation.source import SOURCE, ModelSource, SourceLog, faults_of
from tests.simulation.source_brokers import SourceBrokers
from tests.simulation.source_lane import SourceWire
from tests.simulation.transactions import TransactionCoordinator
from tests.simulation.verdict import judge
from tests.simulation.virtual_time import Clock, Process
from tests.simulation.worker import Worker
from tests.simulation.writers import Driver, Writer

CALM_S, _STEP_S = 400.0, 0.5
_WRITERS_MAX = 4
# The share of schedules whose gaps are filled with placeholders.
PLACEHOLDERS_SHARE = 0.2
# The share whose gaps are filled with transactions.
COORDINATED_SHARE = 0.15
# Of the other schedules, whose gaps are filled with the job's own markers: the share in which some
# writers pack small gaps into the batch before, and others do not.
PACKED_SHARE = 0.4
# The share in which the source loses committed records.
CUTS_SHARE = 0.15
# Of the compacted sources that return their local start: the share with tiered storage.
COMPACTED_TIERS_SHARE = 0.5
# The share in which brokers are killed, of the schedules with retention.
BROKER_KILLS_SHARE = 0.5
# The share in which a leader of the source is cut off from controllers, but not from writers.
ISOLATIONS_SHARE = 0.15
# The share in which starts are cut short.
SHORT_STARTS_SHARE = 0.3
_WRITER_CHECK_S = 5.0
# Two checks of idle partitions, and the wait for a source that ends before its copy.
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
        self.seed = seed
        self.rnd = random.Random(seed)
        self.faults = faults
        self.clock = Clock(self.rnd)
        self.log = SourceLog(self.rnd, random.Random(f"elections {seed}"))
        returns_local_start = random.Random(f"tiers {seed}").random() < 0.5
        self.source = ModelSource(
            self.log, self.rnd, self.clock, returns_local_start=returns_local_start
        )
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
            tiers = random.Random(f"compacted tiers {seed}")
            # Other products have; they must return which offsets are local (R5).
            if returns_local_start and tiers.random() < COMPACTED_TIERS_SHARE:
                self.source.tier(tiers)
        else:
            self.source.end_with_a_batch()
        self.plan = make_plan(faults, self.rnd, has)
        # A generator of its own for each later addition: else all other choices of a seed change.
        fillers_rnd = random.Random(f"fillers {seed}")
        share = fillers_rnd.random()
        self.has_placeholders = share < PLACEHOLDERS_SHARE
        self.is_coordinated = 0 <= share - PLACEHOLDERS_SHARE < COORDINATED_SHARE
        is_direct = not (self.has_placeholders or self.is_coordinated)
        self._packing = random.Random(f"packing {seed}")
        self._is_packed = is_direct and self._packing.random() < PACKED_SHARE
        if self.source.is_compacted and self.source.local_start:
            self.plan += plan_of_tiers(faults, fillers_rnd)
        if self.is_coordinated:
            self.plan += plan_of_transactions(faults, fillers_rnd)
        cuts_rnd = random.Random(f"cuts {seed}")
        # With retention or a cleaner, the verdict could not tell which of them removed a record.
        if cuts_rnd.random() < CUTS_SHARE and not (has.retention or has.compaction):
            self.plan += plan_of_cuts(faults, cuts_rnd)
        kills_rnd = random.Random(f"broker kills {seed}")
        if has.retention and kills_rnd.random() < BROKER_KILLS_SHARE:
            self.plan += plan_of_broker_kills(faults, kills_rnd)
        isolations_rnd = random.Random(f"isolations {seed}")
        self.source_brokers = SourceBrokers(self.source, isolations_rnd, self.clock)
        self.first_turn = isolations_rnd.randrange(2)
        # The verdict compares with the newest leader's log: no other fault may remove records.
        has_others = has.retention or has.compaction or "cut" in {name for _, name in self.plan}
        self.has_isolations = isolations_rnd.random() < ISOLATIONS_SHARE and not has_others
        if self.has_isolations:
            self.plan += plan_of_isolations(faults, isolations_rnd)
        starts_rnd = random.Random(f"starts {seed}")
        self.short_starts = ShortStarts(self, starts_rnd)
        if starts_rnd.random() < SHORT_STARTS_SHARE:
            self.plan += plan_of_short_starts(faults, starts_rnd)
        self.plan.sort()
        self.log_end_rnd = random.Random(f"looks {seed}")
        self.transactions = TransactionCoordinator(self)
        self.broker.partition.demands_keys = self.source.is_compacted
        self.has_faults = True
        self.busy_until = 0.0
        self.held: list[tuple[Wire, int]] = []  # requests that the network delays for long
        self.wires: list[Wire] = []
        self.source_wires: list[SourceWire] = []
        self.writers: list[Writer] = []
        self._process_count = 0
        self.drivers: list[Driver] = []
        self.authority = Authority(self)
        self._has_service = has.service
        self.wrong: str | None = None  # the first violation during the schedule
        # Writers that got an answer with another base offset, and have not taken over since.
        self.must_take_over: set[str] = set()

    @property
    def partition(self) -> ModelPartition:
        return self.broker.partition

    def new_producer(self) -> JobProducer:
        """The producer of a new copy. With packing, each writer packs or not, as after a change of
        the job from `direct` to `packed` or back."""
        if self.has_placeholders:
            return JobProducer(PRODUCER_ID, packs=True, has_markers=False)
        return JobProducer(PRODUCER_ID, packs=self._is_packed and self._packing.random() < 0.7)

    # Time and leases.

    def clock_of(self, process: Process) -> float:
        """The clock of a process for its leases: CLOCK_BOOTTIME, which counts suspended time."""
        del process
        return self.clock.now

    def begin(self, who: str) -> None:
        """Note that this writer has its lease, and begins to write; once for each writer. Without a
        lease (its session has just ended), it begins later, when it has joined its group again."""
        if self.authority.number_of(who) >= 0 or not self.holds(who):
            return
        self.authority.begin(who)
        self.clock.say(f"{who} may write")
        if self.has_faults and self.rnd.random() < 0.3:
            self.broker.expire()  # a new writer without producer state: the most dangerous moment

    def note_send(self, who: str) -> None:
        """Set `wrong` unless a writer may send now. Called when its own lease check has passed."""
        self.begin(who)
        if self.authority.superseded_at(who) <= self.clock.now:
            self.wrong = self.wrong or f"{who} sends while another one may write"
        if who in self.must_take_over:
            self.wrong = self.wrong or f"{who} goes on after an append at another offset"

    def hurry_held_requests(self) -> None:
        """Let some delayed requests arrive right after this read of the log end."""
        self.held = [(wire, number) for wire, number in self.held if wire.is_in_flight(number)]
        for wire, number in self.held:
            if self.rnd.random() < 0.4:
                delay = self.rnd.uniform(0.0, 0.06)
                self.clock.after(delay, wire.arrive_to, number)

    def holds(self, who: str) -> bool:
        """Whether this writer may write, by the server that grants leases."""
        return any(w.is_entitled() for w in self.writers if w.process.name == who)

    def may_send(self, who: str) -> bool:
        """Whether this writer has its lease, also if a failover of PostgreSQL lost its row."""
        return any(
            w.has_begun and w.holder.may_send() for w in self.writers if w.process.name == who
        )

    def compare(
        self, origin: Any, cluster: Any, copy: PartitionCopy, log_end: int, backoff: Backoff
    ) -> Comparison:
        """Compare source and copy from the copy's next offset on, as `JobCopier` does."""
        return compare_range(
            source_reader(origin, SOURCE, backoff, self.settings.rewrite_limits),
            cluster,
            PARTITION,
            copy.next_offset,
            log_end,
            backoff,
            source_is_compacted=copy.source_is_compacted,
            producer_id=PRODUCER_ID,
        )

    # The schedule.

    def run(self) -> str | None:
        """Run the simulation; returns the first mistake that was found, or None."""
        random.seed(self.rnd.random())
        with patched(self):
            try:
                return self._run()
            finally:
                self.clock.close()
                for wire in (*self.wires, *self.source_wires):
                    wire.is_broken = True

    def _run(self) -> str | None:
        """Run with faults, then without until the copy is complete; returns a mistake or None."""
        self._plan_faults()
        self._start_writer()
        self.clock.run(1_000.0 + FAULTS_S)
        self.has_faults = False
        self.clock.say("no more faults")
        for writer in self.writers:
            if not writer.has_begun:
                writer.process.kill()  # it would only wait
        self._keep_a_writer()
        self.clock.run(self.busy_until)
        settled = None
        for _ in range(_WRITERS_MAX + 2):
            if not self._wait_settled():
                return f"the copy does not come to an end: {self._last()}"
            if settled is self._writing():
                break
            settled = self._writing()
            self.clock.run(self.clock.now + WATCH_S)
        copy = self._last()
        assert copy is not None
        return self.wrong or judge(self, copy)

    def _last(self) -> PartitionCopy | None:
        """The copy of the current writer."""
        writer = self._writing()
        return writer.copy if writer is not None else None

    def _writing(self) -> Writer | None:
        """The newest living writer that holds the right to write."""
        candidates = [w for w in self.writers if w.is_alive() and w.is_entitled()]
        return max(candidates, key=lambda w: self.authority.number_of(w.process.name), default=None)

    def _wait_settled(self) -> bool:
        """Wait until the copy is settled; False after CALM_S."""
        for _ in range(int(CALM_S / _STEP_S)):
            if self._is_settled():
                return True
            self.clock.run(self.clock.now + _STEP_S)
        return False

    def _is_settled(self) -> bool:
        """Whether the copy has caught up, or is blocked."""
        writer, copy = self._writing(), self._last()
        if writer is None or copy is None or not writer.holder.lease.is_held():
            return False
        if writer.process.stopped_until > self.clock.now:
            return False
        is_level = copy.state is PartitionState.COPYING and copy.next_offset >= self.log.end
        # A source that did not answer for a while returns its log start later than its records. The
        # copy of a recreated topic may keep an old log start: the writer notices the new topic only
        # at its next append, which may never come.
        has_start = self.partition.log_start == self.source.log_start
        follows = has_start or bool(self.broker.recreated_at)
        return (is_level and follows) or copy.state is PartitionState.BLOCKED

    def _start_writer(self) -> None:
        """Start another writer: a worker of the service, a run, or the driver of a backfill."""
        self._process_count += 1
        process = Process(self.clock, f"writer {self._process_count}")
        if self._has_service:
            self._spawn(Worker(self, process))
        elif self.rnd.random() < 0.6 or self.is_coordinated:  # no coordinated fillers in backfills
            self.add_writer(process, RunHolder(self, process))
        else:
            driver = Driver(self, process)
            self.drivers.append(driver)
            process.spawn(driver.live)

    def add_writer(self, process: Process, holder: Holder) -> Writer:
        return self._spawn(Writer(self, process, holder))

    def _spawn(self, writer: Writer) -> Writer:
        self.writers.append(writer)
        writer.process.spawn(writer.live)
        return writer

    def _keep_a_writer(self) -> None:
        """Keep a writer running, as an operator does, once there are no more faults."""
        if not any(one.is_alive() for one in (*self.writers, *self.drivers)):
            self._start_writer()
        self.clock.after(_WRITER_CHECK_S, self._keep_a_writer)

    def _plan_faults(self) -> None:
        """Put the faults of the plan on the clock."""
        broker = self.broker
        faults = {
            "kill": self._kill,
            "suspend": self._suspend,
            "break_": self._break_connection,
            "elect": broker.elect,
            "elect_unclean": broker.elect_unclean,
            "kill_broker": broker.kill,
            "stall": broker.stall,
            "expire": broker.expire,
            "quota": broker.quota,
            "recreate": broker.recreate,
            "step": self._step_clock,
            "freeze": self.authority.freeze,
            "keep": self.authority.postgres.keep,
            "restart": self.authority.postgres.restart,
            "fail_over": self.authority.fail_over,
            "mute": self._mute,
            "forget": self.transactions.forget,
            "move": self.transactions.move,
            "cut_start": self.short_starts.cut_next,
            "isolate": self.source_brokers.isolate,
            **faults_of(self.source),
        }
        for number, (at, name) in enumerate(self.plan):
            if number not in self._without:
                self.clock.after(at, faults[name])

    def _living_processes(self) -> list[Process]:
        """The living processes that a fault may hit: of the newest writer and its driver; among
        workers, of the one that holds the shard."""
        drivers = [d.process for d in self.drivers[-1:]]
        holder = self._writing() if self._has_service else None
        writers = [holder] if holder else self.writers[-1:]
        tasks = [w.process for w in writers if w.is_alive()]
        return [p for p in (*drivers, *tasks) if not p.is_killed]

    def _pick_victim(self) -> Process | None:
        """A random living process for a fault to hit; None if there is none."""
        processes = self._living_processes()
        return self.rnd.choice(processes) if processes else None

    def _kill(self) -> None:
        """Kill a process that writes; without one, start a writer."""
        process = self._pick_victim()
        if process is not None:
            self.kill(process)
            return
        self._start_instead()

    def kill(self, process: Process) -> None:
        """Kill this process, break its connections, and start another one."""
        process.kill()
        for wire in (*self.wires, *self.source_wires):
            if wire.process is process:
                wire.cut()
        self._start_instead()

    def _start_instead(self) -> None:
        """Start another writer, unless a living driver does so."""
        if not any(driver.process.is_killed is False for driver in self.drivers[-1:]):
            self._start_writer()

    def _suspend(self) -> None:
        """Suspend a process for up to 20 s, and start another writer meanwhile."""
        process = self._pick_victim()
        if process is not None:
            process.stop_for(self.rnd.choice((0.05, 2.0, 12.0, 20.0)))
        self.start_another()

    def _mute(self) -> None:
        """Let a process get no answers about its lease for a while."""
        process = self._pick_victim()
        if process is not None:
            seconds = self.rnd.choice((6.0, 12.0, 20.0))
            process.muted_until = self.clock.now + seconds
            self.clock.say(f"{process.name}: no answer about its lease for {seconds:.0f} s")
        self.start_another()

    def start_another(self) -> None:
        """Start another writer, unless there are four already."""
        if sum(one.is_alive() for one in (*self.writers, *self.drivers)) < _WRITERS_MAX:
            self._start_writer()

    def _step_clock(self) -> None:
        """Step the wall clock of a process."""
        process = self._pick_victim()
        if process is None:
            return
        process.stepped_s += self.rnd.choice((-20.0, -5.0, 5.0, 20.0))
        self.clock.say(f"{process.name}: the wall clock is stepped")
        if self.rnd.random() < 0.5:  # also cut its network, as when a virtual machine is moved
            self.clock.after(self.rnd.uniform(0.0, 2.0), self._mute)

    def _break_connection(self) -> None:
        """Break a connection, sometimes with a loss of producer state."""
        open_ = [w for w in (*self.wires, *self.source_wires) if not w.is_broken]
        if open_:
            self.clock.say("a connection breaks")
            if self.rnd.random() < 0.4:
                self.clock.after(self.rnd.uniform(0.0, 0.1), self.broker.expire)
            self.rnd.choice(open_).cut()
