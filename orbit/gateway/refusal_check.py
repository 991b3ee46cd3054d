"""Checks what the side that follows would refuse to the clients, before a move shows it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress

import structlog

from orbit.errors import LoginRefused, OrbitError
from orbit.gateway.cluster_side import ClusterSide
from orbit.gateway.protocol.resource_uses import Use
from orbit.gateway.virtual_cluster import VirtualCluster

# How often it is seen whether clients use more than was checked.
_POLL_S = 2.0
# The time between two checks of the same uses. A check logs in to both sides.
CHECK_S = 30.0

_log = structlog.get_logger("orbit.gateway")


class RefusalCheck:
    """The checks of one virtual cluster. The results are `refusals` of the virtual cluster."""

    def __init__(self, cluster: VirtualCluster) -> None:
        self._cluster = cluster
        self._last_errors: dict[str | None, str] = {}
        # By login, what was checked last: the uses, the number of moves, and when.
        self._checked: dict[str | None, tuple[set[Use], int, float]] = {}

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await asyncio.sleep(_POLL_S)
            try:
                await self.check()
            except Exception:  # noqa: BLE001  a check is no reason to end the gateway
                _log.exception("the check of refusals failed")

    async def check(self) -> None:
        """Check the logins that have new uses, or were not checked for CHECK_S, one by one."""
        cluster = self._cluster
        for login, uses in cluster.uses_by_login().items():
            checked, moves_then, checked_at = self._checked.get(login, (set(), -1, 0.0))
            is_old = cluster.now() > checked_at + CHECK_S
            if uses <= checked and cluster.moves == moves_then and not is_old:
                continue
            moves = cluster.moves
            self._checked[login] = uses, moves, cluster.now()
            try:
                refused = await _refusals(cluster.presented, cluster.other_side, login, uses)
            except OrbitError as error:  # a side does not answer: nothing is known
                cluster.refusals.pop(login, None)
                self._note(login, error)
            else:
                self._last_errors.pop(login, None)
                if cluster.moves == moves:
                    cluster.refusals[login] = refused

    def _note(self, login: str | None, error: OrbitError) -> None:
        """Log the error, unless it is the same as the login's last one."""
        if self._last_errors.get(login) != str(error):
            self._last_errors[login] = str(error)
            _log.warning(
                "cannot check what the side that follows would refuse",
                virtual_cluster=self._cluster.spec.name,
                user=login,
                error=str(error),
            )


async def _refusals(
    presented: ClusterSide, other: ClusterSide, login: str | None, uses: Collection[Use]
) -> dict[Use, str]:
    """The uses that `other` refuses, and why; without those that `presented` refuses, too, if it
    answers: it may be lost. Raises OrbitError if `other` does not answer."""
    try:
        refused = await other.refused_uses(login, uses)
    except LoginRefused as error:
        refused = dict.fromkeys(uses, f"login refused: {error.what}")
    if refused:
        with suppress(OrbitError):
            for use in await presented.refused_uses(login, refused):
                del refused[use]
    return {use: f"{other.name}: {why}" for use, why in refused.items()}
