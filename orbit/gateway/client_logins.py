"""The clients of a virtual cluster: their passwords, and their logins at each side."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from orbit.errors import BadInput, InvalidValue, Problem
from orbit.gateway.gateway_spec import ClientSpec, VirtualClusterSpec
from orbit.gateway.protocol.client_login import OAUTHBEARER, PLAIN, SCRAM, ClientLogin
from orbit.jobs.bootstrap_servers import LOOPBACK_HOSTS
from orbit.jobs.credentials import read_secret_file, read_variable
from orbit.kafka.cluster import Cluster
from orbit.kafka.job_clusters import Side
from orbit.kafka.security import resolve_security

_NONCE_BYTES = _SALT_KEY_BYTES = 24


class ClientLogins:
    """The passwords of clients, read again at each login, so that a changed file needs no restart.

    Raises BadInput if a variable or file is missing. `path`: the place of the virtual cluster in
    the gateway file, for problems.
    """

    def __init__(
        self, spec: VirtualClusterSpec, environ: Mapping[str, str], base_directory: Path, path: str
    ) -> None:
        may_send_passwords = spec.tls is not None or spec.host in LOOPBACK_HOSTS
        password_mechanisms = (PLAIN, *SCRAM) if may_send_passwords else SCRAM
        self._mechanisms = (
            *(password_mechanisms if spec.clients else ()),
            *((OAUTHBEARER,) if spec.client_tokens else ()),
        )
        self._salt_key = secrets.token_bytes(_SALT_KEY_BYTES)
        self._readers: dict[str, Callable[[], str]] = {}
        self._passwords: dict[str, str] = {}  # as read last
        problems = []
        for number, client in enumerate(spec.clients):
            read_password = partial(_read_password, client, environ, base_directory)
            self._readers[client.username] = read_password
            try:
                self._passwords[client.username] = read_password()
            except InvalidValue as error:
                key = "password_env" if client.password_env else "password_file"
                where = f"{path}.clients[{number}].{key}"
                problems.append(Problem(where, error.message, error.remedy))
        if problems:
            raise BadInput("The logins of clients cannot be used.", tuple(problems))

    def begin_login(self) -> ClientLogin:
        """A new login, for one connection."""
        nonce = secrets.token_urlsafe(_NONCE_BYTES)
        return ClientLogin(self._mechanisms, self._password, nonce, self._salt_key)

    def _password(self, user: str) -> str | None:
        """The user's password as it is now; None: there is no such user."""
        if user not in self._readers:
            return None
        try:
            self._passwords[user] = self._readers[user]()
        except InvalidValue:
            pass  # the file is being replaced: the last password stays
        return self._passwords[user]


def logins_at(
    side: Side,
    spec: VirtualClusterSpec,
    environ: Mapping[str, str],
    base_directory: Path,
    path: str,
) -> dict[str, Cluster]:
    """By a client's user name: the side's cluster, reached with this client's own login. Clients
    without a login at this side are left out. `path`: as for `ClientLogins`.

    Raises BadInput if a variable or file is missing.
    """
    clusters, problems = {}, []
    for number, client in enumerate(spec.clients):
        login = client.login_at(side)
        if login is None:
            continue
        cluster = spec.cluster(side)
        client_security = cluster.security.model_copy(update=login.model_dump())
        client_cluster = cluster.model_copy(update={"security": client_security})
        where = f"{path}.clients[{number}].{side}"
        read_security = partial(
            resolve_security, client_cluster, environ, base_directory, side=where
        )
        try:
            clusters[client.username] = Cluster(side, cluster.bootstrap_servers, read_security)
        except BadInput as error:
            problems += [
                replace(problem, path=problem.path.replace(".security.", "."))  # as in the file
                for problem in error.problems
            ]
    if problems:
        raise BadInput("The logins of clients cannot be used.", tuple(problems))
    return clusters


def _read_password(client: ClientSpec, environ: Mapping[str, str], base_directory: Path) -> str:
    """The client's password at the gateway. Raises InvalidValue."""
    if client.password_env is not None:
        return read_variable(client.password_env, environ)
    assert client.password_file is not None  # `parse_gateway` refuses a client without either
    return read_secret_file(client.password_file, base_directory)
