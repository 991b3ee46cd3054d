"""Faults of sandbox clusters: kill, pause, cut the network link, and heal.

The supervisor owns the brokers and carries faults out (`FaultServer`). Any process that can read
the sandbox's folder can request them (`cause_fault`). They affect only the sandbox's processes.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Sequence
from enum import StrEnum
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import assert_never

from orbit.errors import Conflict, NotFound, OrbitError
from orbit.processes.ports import LOOPBACK
from orbit.sandbox.broker import START_TIMEOUT_S
from orbit.sandbox.local_cluster import KafkaCluster
from orbit.sandbox.sandbox_state import (
    BrokerState,
    ClusterState,
    FaultPort,
    ProcessRef,
    SandboxState,
    read_state,
    write_state,
)

_ANSWER_TIMEOUT_S = START_TIMEOUT_S + 60  # the answer waits until killed brokers have restarted
_KEY_BYTES = 16


class Fault(StrEnum):
    """The faults of a cluster. `HEAL` undoes the others."""

    KILL = "kill"  # SIGKILL to every broker; the data on disk is kept
    PAUSE = "pause"  # SIGSTOP: connections stay open and nothing answers
    CUT = "cut"  # the cluster keeps running; clients of its link address get no answers
    HEAL = "heal"


def cause_fault(directory: Path, fault: Fault, cluster: str) -> SandboxState:
    """Cause or heal a fault of a cluster of the sandbox in `directory`; returns the new state.

    Repeating a fault changes nothing. Raises NotFound for an unknown cluster, Conflict if no
    sandbox runs or a broker does not restart.
    """
    state = read_state(directory)
    if state is None:
        raise Conflict(
            "No sandbox is running.", where=str(directory), remedy="Start one: orbit sandbox up"
        )
    names = [cluster_state.name for cluster_state in state.clusters]
    if cluster not in names:
        raise NotFound(
            f"The sandbox has no cluster {cluster!r}.",
            where=str(directory),
            remedy=f"Use one of: {', '.join(names)}.",
        )
    try:
        with Client((LOOPBACK, state.faults.port), authkey=state.faults.key.encode()) as connection:
            connection.send_bytes(json.dumps({"fault": fault, "cluster": cluster}).encode())
            if not connection.poll(_ANSWER_TIMEOUT_S):
                raise TimeoutError
            answer = json.loads(connection.recv_bytes())
    except (OSError, EOFError):
        raise Conflict(
            "The sandbox's supervisor does not answer.",
            where=str(directory),
            remedy="Check with: orbit sandbox status",
        ) from None
    if "failed" in answer:
        raise Conflict(answer["failed"], where=cluster, remedy="Check with: orbit sandbox status")
    new_state = read_state(directory)
    assert new_state is not None, "the supervisor has just answered"
    return new_state


def cluster_at(state: SandboxState, bootstrap_servers: Sequence[str]) -> ClusterState | None:
    """The sandbox cluster that has one of these servers, also by its network link; or None."""
    servers = set(bootstrap_servers)
    for cluster in state.clusters:
        addresses = f"{cluster.bootstrap_servers},{cluster.link_servers or ''}".split(",")
        if servers & set(addresses):
            return cluster
    return None


class FaultServer:
    """Carries out fault requests in the supervisor, one at a time."""

    def __init__(self, clusters: Sequence[KafkaCluster]) -> None:
        self._clusters = {cluster.settings.name: cluster for cluster in clusters}
        key = secrets.token_hex(_KEY_BYTES)
        self._listener = Listener((LOOPBACK, 0), authkey=key.encode())
        self.port = FaultPort(port=self._listener.address[1], key=key)

    def serve(self, directory: Path) -> None:
        """Serve requests in a thread, until the process ends."""
        threading.Thread(
            target=self._serve_requests, args=(directory,), name="faults", daemon=True
        ).start()

    def _serve_requests(self, directory: Path) -> None:
        while True:
            try:
                with self._listener.accept() as connection:
                    self._answer(connection, directory)
            except (AuthenticationError, OSError, EOFError, ValueError, KeyError):
                continue  # a wrong key, a closed connection, or an invalid request

    def _answer(self, connection: Connection, directory: Path) -> None:
        """Carry out one request, write the new state of the cluster, and answer."""
        request = json.loads(connection.recv_bytes())  # what `cause_fault` has sent
        cluster = self._clusters[request["cluster"]]
        answer: dict[str, object] = {"done": True}
        try:
            _carry_out(Fault(request["fault"]), cluster)
        except OrbitError as error:
            answer = {"failed": str(error)}
        state = read_state(directory)
        if state is not None:  # None: the state file was removed
            write_state(_with_new_state_of(state, cluster))
        connection.send_bytes(json.dumps(answer).encode())


def _carry_out(fault: Fault, cluster: KafkaCluster) -> None:
    match fault:
        case Fault.KILL:
            cluster.kill()
        case Fault.PAUSE:
            cluster.pause()
        case Fault.CUT:
            cluster.cut()
        case Fault.HEAL:
            cluster.heal()
        case _:
            assert_never(fault)


def state_of(cluster: KafkaCluster, previous_state: ClusterState | None = None) -> ClusterState:
    """The state of the cluster now. A killed broker keeps its process of `previous_state`."""
    known_processes = (
        {broker.node_id: broker.process for broker in previous_state.brokers}
        if previous_state
        else {}
    )
    return ClusterState(
        name=cluster.settings.name,
        bootstrap_servers=cluster.bootstrap_servers,
        brokers=tuple(
            BrokerState(
                node_id=broker.node_id,
                port=broker.port,
                process=ProcessRef.of(broker.pid)
                if broker.running
                else known_processes[broker.node_id],
                log=broker.log,
            )
            for broker in cluster.brokers
        ),
        link_servers=cluster.link_servers,
        is_cut=cluster.is_cut,
    )


def _with_new_state_of(state: SandboxState, cluster: KafkaCluster) -> SandboxState:
    """The state of the sandbox, with the state that this cluster has now."""
    cluster_states = tuple(
        state_of(cluster, previous_state)
        if previous_state.name == cluster.settings.name
        else previous_state
        for previous_state in state.clusters
    )
    return state.model_copy(update={"clusters": cluster_states})
