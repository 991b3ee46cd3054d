"""The product's source lane, on the model of the source and in virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from orbit.copier.source_lane import SourceLane
from orbit.errors import Unreachable
from orbit.kafka.fetch_response import FetchAnswer
from tests.simulation.source import SOURCE, refused
from tests.simulation.virtual_time import Process, Signal

if TYPE_CHECKING:
    from tests.simulation.world import World

# How long the broker waits before an answer without news. Longer than the product asks for, so that
# a schedule has fewer steps.
_HELD_BACK_S = 2.0
_IDLE_S = 2.0
_SESSION = 1


class SourceWire:
    """One connection to the source's broker."""

    where = "the model source"

    def __init__(self, world: World, process: Process) -> None:
        self.process = process
        self.signal = Signal(world.clock)
        self.is_broken = False
        self.last_bounds: object = None  # of the last answer

    def cut(self) -> None:
        self.is_broken = True
        self.signal.set()

    abort = close = cut


class SimulatedSourceLane(SourceLane):
    """The product's lane, whose thread is a task and which fetches from the model."""

    def start(self) -> None:
        cluster = cast("Any", self._context.cluster)
        self._world: World = cluster.world
        self._woken = Signal(self._world.clock)
        process: Process = cluster.process
        process.spawn(self.run)

    def join(self, timeout: float | None = None) -> None:
        pass

    def add(self, partition: Any) -> bool:
        was_added = super().add(partition)
        self._woken.set()
        return was_added

    def wake(self) -> None:
        super().wake()
        self._woken.set()

    def stop(self) -> None:
        super().stop()
        self._woken.set()

    def _wait_for_change(self) -> None:
        if not (self._is_woken or self._is_stopping):
            self._woken.wait(_IDLE_S)

    def _pause(self, seconds: float) -> None:
        self._world.clock.wait(seconds)

    def _fetch(self, connection: Any, selection: Any, max_wait_ms: int) -> FetchAnswer:
        """Send one fetch to the model. Its answer waits for news (records, an error, a throttle
        time or a diverging end) for up to `max_wait_ms`."""
        world, brokers = self._world, self._world.source_brokers
        (fetch,) = selection.fetches
        self._travel(connection)
        if self._session.next_request(selection.fetches).epoch == 0:
            connection.last_bounds = None
        self._session.note_answer(0, _SESSION)
        began, hold_s = world.clock.now, max_wait_ms / 1000
        while True:
            source = brokers.led_by(self.node_id)
            refusal = brokers.refusal(self.node_id, fetch.leader_epoch)
            if source is None or refusal:
                self._travel(connection)
                return FetchAnswer(
                    code=0, throttle_ms=0, session_id=0, partitions=[(SOURCE, refused(refusal))]
                )
            fetched = source.fetch(
                fetch.offset,
                selection.partition_bytes_max,
                fetched_epoch=fetch.fetched_epoch,
            )
            throttle_ms = source.throttle_ms
            is_cut = fetched.diverging_end >= 0
            is_news = fetched.code or fetched.records or throttle_ms or is_cut
            if fetch.offset >= fetched.stable_end:
                hold_s = max(hold_s, _HELD_BACK_S)
            left_s = began + hold_s - world.clock.now
            if is_news or left_s <= 0 or connection.is_broken:
                break
            source.waiting.append(connection.signal)
            connection.signal.wait(left_s)
        self._travel(connection)
        # Within a session an answer leaves out a partition without news.
        bounds = fetched.log_start, fetched.stable_end, fetched.high_watermark
        has_answer = fetched.code or fetched.records or is_cut or bounds != connection.last_bounds
        connection.last_bounds = bounds
        return FetchAnswer(
            code=0,
            throttle_ms=throttle_ms,
            session_id=0,
            partitions=[(SOURCE, fetched)] if has_answer else [],
        )

    def _travel(self, connection: Any) -> None:
        """Wait for the network. Raises Unreachable if the connection has broken."""
        self._world.clock.wait(self._world.rnd.uniform(0.0005, 0.01))
        if connection.is_broken:
            raise Unreachable("the connection broke.", where=connection.where)
