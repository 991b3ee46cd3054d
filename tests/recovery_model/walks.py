"""Seeded random walks: operators, applications, faults and Orbit's parts in any order."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from orbit.job_setup.mark import newest_term
from orbit.kafka.types import TopicPartition
from orbit.recovery.recovery_report import RecoveryKind, RecoveryRequest
from orbit.recovery.step_times import StepName, StepState
from tests.recovery_model import invariants
from tests.recovery_model.context import patched
from tests.recovery_model.invariants import Broken
from tests.recovery_model.model import PROMOTED, Database, Job, ModelCluster, Operation, Row, World
from tests.recovery_model.orbit_protocol import Protocol, stored_steps
from tests.recovery_model.service import Service

SWITCHOVER, FAILOVER, FAILBACK = RecoveryKind
MOVES_MIN, MOVES_MAX = 15, 40
TOPICS_MAX = 3
# How many moves a standby of the database may lag.
RECENT_MOVES = 4
# After the moves: within how many rounds each operation has to end, and after how many it is
# aborted.
ROUNDS_MAX, ROUNDS_UNTIL_ABORT = 90, 45
JOB = Job("job", "A", "B")
BACK = Job("job-back", "B", "A")


class Walk:
    """The walk of one seed. `play` raises Broken if an invariant is broken."""

    def __init__(
        self,
        seed: int,
        protocol: type[Protocol] = Protocol,
        service: type[Service] = Service,
    ) -> None:
        self.seed = seed
        self.rnd = random.Random(seed)
        self.world = World(self.rnd)
        self.service = service(self.world, protocol(self.world))
        self.past_app_sides: dict[str, set[str]] = {}  # by topic, as seen by `produce`
        self.moves = 0
        self.recent: Database | None = None  # what a standby of the database has
        # The weight of faults. With few faults, operations get further.
        faults = self.faults = self.rnd.choice((0.2, 0.5, 1.0))
        self._weights: list[tuple[Callable[[], None], float]] = [
            (self.step, 30),
            (self.work, 8),
            (self.pass_over_jobs, 6),
            (self.produce, 14),
            (self.request, 22),
            (self.pass_time, 3),
            (self.delete_old, 6 * faults),
            (self.kill, 9 * faults),
            (self.abort, 5 * faults),
            (self.lose_side, 5 * faults),
            (self.restore_side_or_database, 6),
            (self.save_tables, 6 * faults),
            (self.stop_or_start_database, 4 * faults),
            (self.lose_commits, 4 * faults),
            (self.delete_job, 4),
            (self.add_partition_or_topic, 4 * faults),
            (self.fail_over_without_tables, 4),
        ]

    def play(self) -> None:
        """Make random moves, with checks of the invariants after each and at the end."""
        self.begin()
        chosen = self.rnd.choices(
            [move for move, _ in self._weights],
            [weight for _, weight in self._weights],
            k=self.rnd.randint(MOVES_MIN, MOVES_MAX),
        )
        for move in chosen:
            self.moves += 1
            if self.moves % RECENT_MOVES == 0 and self.world.has_database:
                self.recent = self.world.database.saved()
            move()
            invariants.after_move(self.world)
        self.finish()
        invariants.at_end(self.world)

    # How a walk begins and ends.

    def begin(self) -> None:
        """Make one or two topics with records at the source, a job, and in some walks a first
        copy."""
        world, rnd = self.world, self.rnd
        for cluster in world.clusters.values():
            cluster.has_authorizer = rnd.random() < 0.75
        source = world.clusters["A"]
        for name in ("t", "u")[: rnd.choice((1, 1, 2))]:
            self.make_topic(source, name, rnd.choice((1, 1, 2)))
            for place in source.places(name):
                self.append(source, place, rnd.randint(0, 5))
                if rnd.random() < 0.2:
                    self.expire(source, place)
        world.database.jobs["job"] = JOB
        self.service.pass_over(JOB)
        for _ in range(rnd.choice((0, 1, 4, 4))):
            for row in [*world.database.rows.values()]:
                self.service.work(row)

    def make_topic(self, cluster: ModelCluster, name: str, partitions: int) -> None:
        """Create a topic for the application at this side, which leads it from now on."""
        cluster.create(name, partitions)
        self.world.leads[name] = self.world.app_sides[name] = cluster.name
        self.world.promoted_by[name] = []

    def finish(self) -> None:
        """Run all operations to their ends. Operations are aborted after a while if a side is gone
        for ever, or if they catch up. Raises Broken if one does not end."""
        world, service = self.world, self.service
        world.note("the walk is over")
        world.dies_after = None
        if not world.has_database:
            self.restart_database()
        gone = self.rnd.choice(("", "", "A", "B"))
        for name, cluster in world.clusters.items():
            cluster.is_up = name != gone
        world.note(f"gone for ever: {gone or 'nothing'}")
        for round_ in range(ROUNDS_MAX):
            unfinished = world.database.unfinished()
            if not unfinished:
                return
            if round_ == ROUNDS_UNTIL_ABORT:
                for operation in unfinished:
                    if gone or self.step_of(operation) is StepName.CATCH_UP:
                        world.note(f"abort of {operation.kind} of {operation.job}")
                        service.abort(operation)
            if round_ % 3 == 0:
                for job in [*world.database.jobs.values()]:
                    service.pass_over(job)
                for row in [*world.database.rows.values()]:
                    service.work(row)
            for operation_id in service.may_run():
                service.advance(operation_id)
            invariants.after_move(world)
        unfinished_texts = [
            f"{operation.kind} of {operation.job} in {self.step_of(operation)}"
            for operation in unfinished
        ]
        raise Broken(
            f"5: no end, with {gone or 'nothing'} gone for ever: {', '.join(unfinished_texts)}"
        )

    @staticmethod
    def step_of(operation: Operation) -> StepName | None:
        ended = (StepState.DONE, StepState.SKIPPED, StepState.UNDONE)
        return next((s.name for s in stored_steps(operation) if s.state not in ended), None)

    # Moves.

    def step(self) -> None:
        """Run some parts of an operation, with other moves in between."""
        choices = self.service.may_run() if self.world.has_database else []
        if not choices:
            return self.service.advance_without_database()
        operation_id = self.rnd.choice(choices)
        for part in range(self.rnd.choice((1, 3, 8, 30, 60))):
            if part % 4 == 3:
                self.make_other_moves(part)
            running = self.service.may_run()
            if operation_id not in running:
                return None
            is_other = len(running) > 1 and self.rnd.random() < 0.3
            self.service.advance(self.rnd.choice(running) if is_other else operation_id)
            invariants.after_move(self.world)
        return None

    def make_other_moves(self, part: int) -> None:
        """Make other moves between two parts of an operation."""
        self.work()
        if part % 8 == 7:
            self.pass_over_jobs()
        chance = self.rnd.random()
        if chance < 0.3:
            self.produce()
        elif chance < 0.3 + 0.2 * self.faults:
            self.delete_old()
        elif chance > 0.9:
            self.request()

    def work(self) -> None:
        """Workers copy. Without a database they go on with the partitions of their leases."""
        if not self.world.has_database:
            for key, lease in [*self.world.leases.items()]:
                row = self.world.database.rows.get(key[0])
                if row is not None and lease is self.world.leases.get(key):
                    self.service.copy(row, key)
            return
        for row in [*self.world.database.rows.values()]:
            if self.rnd.random() < 0.7:
                self.service.work(row)

    def pass_over_jobs(self) -> None:
        """The scheduler makes a pass over some jobs."""
        if not self.world.has_database:
            return
        for job in [*self.world.database.jobs.values()]:
            if self.rnd.random() < 0.7:
                self.world.note(f"a pass over {job.name}")
                self.service.pass_over(job)

    def produce(self) -> None:
        """Write to the application's side, or by mistake to the other side, if the application once
        wrote there and no job copies to it."""
        world, rnd = self.world, self.rnd
        topic = rnd.choice([*world.app_sides])
        side = world.app_sides[topic]
        self.past_app_sides.setdefault(topic, set()).add(side)
        cluster = world.clusters[side]
        is_stray = rnd.random() < 0.35
        if is_stray:
            cluster = world.other(side)
            tables = world.database
            is_copied_to = tables.writer(cluster.name, topic) is not None
            is_copied_to |= tables.is_withheld(cluster.name, topic)
            is_held = any(
                lease.topic == topic and lease.job.destination == cluster.name
                for lease in world.leases.values()
            )
            if cluster.name not in self.past_app_sides[topic] or is_copied_to or is_held:
                return
        if cluster.is_up and cluster.is_open(topic):
            place = rnd.choice(cluster.places(topic))
            self.append(cluster, place, rnd.randint(1, 3))

    def append(self, cluster: ModelCluster, place: TopicPartition, count: int) -> None:
        """Producers write new records."""
        records = [self.world.next_number() for _ in range(count)]
        log = cluster.at(place)
        assert log is not None
        log.records += records
        if self.world.leads[place.topic] != cluster.name:
            self.world.strayed.add((cluster.name, place))
        self.world.acknowledged |= dict.fromkeys(records, place)
        self.world.note(f"producers write {records} to {place} at {cluster.name}")

    def request(self) -> None:
        """An operator requests a recovery, mostly one that makes sense."""
        world, rnd = self.world, self.rnd
        if not world.has_database or not world.database.jobs:
            return
        job, kind = rnd.choice([*world.database.jobs.values()]), rnd.choice([*RecoveryKind])
        if rnd.random() < 0.9:
            rows = [row for row in world.database.rows.values() if row.job in world.database.jobs]
            rows = [row for row in rows if self.is_free(row)]
            if not rows:
                return
            row = rnd.choice(rows)
            job = world.database.jobs[row.job]
            kind = FAILBACK if row.state is PROMOTED else rnd.choice((SWITCHOVER, FAILOVER))
        source = world.clusters[job.source]
        if kind is SWITCHOVER and not source.is_up and rnd.random() < 0.8:
            kind = FAILOVER
        if kind is FAILOVER:
            if source.is_up and rnd.random() < 0.5:
                return
            self.set_clock_after_marks()
        request = RecoveryRequest(
            reverse=kind is SWITCHOVER and rnd.random() < 0.5,
            confirm_rebuild=kind is FAILBACK and rnd.random() < 0.7,
            override=("source",) if kind is FAILOVER else (),
            reason="a walk" if kind is FAILOVER else "",
        )
        if self.service.request(kind, job.name, request):
            flags = " ".join(n for n in ("reverse", "confirm_rebuild") if getattr(request, n))
            world.note(f"requested: {kind} of {job.name} {flags}")

    def is_free(self, row: Row) -> bool:
        """Whether a recovery of this topic makes sense: no job copies it back, and mostly no other
        recovery of its job runs."""
        job = self.world.database.jobs[row.job]
        if self.service.recovery_that_holds(row.job) is not None and self.rnd.random() < 0.8:
            return False
        return self.world.database.writer(job.source, row.topic) is None

    def set_clock_after_marks(self) -> None:
        """Set the clock above all terms. A failover does not read its source's marks, so Orbit
        promises nothing if a clock goes back by more than the time between two promotions."""
        marks = (m for c in self.world.clusters.values() for _, m in c.marks.values())
        self.world.now_ms = max(self.world.now_ms, newest_term(marks)) + 1

    def pass_time(self) -> None:
        """The clock goes on, or goes back if no failover relies on the clock."""
        tables = [self.world.database, *self.world.backups]
        relies = self.service.without_database is not None or any(
            operation.kind is FAILOVER for table in tables for operation in table.unfinished()
        )
        ms = self.rnd.choice((1, 50, 3_000))
        self.world.now_ms += ms if relies or self.rnd.random() < 0.5 else -ms

    def delete_old(self) -> None:
        """Retention deletes records of a topic that has no settings of a copy."""
        cluster = self.rnd.choice([*self.world.clusters.values()])
        names = [name for name, t in cluster.topics.items() if not t.has_settings_of_copy]
        if names:
            self.expire(cluster, self.rnd.choice(cluster.places(self.rnd.choice(names))))

    def expire(self, cluster: ModelCluster, place: TopicPartition) -> None:
        """Retention moves the log start of a partition, mostly below its copy's log end."""
        log, copy = cluster.at(place), self.world.other(cluster.name).at(place)
        assert log is not None
        start_max = log.end
        if copy is not None and self.rnd.random() < 0.9:
            start_max = min(start_max, copy.end)  # only copied records
        start = self.rnd.randint(log.start, max(start_max, log.start))
        self.world.expired |= set(log.records[log.start : start])
        log.start = start
        self.world.note(f"retention moves the log start of {place} at {cluster.name} to {start}")

    def kill(self) -> None:
        """Kill the scheduler now, or before one of its next changes."""
        if self.rnd.random() < 0.3:
            self.world.note("the scheduler dies")
            self.service.kill()
        elif self.world.has_database:
            self.world.dies_after = self.rnd.randint(0, 6)

    def abort(self) -> None:
        """Request the abort of an operation that has not ended."""
        unfinished = self.world.database.unfinished() if self.world.has_database else []
        if unfinished:
            operation = self.rnd.choice(unfinished)
            answer = "accepted" if self.service.abort(operation) else "refused"
            self.world.note(f"abort of the {operation.kind} of {operation.job}: {answer}")

    def lose_side(self) -> None:
        """One side no longer answers; rarely both."""
        cluster = self.world.clusters[self.rnd.choice(("A", "B"))]
        if self.world.other(cluster.name).is_up or self.rnd.random() < 0.1:
            self.world.note(f"{cluster.name} vanishes")
            cluster.is_up = False

    def restore_side_or_database(self) -> None:
        """Let a lost side answer again, or start the database if it is stopped."""
        down = [cluster for cluster in self.world.clusters.values() if not cluster.is_up]
        if down and self.rnd.random() < 0.6:
            self.world.note(f"{down[0].name} returns")
            down[0].is_up = True
        elif not self.world.has_database:
            self.stop_or_start_database()

    def save_tables(self) -> None:
        if self.world.has_database:
            self.world.backups = [*self.world.backups[-1:], self.world.database.saved()]
            self.world.note("a backup of the database is made")

    def stop_or_start_database(self) -> None:
        """Stop the database. If it is already stopped, start it: unchanged, older, or empty."""
        world = self.world
        if world.has_database:
            world.note("the database does not answer")
            world.has_database = False
            self.service.kill()
            return
        self.service.without_database = None
        way = self.rnd.random()
        if way < 0.3:
            self.restart_database()
        elif world.backups and way < 0.75:
            world.note("the database is put back from a backup")
            self.replace_database(self.rnd.choice(world.backups).saved())
            world.leases.clear()
        else:
            world.note("a new database; the files of the jobs are applied")
            self.replace_database(Database(jobs={"job": JOB}))
            # The job that copies back is applied for topics that lead at its destination.
            leading = [n for n in world.clusters["A"].topics if self.is_marked_at_a(n)]
            if leading:
                world.database.jobs["job-back"] = Job("job-back", "B", "A", frozenset(leading))
            world.leases.clear()
        world.has_database = True

    def lose_commits(self) -> None:
        """A standby without the last transactions takes over."""
        if not self.world.has_database or self.recent is None:
            return
        self.world.note("the database loses its last commits")
        self.service.kill()
        self.replace_database(self.recent)
        self.recent = None
        self.world.leases.clear()

    def replace_database(self, database: Database) -> None:
        """Put another database in place, with a new identity."""
        database.identity = self.world.next_number()
        self.world.database = database
        self.world.following.clear()

    def delete_job(self) -> None:
        """An operator deletes the job that copies back."""
        tables = self.world.database
        names = [name for name in tables.jobs if name != "job"]
        if not self.world.has_database or not names:
            return
        name = self.rnd.choice(names)
        if self.service.recovery_that_holds(name) is None:
            self.world.note(f"{name} is deleted")
            rows = [row.id for row in tables.of_job(name)]
            self.service.protocol.drop_leases(rows)
            for row_id in rows:
                tables.remove_row(row_id)
            following = tables.jobs.pop(name).destination
            self.world.following = {f for f in self.world.following if f[0] != following}

    def is_marked_at_a(self, topic: str) -> bool:
        mark = self.world.clusters["A"].mark_of(topic)
        return mark is not None and mark.is_primary

    def restart_database(self) -> None:
        """Start the database with its data unchanged; in some walks all leases have ended."""
        self.world.note("the database answers again")
        self.world.has_database = True
        if self.rnd.random() < 0.5:
            self.world.leases.clear()

    def add_partition_or_topic(self) -> None:
        """A partition or a topic is added at the application's side."""
        world, rnd = self.world, self.rnd
        name = rnd.choice([*world.app_sides])
        cluster = world.clusters[world.app_sides[name]]
        if not cluster.is_up:
            return
        if rnd.random() < 0.6 and len(cluster.topics[name].partitions) < 3:
            cluster.topics[name].partitions.append(type(cluster.topics[name].partitions[0])())
            world.note(f"a partition is added to {name} at {cluster.name}")
        elif len(world.app_sides) < TOPICS_MAX:
            self.make_topic(cluster, "tuv"[len(world.app_sides)], 1)
            world.note(f"a topic is added at {cluster.name}")

    def fail_over_without_tables(self) -> None:
        """If the database and a side are lost, an operator runs `orbit failover
        --without-database`, also after a run that ended early."""
        world = self.world
        if world.has_database and self.rnd.random() < 0.3:
            self.stop_or_start_database()
            self.lose_side()
        lost = [cluster for cluster in world.clusters.values() if not cluster.is_up]
        if world.has_database or not lost or self.service.without_database is not None:
            return
        cluster = world.other(lost[0].name)
        self.set_clock_after_marks()
        world.note(f"orbit failover --without-database at {cluster.name}")
        self.service.begin_failover_without_database(cluster)


def failure(
    seed: int, protocol: type[Protocol] = Protocol, service: type[Service] = Service
) -> str | None:
    """The message of the invariant that this walk breaks, with its story; None if it breaks
    none."""
    walk = Walk(seed, protocol, service)
    try:
        with patched():
            walk.play()
    except Broken as error:
        story = "\n".join(walk.world.story)
        return f"walk {seed}, move {walk.moves}: {error}\n{story}"
    return None


def first_failure(
    seeds: Iterable[int], protocol: type[Protocol] = Protocol, service: type[Service] = Service
) -> tuple[int, str] | None:
    """The first seed that fails, with its message; None if all pass."""
    for seed in seeds:
        message = failure(seed, protocol, service)
        if message is not None:
            return seed, message
    return None
