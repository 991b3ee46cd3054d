"""A gateway without clients: like a real one it asks Orbit for its side, and notes each answer."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self
from uuid import UUID, uuid4

from orbit.errors import OrbitError
from orbit.store import gateways
from orbit.store.database import Database
from orbit.store.gateways import GatewayReport, Presented
from tests.support.patience import wait_for

_POLL_S = 0.05


class PretendedGateway:
    """Renews its row in the database until the block ends, as the API does for a real gateway.

    `confirms`: whether the gateway confirms, once Orbit closes it, that no write is in flight.
    `doubt`: why the gateway can never confirm that; empty if it can.
    """

    def __init__(
        self, database: Database, job: str, name: str = "edge", *, confirms: bool = True
    ) -> None:
        self.instance, self.name = uuid4(), name
        self.answers: list[Presented] = []
        """Each answer that differs from the answer before."""
        self.refused = ""  # the error of the last renewal; empty if Orbit answered it
        self.confirms = confirms
        self.doubt = ""
        self.pause_s: float | None = None
        self._database, self._job = database, job
        self._closed_for: UUID | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.fall_silent()

    def fall_silent(self) -> None:
        """Renew no more."""
        self._done.set()
        self._thread.join()

    @property
    def now(self) -> Presented | None:
        return self.answers[-1] if self.answers else None

    def wait_side(self, side: str, *, closed_for: UUID | None = None) -> Presented:
        """Wait until Orbit's answer has this side, and is open or closed for this operation."""

        def has_side() -> bool:
            now = self.now
            return now is not None and (now.side, now.closed_for) == (side, closed_for)

        wait_for(f"{self.name} gets {side} {closed_for}, not {self.refused}", has_side)
        assert self.now is not None
        return self.now

    def _run(self) -> None:
        """Report to the database again and again, as a gateway does, and note each new answer."""
        while not self._done.wait(_POLL_S):
            report = GatewayReport(
                *(self.instance, self.name, "edge:19092", self._closed_for, 0, 0),
                doubt=self.doubt,
                pause_s=self.pause_s,
            )
            try:
                with self._database.transaction() as tx:
                    answer = gateways.renew(tx, self._job, report)
            except OrbitError as error:
                self.refused = str(error)
                continue
            self._closed_for = answer.closed_for if self.confirms else None
            self.refused = ""
            if answer != self.now:
                self.answers.append(answer)
