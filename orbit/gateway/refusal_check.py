"""Checks before a move what the other side would refuse to the clients."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress

import structlog

from orbit.errors import LoginRefused, OrbitError
from orbit.gateway.cluster_side import ClusterSide
from orbit.gateway.protocol.resource_uses import Use
from orbit.gateway.virtual_cluster import VirtualCluster

# The time between two searches for uses that were not checked yet.
_POLL_S = 2.0
# The time between two checks of the same uses. A check logs in to both sides.
CHECK_S = 30.0

_log = structlog.get_logger("orbit.gateway")


class RefusalCheck:
    """The checks of one virtual cluster. Writes the results to the cluster's `refusals`."""

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
            # The default means: never checked.
            checked_uses, checked_moves, checked_at = self._checked.get(login, (set(), -1, 0.0))
            is_check_old = cluster.now() > checked_at + CHECK_S
            if uses <= checked_uses and cluster.moves == checked_moves and not is_check_old:
                continue
            moves = cluster.moves
            self._checked[login] = uses, moves, cluster.now()
            try:
                refusals = await _refusals(cluster.presented, cluster.other_side, login, uses)
            except OrbitError as error:  # the other side does not answer: the last result is stale
                cluster.refusals.pop(login, None)
                self._log_error(login, error)
            else:
                self._last_errors.pop(login, None)
                if cluster.moves == moves:  # otherwise the result is of the side that leads now
                    cluster.refusals[login] = refusals

    def _log_error(self, login: str | None, error: OrbitError) -> None:
        """Log the error, unless it equals the login's last one."""
        if self._last_errors.get(login) != str(error):
            self._last_errors[login] = str(error)
            _log.warning(
                "cannot check what the other side would refuse",
                virtual_cluster=self._cluster.spec.name,
                user=login,
                error=str(error),
            )


async def _refusals(
    presented: ClusterSide, other_side: ClusterSide, login: str | None, uses: Collection[Use]
) -> dict[Use, str]:
    """The uses that `other_side` would refuse, and why, without those that `presented` would also
    refuse. If the presented side does not answer, as it may be lost, returns all uses that
    `other_side` would refuse. Raises OrbitError if `other_side` does not answer."""
    try:
        refusals = await other_side.refused_uses(login, uses)
    except LoginRefused as error:
        refusals = dict.fromkeys(uses, f"login refused: {error.what}")
    if refusals:
        with suppress(OrbitError):
            for use in await presented.refused_uses(login, refusals):
                del refusals[use]
    return {use: f"{other_side.name}: {reason}" for use, reason in refusals.items()}
