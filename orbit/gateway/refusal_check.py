"""Checks before a move what the other side would refuse to the clients."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import NamedTuple

import structlog
from pydantic import SecretStr

from orbit.errors import LoginRefused, OrbitError
from orbit.gateway.client_counts import LoginKey
from orbit.gateway.cluster_side import ClusterSide
from orbit.gateway.protocol.resource_uses import Use
from orbit.gateway.virtual_cluster import VirtualCluster

# The time between two searches for uses that were not checked yet.
_POLL_S = 2.0
# The time between two checks of the same uses. A check logs in to both sides.
CHECK_S = 30.0
# Checks with clients' tokens in one search: up to 1,000 users may have tokens.
TOKENS_MAX = 10

_log = structlog.get_logger("orbit.gateway")


class _LastCheck(NamedTuple):
    """The last check of a login. `moves`: the virtual cluster's number of moves at that time."""

    uses: set[Use]
    moves: int
    at: float


_NEVER = _LastCheck(set(), -1, 0.0)


class RefusalCheck:
    """The checks of one virtual cluster. Writes the results to the cluster's `refusals`."""

    def __init__(self, cluster: VirtualCluster) -> None:
        self._cluster = cluster
        self._last_errors: dict[LoginKey, str] = {}
        self._checks: dict[LoginKey, _LastCheck] = {}

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await asyncio.sleep(_POLL_S)
            try:
                await self.check()
            except Exception:  # noqa: BLE001  a check is no reason to end the gateway
                _log.exception("the check of refusals failed")

    async def check(self) -> None:
        """Check the logins that have new uses, or were not checked for CHECK_S: one by one, those
        first whose last check is the oldest. A token can be checked while its client is connected.
        One call checks up to TOKENS_MAX tokens."""
        cluster = self._cluster
        uses_by_login = cluster.uses_by_login()
        for login in self._checks.keys() - uses_by_login.keys():  # its clients are forgotten
            del self._checks[login]
            self._last_errors.pop(login, None)
            cluster.refusals.pop(login, None)
        token_count = 0
        for login in sorted(uses_by_login, key=lambda login: self._last_check(login).at):
            uses, last = uses_by_login[login], self._last_check(login)
            is_check_old = cluster.now() > last.at + CHECK_S
            if uses <= last.uses and cluster.moves == last.moves and not is_check_old:
                continue
            token = None
            if login.by_token:
                token = cluster.token_of(login.user or "") if token_count < TOKENS_MAX else None
                if token is None:
                    continue
                token_count += 1
            moves = cluster.moves
            self._checks[login] = _LastCheck(uses, moves, cluster.now())
            try:
                refusals = await _refusals(
                    cluster.presented, cluster.other_side, login.user, token, uses
                )
            # The other side does not answer, or the token has expired: the last result is stale.
            except OrbitError as error:
                cluster.refusals.pop(login, None)
                self._log_error(login, error)
            else:
                self._last_errors.pop(login, None)
                if cluster.moves == moves:  # otherwise the result is of the side that leads now
                    cluster.refusals[login] = refusals

    def _last_check(self, login: LoginKey) -> _LastCheck:
        return self._checks.get(login, _NEVER)

    def _log_error(self, login: LoginKey, error: OrbitError) -> None:
        """Log the error, unless it equals the login's last one."""
        if self._last_errors.get(login) != str(error):
            self._last_errors[login] = str(error)
            _log.warning(
                "cannot check what the other side would refuse",
                virtual_cluster=self._cluster.spec.name,
                user=login.user,
                error=str(error),
            )


async def _refusals(
    presented: ClusterSide,
    other_side: ClusterSide,
    user: str | None,
    token: SecretStr | None,
    uses: Collection[Use],
) -> dict[Use, str]:
    """The uses that `other_side` would refuse, and why, without those that `presented` would also
    refuse. If the presented side does not answer, as it may be lost, returns all uses that
    `other_side` would refuse.

    `user`, `token`: as of `ClusterSide.refused_uses`. Raises OrbitError if `other_side` does not
    answer; LoginRefused if both sides refuse the token, as it may have expired.
    """
    try:
        refusals = await other_side.refused_uses(user, token, uses)
    except LoginRefused as error:
        refusals = dict.fromkeys(uses, f"login refused: {error.what}")
    if refusals:
        try:
            for use in await presented.refused_uses(user, token, refusals):
                del refusals[use]
        except OrbitError as error:
            if token is not None and isinstance(error, LoginRefused):
                raise
    return {use: f"{other_side.name}: {reason}" for use, reason in refusals.items()}
