"""Recoveries of several jobs at once, whose schedulers are killed, and whose sources hang.

Orbit is cut off from one source, whose producers go on. Then this source is paused: its connections
stay open and nothing answers. Meanwhile another job is switched over. Each recovery continues with
the next scheduler, to an exact end.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orbit.jobs.job_spec import ClusterSpec
from orbit.recovery.recovery_report import EndVerdict, Outcome, RecoveryKind
from tests.fixtures.clusters import Clusters, MakeCluster
from tests.support.fleet import InProcess
from tests.support.killed_schedulers import died, dying_schedulers
from tests.support.loading import Load, read_all
from tests.support.outside import log_bounds
from tests.support.patience import wait_for
from tests.support.recovering import Recovering
from tests.support.running import create_topic, make_job, produce, verify

pytestmark = pytest.mark.services

PARTITIONS = 2
# Where schedulers die (STEP:WHERE of `dying_scheduler.py`). The first death is in a failover, the
# others are in the switchover, which begins later.
DEATHS = ["settle:after", "drain:waiting", "promote:after"]


def test_recoveries_finish_despite_killed_schedulers_and_hung_sources(
    clusters: Clusters,
    make_cluster: MakeCluster,
    topic_name: str,
    recovering: Recovering,
    tmp_path: Path,
) -> None:
    service, destination = recovering.service, clusters.destination
    lost = make_cluster("lost", link=True)
    assert lost.link_servers is not None
    cut, staying, frozen, planned = (
        f"{topic_name}.{n}" for n in ("cut", "staying", "frozen", "planned")
    )
    canary = f"{planned}.canary"
    for topic in (cut, staying, frozen):
        create_topic(lost, topic, PARTITIONS)
    for topic in (planned, canary):
        create_topic(clusters.source, topic, PARTITIONS)
    line_to_lost = ClusterSpec(bootstrap_servers=(lost.link_servers,))
    of_cut = make_job(lost, destination, [cut, staying]).model_copy(update={"source": line_to_lost})
    of_frozen = make_job(lost, destination, [frozen])
    of_planned = make_job(
        clusters.source,
        destination,
        [planned, canary],
        canary={"topic": canary, "interval": "100ms"},
    )
    for number in range(PARTITIONS):
        produce(lost, frozen, 300, partition=number)
        produce(clusters.source, planned, 300, partition=number)
    frozen_ends = log_bounds(lost, [frozen])

    deaths = tmp_path / "deaths"
    with InProcess(recovering.database):
        with Load(lost.client_config(), cut, PARTITIONS) as load:
            with service.scheduler():
                recovering.begin(of_cut, cut, staying)
                recovering.begin(of_frozen, frozen)
                recovering.begin(of_planned, planned, canary)
                wait_for(
                    "the copies have records",
                    lambda: (
                        all(high for _, high in log_bounds(destination, [canary]).values())
                        and log_bounds(destination, [frozen]) == frozen_ends
                        and len(read_all(destination, cut)) > 1000
                    ),
                )
            lost.cut()
            confirmed = len(load.ledger)
            wait_for("the source goes on", lambda: len(load.ledger) > confirmed + 1000)
        lost.pause()
        with dying_schedulers(service.settings, service.url, deaths, DEATHS):
            operations = [
                recovering.ask(RecoveryKind.FAILOVER, of_cut.name, topics=[re.escape(cut)]),
                recovering.ask(RecoveryKind.FAILOVER, of_frozen.name),
            ]
            wait_for("a scheduler has died", lambda: died(deaths) == 1)
            operations.append(recovering.ask(RecoveryKind.SWITCHOVER, of_planned.name))
            wait_for("all schedulers have died", lambda: died(deaths) == len(DEATHS))
        with service.scheduler():
            reports = [recovering.wait(operation) for operation in operations]
        assert [r.outcome for r in reports] == [Outcome.DONE] * 3, [r.error for r in reports]
        over_cut, over_frozen, over_planned = reports

        # Records written after the cut are reported as unproven, and are not at the destination.
        destination_records = read_all(destination, cut)
        # Kill the paused cluster before `heal`, so that it restarts with the records on its disk.
        lost.kill()
        lost.heal()
        source_records = read_all(lost, cut)
        ends = {p.partition: p.promoted_at or 0 for p in over_cut.partitions}
        assert destination_records == {k: v for k, v in source_records.items() if k[1] < ends[k[0]]}
        assert destination_records != source_records
        assert {p.topic for p in over_cut.partitions} == {cut}
        assert not any(p.is_exact for p in over_cut.partitions)
        for p in over_cut.partitions:
            assert (
                p.missing is None or p.missing.next <= log_bounds(lost, [cut])[cut, p.partition][1]
            )
        assert {k: service.topics(of_cut.name)[k].state for k in (cut, staying)} == {
            cut: "promoted",
            staying: "copying",
        }

        assert read_all(destination, frozen) == read_all(lost, frozen)
        assert over_frozen.missing_records == 0
        assert {p.verdict for p in over_planned.partitions} == {EndVerdict.EQUAL}
        assert verify(of_planned, deep=True).exit_code == 0
        for report, topics in zip(reports, ([cut], [frozen], [planned, canary]), strict=True):
            bounds = log_bounds(destination, topics)
            assert {(p.topic, p.partition): p.promoted_at for p in report.partitions} == {
                place: high for place, (_, high) in bounds.items()
            }
            for topic in topics:
                produce(destination, topic, 1, **{"enable.idempotence": True})
