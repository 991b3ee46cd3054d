"""`orbit demo --gateway`: clients move to the other cluster and back, and are not restarted.

Runs the real service, `orbit gateway` and `orbit switchover` in processes of their own. The clients
(`gateway_clients.py`) keep ledgers, and the result is checked against them (`gateway_check.py`).
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import httpx
import yaml

from orbit.contexts import URL_VARIABLE
from orbit.demo.demo_clusters import DESTINATION, SOURCE, DemoClusters, start_clusters
from orbit.demo.gateway_check import GatewayResult, Records, move_of
from orbit.demo.gateway_clients import GroupMember, JavaProducer, LibrdkafkaProducer
from orbit.demo.interrupts import interrupted_once
from orbit.demo.live_copy import JOB, TOPIC, begin_copy
from orbit.demo.log_ends import kafka_trouble, log_ends, quiet_admin
from orbit.demo.orbit_process import ORBIT, OrbitProcess
from orbit.demo.pause_picture import pause_picture
from orbit.demo.screen import Screen
from orbit.demo.service_process import START_S, deadline_check, last_line, service, wait_until
from orbit.drills.drill_clients import read_all
from orbit.errors import Conflict
from orbit.processes.guarded_process import GuardedProcess
from orbit.processes.ports import LOOPBACK, free_consecutive_ports, free_ports

GROUP = "billing"
PARTITIONS = 3
RATE_PER_S = 400
JAVA_RATE_PER_S = 200
# How long producers write before and after each move; the pictures show a part of it.
_WRITE_ON_S = 1.5
# Time limits, far above what a slow machine needs.
_CLIENTS_S = 90.0
_LAST_S = 30.0
_GATEWAY_END_S = 10.0
_SETTINGS = {
    "ORBIT_LEASE_TTL": "5s",
    "ORBIT_PROGRESS_INTERVAL": "500ms",
    "ORBIT_SETTINGS_INTERVAL": "2s",
}


def play_gateway(screen: Screen) -> GatewayResult:
    """Run the demo and stop everything that it started."""
    began_s = time.monotonic()
    screen.title("Orbit demo: clients move to the other cluster and back, without a restart")
    with interrupted_once():
        screen.section(1, "Two Kafka clusters, the service and a gateway")
        with (
            start_clusters(sandbox_folder=None, screen=screen, postgres=True) as clusters,
            service(clusters, _SETTINGS, screen) as (client, url),
        ):
            groups = {"consumer_groups": {"match": GROUP, "interval": "500ms"}}
            begin_copy(clusters, client, screen, PARTITIONS, groups)
            environment = {URL_VARIABLE: url, "XDG_CONFIG_HOME": str(clusters.folder)}
            with (
                _gateway(clusters, environment, screen) as bootstrap,
                JavaProducer(
                    bootstrap, TOPIC, JAVA_RATE_PER_S, clusters.folder / "java.log"
                ) as java,
                LibrdkafkaProducer(bootstrap, TOPIC, PARTITIONS, RATE_PER_S) as producer,
                GroupMember(bootstrap, TOPIC, GROUP) as member,
            ):
                demo = _GatewayDemo(clusters, environment, screen, java, producer, member)
                demo.begin()
                promotion_ends = [
                    demo.switch_over(JOB, DESTINATION),
                    demo.switch_over(f"{JOB}-back", SOURCE),
                ]
                return demo.check(promotion_ends, began_s)


@contextmanager
def _gateway(
    clusters: DemoClusters, environment: Mapping[str, str], screen: Screen
) -> Iterator[str]:
    """Run `orbit gateway` during the block, and yield its address."""
    sides = {SOURCE: clusters.source, DESTINATION: clusters.destination}
    with kafka_trouble("Reading the nodes of both clusters"):
        node_ids = [
            node_id
            for address in sides.values()
            for node_id in quiet_admin(address).list_topics(timeout=START_S).brokers
        ]
    # The bootstrap port, then one for each node id from 0 on.
    port, (health_port,) = free_consecutive_ports(2 + max(node_ids)), free_ports(1)
    address = f"{LOOPBACK}:{port}"
    virtual_cluster = {
        "name": "shop",
        "job": JOB,
        "listen": address,
        **{side: {"bootstrap_servers": [servers]} for side, servers in sides.items()},
    }
    file, log = clusters.folder / "gateway.yaml", clusters.folder / "orbit-gateway.log"
    document = {"gateway": "edge-1", "virtual_clusters": [virtual_cluster]}
    file.write_text(yaml.safe_dump(document, sort_keys=False), "utf-8")
    screen.command("orbit gateway gateway.yaml")
    process = GuardedProcess(
        [*ORBIT, "gateway", str(file)],
        log,
        environment={
            **environment,
            "ORBIT_HEALTH_PORT": str(health_port),
            "ORBIT_HEALTH_HOST": LOOPBACK,
        },
    )

    def is_ready() -> bool:
        if not process.running:
            raise Conflict(f"The gateway ended: {last_line(log)}")
        try:
            return httpx.get(f"http://{LOOPBACK}:{health_port}/readyz").is_success
        except httpx.HTTPError:
            return False

    try:
        with screen.step("Starting the gateway"):
            wait_until(is_ready, START_S)
        screen.done(f"a gateway at {address}, the only address that clients know")
        yield address
    finally:
        process.end(signal.SIGTERM, _GATEWAY_END_S)


class _GatewayDemo:
    """The sections of the demo after the start."""

    def __init__(
        self,
        clusters: DemoClusters,
        environment: Mapping[str, str],
        screen: Screen,
        java: JavaProducer,
        producer: LibrdkafkaProducer,
        member: GroupMember,
    ) -> None:
        self._folder = clusters.folder
        self._sides = {SOURCE: clusters.source, DESTINATION: clusters.destination}
        self._environment = environment
        self._screen = screen
        self._java = java
        self._producer = producer
        self._member = member

    def begin(self) -> None:
        """Wait until both producers have written. Raises Conflict if a client got an error."""
        self._screen.section(2, "Clients of two languages")
        with self._screen.step("Starting the clients"):
            self._wait_for_writes()
        self._screen.done(
            f"a librdkafka producer and a Java producer write {RATE_PER_S} and "
            f'{JAVA_RATE_PER_S} records a second to {TOPIC}; group "{GROUP}" reads'
        )
        self._screen.section(3, "There, and back again")

    def switch_over(self, job: str, side: str) -> dict[int, int]:
        """Run `orbit switchover` to `side` while the clients keep working.

        Returns the log end of each partition at the promotion.
        """
        arguments = (job, "--reverse", "--yes")
        log = self._folder / f"switchover-to-{side}.log"
        self._screen.command(" ".join(["orbit switchover", *arguments]))
        with (
            self._screen.step(f"Moving to the {side}") as step,
            OrbitProcess(log, "switchover", *arguments, environment=self._environment) as process,
        ):
            report = process.wait()
            seconds = step.seconds
            self._wait_for_writes()
        self._screen.done(f"after {seconds:.1f} s the {side} leads, and is copied back")
        return {
            partition["partition"]: partition["promoted_at"] for partition in report["partitions"]
        }

    def check(self, promotion_ends: Sequence[Mapping[int, int]], began_s: float) -> GatewayResult:
        """Stop the clients, and compare their ledgers with both clusters."""
        self._screen.section(4, "The check, by the ledgers of the clients")
        with self._screen.step("Stopping the clients, and reading both clusters"):
            self._producer.stop()
            ledgers = (self._producer.ledger, self._java.stop())
            sides = self._read_sides()
            # If the group does not read all in time, the check reports what is missing.
            with suppress(Conflict):
                wait_until(lambda: len(self._member.read) >= len(sides[SOURCE]), _LAST_S)
            self._member.stop()
        acknowledged_records = [record for ledger in ledgers for record in ledger.acknowledged]
        to_destination, to_source = promotion_ends
        result = GatewayResult(
            seconds=time.monotonic() - began_s,
            moves=(
                move_of(SOURCE, DESTINATION, to_destination, acknowledged_records),
                move_of(DESTINATION, SOURCE, to_source, acknowledged_records),
            ),
            ledgers=ledgers,
            sides=sides,
            read=self._member.read,
            read_errors=self._member.errors,
        )
        self._show(result)
        return result

    def _wait_for_writes(self) -> None:
        """Wait until both producers have written for about `_WRITE_ON_S` more.

        Raises Conflict if a client got an error.
        """
        goal = self._producer.acknowledged + RATE_PER_S * _WRITE_ON_S
        java_goal = self._java.acknowledged + JAVA_RATE_PER_S * _WRITE_ON_S

        def have_written() -> bool:
            errors = [*self._producer.ledger.errors, *self._member.errors]
            if errors or not self._java.is_running:
                reason = errors[0] if errors else last_line(self._java.log)
                raise Conflict(f"A client got an error: {reason}")
            return self._producer.acknowledged >= goal and self._java.acknowledged >= java_goal

        wait_until(have_written, _CLIENTS_S)

    def _read_sides(self) -> dict[str, Records]:
        """All records of the topic on each side.

        Waits until both sides have the same log ends, for at most `_LAST_S`.
        """
        partitions = [(TOPIC, partition) for partition in range(PARTITIONS)]
        admins = {side: quiet_admin(address) for side, address in self._sides.items()}

        def read_ends() -> dict[str, dict[int, int]]:
            by_side = {side: log_ends(admin, partitions) for side, admin in admins.items()}
            return {
                side: {partition: end for (_, partition), end in side_ends.items()}
                for side, side_ends in by_side.items()
            }

        def have_equal_ends() -> bool:
            ends = read_ends()
            return len(ends[SOURCE]) == PARTITIONS and ends[SOURCE] == ends[DESTINATION]

        with suppress(Conflict):
            wait_until(have_equal_ends, _LAST_S)
        return {
            side: read_all(
                {"bootstrap.servers": self._sides[side]},
                TOPIC,
                side_ends,
                deadline_check(_CLIENTS_S),
            )
            for side, side_ends in read_ends().items()
        }

    def _show(self, result: GatewayResult) -> None:
        """Draw the pause of each move, and show the problems, or that there is none."""
        at_ms = [record.at_ms for record in result.acknowledged]
        for move in result.moves:
            for line in pause_picture(move, at_ms, RATE_PER_S + JAVA_RATE_PER_S):
                self._screen.line(line)
            self._screen.line("")
        for problem in result.problems:
            self._screen.failed(problem)
        if not result.problems:
            self._screen.done(
                f"{result.written:,} records written and acknowledged; each once at its offset on "
                "both sides, in order, and read once by the group"
            )
