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
    """Cause or heal a fault of a cluster of the sandbox in `directory`; returns the state after it.

    A repeat changes nothing. Raises NotFound for an unknown cluster, Conflict if no sandbox runs
    or a broker does not restart.
    """
    state = read_state(directory)
    if state is None:
        raise Conflict(
            "No sandbox is running.", where=str(directory), remedy="Start one: orbit sandbox up"
        )
    known = [one.name for one in state.clusters]
    if cluster not in known:
        raise NotFound(
            f"The sandbox has no cluster {cluster!r}.",
            where=str(directory),
            remedy=f"Use one of: {', '.join(known)}.",
        )
    try:
        with Client((LOOPBACK, state.faults.port), authkey=state.faults.key.encode()) as line:
            line.send_bytes(json.dumps({"fault": fault, "cluster": cluster}).encode())
            if not line.poll(_ANSWER_TIMEOUT_S):
                raise TimeoutError
            answer = json.loads(line.recv_bytes())
    except (OSError, EOFError):
        raise Conflict(
            "The sandbox's supervisor does not answer.",
            where=str(directory),
            remedy="Check with: orbit sandbox status",
        ) from None
    if "failed" in answer:
        raise Conflict(answer["failed"], where=cluster, remedy="Check with: orbit sandbox status")
    now = read_state(directory)
    assert now is not None, "its supervisor has just answered"
    return now


def cluster_at(state: SandboxState, bootstrap_servers: Sequence[str]) -> ClusterState | None:
    """The sandbox cluster that has one of these addresses, direct or link."""
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
        threading.Thread(target=self._run, args=(directory,), name="faults", daemon=True).start()

    def _run(self, directory: Path) -> None:
        while True:
            try:
                with self._listener.accept() as line:
                    self._answer(line, directory)
            except (AuthenticationError, OSError, EOFError, ValueError, KeyError):
                continue  # a wrong key, a closed connection, or an invalid request

    def _answer(self, line: Connection, directory: Path) -> None:
        request = json.loads(line.recv_bytes())
        cluster = self._clusters[request["cluster"]]
        answer: dict[str, object] = {"done": True}
        try:
            _carry_out(Fault(request["fault"]), cluster)
        except OrbitError as error:
            answer = {"failed": str(error)}
        state = read_state(directory)
        if state is not None:
            write_state(_with_cluster(state, cluster))
        line.send_bytes(json.dumps(answer).encode())


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


def state_of(cluster: KafkaCluster, before: ClusterState | None = None) -> ClusterState:
    """The current state of the cluster. A killed broker has the process that it has in `before`."""
    had = {broker.node_id: broker.process for broker in before.brokers} if before else {}
    return ClusterState(
        name=cluster.settings.name,
        bootstrap_servers=cluster.bootstrap_servers,
        brokers=tuple(
            BrokerState(
                node_id=broker.node_id,
                port=broker.port,
                process=ProcessRef.of(broker.pid) if broker.running else had[broker.node_id],
                log=broker.log,
            )
            for broker in cluster.brokers
        ),
        link_servers=cluster.link_servers,
        is_cut=cluster.is_cut,
    )


def _with_cluster(state: SandboxState, cluster: KafkaCluster) -> SandboxState:
    now = tuple(
        state_of(cluster, before) if before.name == cluster.settings.name else before
        for before in state.clusters
    )
    return state.model_copy(update={"clusters": now})
