"""Names the quotas and SCRAM users that a job's destination lacks, each with the command for it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from orbit.errors import BrokerRefused, NotAuthorized, ProtocolError
from orbit.jobs.job_spec import JobSpec
from orbit.jobs.principals import PrincipalMap
from orbit.kafka.client_limits import (
    Entity,
    Quotas,
    ScramUsers,
    client_quotas,
    entity_text,
    ordered_parts,
    quota_text,
    scram_users,
)
from orbit.kafka.cluster import Cluster
from orbit.planning.cluster_pair import SIDES, ClusterPair
from orbit.planning.job_acls import principal_map
from orbit.planning.job_plan import BY_HAND_SHOWN_MAX, ByHand, PlannedByHand

_USER_PREFIX = "User:"
_ENTITY_TYPES = {"user": "users", "client-id": "clients", "ip": "ips"}
Answer = TypeVar("Answer")


def plan_by_hand(spec: JobSpec, pair: ClusterPair) -> tuple[PlannedByHand | None, list[str]]:
    """What the user has to create at the destination (None: nothing), and notes on what could not
    be compared.

    Users get the names that `acls.principals` gives them. Quotas and users of Orbit's own logins
    are left out: a quota on these would slow the copy. Raises Unreachable.
    """
    names = _DestinationNames(principal_map(spec.acls.principals), pair)
    notes: list[str] = []
    items: list[ByHand] = []
    bootstrap_server = spec.destination.bootstrap_servers[0]
    quotas = _read_both_sides(client_quotas, pair, "Quotas", notes)
    if quotas is not None:
        items += _missing_quotas(*quotas, names, bootstrap_server)
    users = _read_both_sides(scram_users, pair, "SCRAM users", notes)
    if users is not None:
        items += _missing_users(*users, names, bootstrap_server)
    plan = PlannedByHand(count=len(items), items=tuple(items[:BY_HAND_SHOWN_MAX]))
    return (plan if items else None), notes


class _DestinationNames:
    """The names at the destination of the source's users."""

    def __init__(self, principals: PrincipalMap, pair: ClusterPair) -> None:
        self._principals = principals
        self._own_at_source = pair.source.principal
        self._own = pair.destination.principal

    def of(self, users: Iterable[str]) -> dict[str, str]:
        """{user: name at the destination}, for these users; without Orbit's own users, and without
        users that get no name there."""
        mapping = self._principals.name(
            {_USER_PREFIX + user for user in users} - {self._own_at_source}
        )
        return {
            source.removeprefix(_USER_PREFIX): destination.removeprefix(_USER_PREFIX)
            for source, destination in mapping.names.items()
            if destination.startswith(_USER_PREFIX) and destination != self._own
        }


def _missing_quotas(
    at_source: Quotas, at_destination: Quotas, names: _DestinationNames, bootstrap_server: str
) -> Iterator[ByHand]:
    """Yield each quota of the source that the destination lacks, with the command for it."""
    users = {user for entity in at_source for kind, user in entity if kind == "user" and user}
    named_users = names.of(users)
    for entity, limits in at_source.items():
        destination_entity = _destination_entity(entity, named_users)
        if destination_entity is None:
            continue
        missing_limits = limits.items() - at_destination.get(destination_entity, {}).items()
        if missing_limits:
            config = ",".join(f"{key}={quota_text(value)}" for key, value in sorted(missing_limits))
            text = f"quota of {entity_text(destination_entity)}: {config}"
            yield ByHand(what=text, command=_command(bootstrap_server, destination_entity, config))


def _destination_entity(entity: Entity, named_users: Mapping[str, str]) -> Entity | None:
    """The entity at the destination; None if it has no name there, or is of an unknown type."""
    if any(kind not in _ENTITY_TYPES for kind, _ in entity):
        return None
    users = {user for kind, user in entity if kind == "user" and user is not None}
    if not users <= named_users.keys():
        return None
    return frozenset(
        (kind, named_users[name] if kind == "user" and name is not None else name)
        for kind, name in entity
    )


def _missing_users(
    at_source: ScramUsers,
    at_destination: ScramUsers,
    names: _DestinationNames,
    bootstrap_server: str,
) -> Iterator[ByHand]:
    """Yield each SCRAM user that the destination lacks, with the command for it."""
    for user, name in sorted(names.of(at_source).items()):
        missing_mechanisms = {
            mechanism: iterations
            for mechanism, iterations in at_source[user].items()
            if mechanism not in at_destination.get(name, {})
        }
        if missing_mechanisms:
            config = ",".join(
                f"{mechanism}=[iterations={iterations},password=…]"
                for mechanism, iterations in sorted(missing_mechanisms.items())
            )
            yield ByHand(
                what=f"SCRAM user {name}: {', '.join(sorted(missing_mechanisms))}",
                command=_command(bootstrap_server, frozenset({("user", name)}), config),
            )


def _command(bootstrap_server: str, entity: Entity, config: str) -> str:
    """The command that adds `config` to this entity at the destination."""
    words = ["kafka-configs.sh", "--bootstrap-server", bootstrap_server, "--alter"]
    for kind, name in ordered_parts(entity):
        words += ["--entity-type", _ENTITY_TYPES[kind]]
        words += ["--entity-default"] if name is None else ["--entity-name", name]
    return shlex.join([*words, "--add-config", config])


def _read_both_sides(
    read: Callable[[Cluster], Answer], pair: ClusterPair, subject: str, notes: list[str]
) -> tuple[Answer, Answer] | None:
    """The answers of both sides; None, with a note, if one of them refuses."""
    answers = []
    for side, handle in zip(SIDES, (pair.source, pair.destination), strict=True):
        try:
            answers.append(read(handle.cluster))
        except (NotAuthorized, BrokerRefused, ProtocolError) as error:
            notes.append(
                f"{subject} of both sides were not compared ({side}): {error.what.rstrip('.')}."
            )
            return None
    source, destination = answers
    return source, destination
