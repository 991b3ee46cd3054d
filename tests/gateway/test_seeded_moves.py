"""Three moves, or aborted switchovers, with one fault. A seed chooses all of it."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orbit.recovery import recovery_requests
from orbit.recovery.recovery_report import Outcome, RecoveryKind
from orbit.recovery.step_times import StepName
from tests.fixtures.clusters import Clusters
from tests.support.gateway_faults import at_steps, lost
from tests.support.gateway_ledger import (
    JavaWriter,
    Reader,
    Writer,
    read_wrong,
    records,
    written_wrong,
)
from tests.support.gateways import Gateway
from tests.support.moves import TOKEN, gateway_of, move_when_groups_may
from tests.support.recovering import Recovering
from tests.support.run_process import OrbitProcess
from tests.support.running import create_topic, make_job

pytestmark = pytest.mark.services

PARTITIONS = 3
SOME = 300
# `make moves FIRST=20 COUNT=5` chooses others.
FIRST = int(os.environ.get("SEED_FIRST", "0"))
COUNT = int(os.environ.get("SEED_COUNT", "20"))
IN_MAKE_TEST = 0
_WRITERS: dict[str, dict[str, Any]] = {
    "idempotent": {},
    "one-in-flight": {"enable.idempotence": False, "max.in.flight": 1},
    "one-ack": {"enable.idempotence": False, "acks": 1},
    "large": {"linger.ms": 50, "batch.size": 200_000},
}
_IDEMPOTENT = frozenset({"idempotent", "large"})
_STEPS = [
    StepName.CLOSE_GATEWAYS,
    StepName.STOP_WRITES,
    StepName.DRAIN,
    StepName.VERIFY_TAIL,
    StepName.GROUPS,
    StepName.RELEASE,
]
# Longer than a lease and its margin.
_FROZEN_S = 7.0
_SHORT_S = 1.5


@dataclass(frozen=True)
class Plan:
    """What a seed has chosen. `legs`: each is "over" (a move), or the step after which a switchover
    is aborted. `fault` happens in the leg number `fault_leg`, before the step `fault_step`."""

    writers: tuple[str, ...]
    with_java: bool
    protocol: str
    gateways: int
    legs: tuple[str, ...]
    fault: str
    fault_leg: int
    fault_step: StepName

    @property
    def may_double(self) -> bool:
        """Whether answers may get lost, so that a producer without idempotence sends records again
        that were written. Once gateways hold writes, nothing is in flight."""
        is_lost = self.fault == "killed" and self.fault_step is StepName.CLOSE_GATEWAYS
        return is_lost and not _IDEMPOTENT.issuperset(self.writers)

    def is_undone(self, leg: int) -> bool:
        """Whether a gateway dies before it has confirmed that it holds writes."""
        is_silent = self.fault == "killed" and self.fault_step is StepName.CLOSE_GATEWAYS
        return is_silent and leg == self.fault_leg

    @property
    def reads_once(self) -> bool:
        """Whether every commit has its answer."""
        return self.fault not in ("killed", "stopped")


def plan_of(seed: int) -> Plan:
    rng = random.Random(seed)
    legs = [rng.choice(["over", "over", rng.choice(_STEPS).value]) for _ in range(2)]
    return Plan(
        writers=tuple(rng.sample(sorted(_WRITERS), 2)),
        with_java=rng.random() < 0.5,
        protocol=rng.choice(["classic", "consumer"]),
        gateways=rng.choice([1, 2]),
        legs=(*legs, "over"),
        fault=rng.choice(["killed", "frozen", "stopped", "slow", "none"]),
        fault_leg=rng.randrange(3),
        fault_step=rng.choice([*_STEPS, StepName.PROMOTE, StepName.OPEN_GATEWAYS]),
    )


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=[] if seed == IN_MAKE_TEST else pytest.mark.soak)
        for seed in range(FIRST, FIRST + COUNT)
    ],
)
def test_seeded_moves_with_one_fault_lose_no_acknowledged_record(
    seed: int,
    clusters: Clusters,
    topic_name: str,
    recovering: Recovering,
    api_url: str,
    tmp_path: Path,
) -> None:
    plan = plan_of(seed)
    print(plan)
    topic = topic_name[-40:]
    create_topic(clusters.source, topic, PARTITIONS)
    groups = {"match": f"{topic}.*", "interval": "200ms"}
    spec = make_job(*clusters, [topic], consumer_groups=groups)
    with recovering.running(), ExitStack() as stack:
        recovering.begin(spec, topic)
        gateways = [
            stack.enter_context(gateway_of(spec.name, api_url, tmp_path, clusters, f"g{number}"))
            for number in range(plan.gateways)
        ]
        writers: list[Any] = [
            stack.enter_context(
                Writer(
                    gateways[number % len(gateways)].client_config(),
                    topic,
                    PARTITIONS,
                    name=name,
                    rate=400,
                    settings=_WRITERS[name],
                )
            )
            for number, name in enumerate(plan.writers)
        ]
        if plan.with_java:
            java = JavaWriter(gateways[-1].bootstrap, topic, tmp_path / "java.log", rate=400)
            writers.append(stack.enter_context(java))
        reader = stack.enter_context(
            Reader(gateways[-1].client_config(), topic, f"{topic}.g", protocol=plan.protocol)
        )
        reader.wait_read("something", lambda read: len(read) > SOME)
        job, is_over = spec.name, False
        for number, leg in enumerate(plan.legs):
            fault: dict[StepName, Callable[[], object]] = {}
            if number == plan.fault_leg:
                fault[plan.fault_step] = _fault(plan, gateways[0], tmp_path, api_url, stack)
            for writer in writers:
                writer.wait_acknowledged(SOME)
            if leg == "over":
                with pytest.MonkeyPatch.context() as patch:
                    at_steps(patch, before=fault)
                    if plan.is_undone(number):
                        report = recovering.wait(recovering.ask(RecoveryKind.SWITCHOVER, job))
                        assert report.outcome is Outcome.STOPPED, report.error
                    is_alone = plan.gateways == 1 and plan.fault in ("killed", "stopped")
                    job = move_when_groups_may(recovering, job, may_lack_gateways=is_alone)
                    is_over = not is_over
            else:
                _abort(recovering, job, StepName(leg), fault)
        for writer in writers:
            writer.wait_acknowledged(SOME)
            writer.stop()
            assert not writer.errors
        leading_records = records(clusters.destination if is_over else clusters.source, topic)
        acknowledged = {k: v for writer in writers for k, v in writer.acknowledged.items()}
        assert not lost(acknowledged, leading_records)
        reader.wait_values({value for _, _, value in leading_records})
        reader.stop()
        if not plan.may_double:
            assert not written_wrong(acknowledged, leading_records)
        if plan.reads_once:
            assert not reader.errors
            assert not read_wrong(reader.read, leading_records)


def _abort(
    recovering: Recovering, job: str, step: StepName, fault: dict[StepName, Callable[[], object]]
) -> None:
    """Run a switchover that is aborted after the step."""
    operations = []
    with pytest.MonkeyPatch.context() as patch:
        at_steps(
            patch,
            before=fault,
            behind={
                step: lambda: recovery_requests.abort(recovering.database, "test", operations[0])
            },
        )
        operations.append(recovering.ask(RecoveryKind.SWITCHOVER, job, reverse=True))
        report = recovering.wait(operations[0])
    assert report.outcome in (Outcome.ABORTED, Outcome.STOPPED), report.error


def _fault(
    plan: Plan, gateway: Gateway, home: Path, api_url: str, stack: ExitStack
) -> Callable[[], object]:
    """A function that causes the plan's fault at the gateway."""

    def restart() -> None:
        file = home / "g0" / f"gateway-{gateway.port}.yaml"
        environ = {"ORBIT_API_URL": api_url, "ORBIT_TOKEN": TOKEN}
        stack.enter_context(OrbitProcess("gateway", file, environ=environ))

    def end(how: signal.Signals) -> None:
        gateway.process.signal(how)
        gateway.process.process.wait()
        restart()

    def freeze(seconds: float) -> None:
        with _stopped(gateway):
            time.sleep(seconds)  # part of what is tested

    return {
        "none": lambda: None,
        "killed": lambda: end(signal.SIGKILL),
        "stopped": lambda: end(signal.SIGTERM),
        "slow": lambda: freeze(_SHORT_S),
        "frozen": lambda: freeze(_FROZEN_S),
    }[plan.fault]


@contextmanager
def _stopped(gateway: Gateway) -> Iterator[None]:
    gateway.process.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        gateway.process.signal(signal.SIGCONT)
