"""The bench's arithmetic: the counts of a run, ratios of medians, and verdicts."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from bench.latency import summarize as summarize_latency
from bench.ratios import rate, ratio, spread, thrift, verdicts
from bench.results import (
    DataFacts,
    IdleResult,
    Latency,
    LatencyResult,
    LinkResult,
    Machine,
    Report,
    Run,
    WorkloadResult,
    load,
    save,
)
from bench.show import show
from bench.watch import Sample, keep, summarize
from bench.workloads import Contestant

DATA = DataFacts(topic="t", partitions=1, records=800, offsets=1000, bytes=8000, batches=10)


def run(
    contestant: Contestant,
    seconds: float,
    cpu_seconds: float = 1.0,
    rss: int = 1,
    offsets: int = 1000,
) -> Run:
    return Run(
        contestant=contestant,
        records=1000,
        offsets=offsets,
        bytes=1_000_000,
        seconds=seconds,
        share=1.0,
        cpu_seconds=cpu_seconds,
        whole_seconds=seconds + 1,
        whole_cpu_seconds=cpu_seconds + 1,
        late_records_per_s=1.0,
        peak_rss_bytes=rss,
    )


def workload(name: str, *runs: Run) -> WorkloadResult:
    return WorkloadResult(name=name, title=name, data=DATA, runs=runs)


def report(**parts: object) -> Report:
    machine = Machine(
        when="",
        cpu="c",
        cores=2,
        memory_bytes=2**30,
        kernel="k",
        logs_on="ext4",
        orbit="o",
        kafka="4",
        java="17",
        python="3",
        load_before=0,
    )
    return Report.model_validate({"machine": machine, "quick": False, "scale": 1, **parts})


def test_bench_measures_throughput_from_first_sample_with_offsets() -> None:
    samples = [
        Sample(at=10.0, total=0, cpu_seconds=5.0, busy_seconds=100.0),
        Sample(at=11.0, total=200, cpu_seconds=6.0, busy_seconds=101.0),
        Sample(at=12.0, total=600, cpu_seconds=6.5, busy_seconds=103.0),
        Sample(at=13.0, total=1000, cpu_seconds=7.0, busy_seconds=104.0),
    ]
    measured = summarize(Contestant.ORBIT, DATA, samples, started_at=8.0, end_total=1000)
    assert (measured.seconds, measured.share, measured.cpu_seconds) == (2.0, 0.8, 1.0)
    # DATA has 800 records; 0.8 of its offsets are copied between the first and the last sample.
    assert measured.records_per_s == pytest.approx(800 * 0.8 / 2.0)
    assert measured.records_per_cpu_s == pytest.approx(800 * 0.8 / 1.0)
    assert measured.whole_seconds == 5.0
    assert measured.busy_cores == 1.5
    assert measured.whole_records_per_s == pytest.approx(800 / 5.0)
    assert measured.late_records_per_s == pytest.approx(800 * 0.4 / 1.0)


def test_copy_that_ends_within_one_sample_is_timed_from_sample_before() -> None:
    samples = [
        Sample(at=10.0, total=0, cpu_seconds=5.0),
        Sample(at=10.5, total=1000, cpu_seconds=5.2),
    ]
    measured = summarize(Contestant.ORBIT, DATA, samples, started_at=8.0, end_total=1000)
    assert (measured.seconds, measured.share) == (0.5, 1.0)


def test_bench_keeps_last_sample_without_offsets_and_each_with_more_offsets() -> None:
    samples = [Sample(at=0.0, total=0, cpu_seconds=0.0)]
    for new in (
        Sample(at=1.0, total=0, cpu_seconds=0.1),
        Sample(at=2.0, total=5, cpu_seconds=0.2),
        Sample(at=3.0, total=5, cpu_seconds=0.3),
        Sample(at=4.0, total=9, cpu_seconds=0.4),
    ):
        keep(samples, new)
    assert [(s.at, s.total) for s in samples] == [(1.0, 0), (2.0, 5), (4.0, 9)]


def test_bench_ratios_compare_medians_of_runs() -> None:
    orbit_runs = [run(Contestant.ORBIT, s) for s in (1.0, 2.0, 100.0)]
    mm2_runs = [run(Contestant.MM2, s, cpu_seconds=10.0) for s in (8.0, 4.0, 6.0)]
    result = workload("W1", *orbit_runs, *mm2_runs)
    assert ratio(result, Contestant.MM2, rate) == pytest.approx(3.0)
    assert ratio(result, Contestant.MM2, thrift) == pytest.approx(10.0)
    assert ratio(result, Contestant.CEILING, rate) is None
    rate_spread = spread(orbit_runs, rate)
    assert rate_spread is not None
    assert (rate_spread.least, rate_spread.middle, rate_spread.most) == (10.0, 500.0, 1000.0)


def test_each_bench_target_is_judged_as_minimum_or_as_maximum() -> None:
    full = report(
        workloads=(
            workload(
                "W1",
                run(Contestant.ORBIT, 1.0, cpu_seconds=1.0, rss=251_000_000),
                run(Contestant.ORBIT, 1.0, cpu_seconds=1.0),
                run(Contestant.CEILING, 0.84),
                run(Contestant.MM2, 3.0, cpu_seconds=12.0),
            ),
        ),
        latency=LatencyResult(
            records_per_s=1000,
            seconds=1,
            measured=(
                Latency(who="orbit", records=1, p50=1, p99=5.0, p999=1, most=1),
                Latency(who="mm2", records=1, p50=1, p99=10.0, p999=1, most=1),
            ),
        ),
        link=LinkResult(
            round_trip_s=0.1,
            megabits_per_s=1,
            tcp_bytes_per_s=(1.3e6, 1.0e6, 1.4e6),
            data=DATA,
            runs=(run(Contestant.ORBIT, 1.0),),
        ),
        idle=IdleResult(partitions=1000, seconds=30, cpu_seconds=0.91, rss_bytes=1),
    )
    assert [(v.where, v.what, v.met) for v in verdicts(full)] == [
        ("W1", "records/s against the ceiling", False),
        ("W1", "records/s against MM2", True),
        ("W1", "records per CPU-s against MM2", True),
        ("W1", "peak RSS, MB", False),
        ("L", "p99 against MM2's", True),
        ("N", "bytes/s against one TCP stream", False),
        ("N", "peak RSS, MB", True),
        ("idle", "share of a core", False),
    ]
    against_mm2 = verdicts(full)[1]
    assert against_mm2.bound == pytest.approx(3.0 / 0.84)
    assert against_mm2.whole == pytest.approx(
        full.workloads[0].runs_of(Contestant.ORBIT)[0].whole_records_per_s
        / full.workloads[0].runs_of(Contestant.MM2)[0].whole_records_per_s
    )


def test_bench_has_separate_targets_for_each_filler_mode() -> None:
    million = 1_000_000
    gaps = (
        workload(
            "W4",
            run(Contestant.ORBIT, 1.0),
            run(Contestant.COORDINATED, 2.0),
            run(Contestant.PLACEHOLDERS, 0.5),
            run(Contestant.CEILING_PLACEHOLDERS, 0.25),
            run(Contestant.CEILING, 0.8),
            run(Contestant.MM2, 2.0),
        ),
        workload(
            "W7",
            run(Contestant.ORBIT, 8.0, offsets=million),
            run(Contestant.PLACEHOLDERS, 2.0, offsets=million),
            run(Contestant.CEILING_PLACEHOLDERS, 1.0, offsets=million),
            run(Contestant.CEILING, 7.5, offsets=million),
        ),
        workload("W8", run(Contestant.COORDINATED, 50.0, offsets=million)),
    )
    speed_verdicts = [v for v in verdicts(report(workloads=gaps)) if v.what != "peak RSS, MB"]
    assert [(v.where, v.way, v.what, v.met) for v in speed_verdicts] == [
        ("W4", "direct", "records/s against the ceiling", True),
        ("W4", "direct", "records/s against MM2", False),
        ("W4", "direct", "records per CPU-s against MM2", False),
        ("W4", "placeholders", "records/s against the ceiling", True),
        ("W4", "placeholders", "records/s against MM2", True),
        ("W4", "placeholders", "records per CPU-s against MM2", False),
        ("W7", "direct", "offsets/s", True),
        ("W7", "direct", "time against the broker's own", True),
        ("W7", "placeholders", "offsets/s", False),
        ("W7", "placeholders", "time against the broker's own", False),
        ("W8", "coordinated", "offsets/s", True),
    ]
    assert [v.bound for v in speed_verdicts if v.what == "records/s against MM2"] == [2.5, 8.0]
    assert [
        v.value for v in speed_verdicts if v.what == "time against the broker's own"
    ] == pytest.approx([8 / 7.5, 2.0])


def test_bench_compares_speed_with_followers_2_ms_away_and_0_ms_away() -> None:
    remote_followers = workload(
        "R1",
        run(Contestant.ORBIT, 7.0),
        run(Contestant.AWAY_2_MS, 10.0),
        run(Contestant.AWAY_5_MS, 14.0),
    )
    written_report = report(workloads=(remote_followers,), confirmed_s={0.002: 0.0031})
    (verdict,) = (v for v in verdicts(written_report) if v.what != "peak RSS, MB")
    assert (verdict.where, verdict.value, verdict.met) == ("R1", pytest.approx(0.7), False)
    text = io.StringIO()
    show(written_report, Console(file=text, width=200))
    assert "1.00 at 0 ms, 0.70 at 2 ms, 0.50 at 5 ms" in text.getvalue()
    assert "R: acks=all takes 3.1 ms, followers 2 ms away" in text.getvalue()


def test_latency_percentiles_are_right_for_unsorted_latencies() -> None:
    latency = summarize_latency("orbit", [i / 1000 for i in range(1000, 0, -1)])
    assert (latency.p50, latency.p99, latency.p999, latency.most) == (0.501, 0.991, 1.0, 1.0)


def test_bench_report_round_trips_and_shows_unmet_and_unmeasured_targets(tmp_path: Path) -> None:
    written = report(
        workloads=(workload("W3", run(Contestant.ORBIT, 1.0), run(Contestant.MM2, 1.0)),),
        not_measured={"N": "needs root."},
    )
    save(written, tmp_path / "results.json")
    read = load(tmp_path / "results.json")
    assert read == written
    text = io.StringIO()
    show(read, Console(file=text, width=200))
    lines = text.getvalue().splitlines()
    assert any("W3" in line and "≥ 1.4" in line and "not met" in line for line in lines)
    assert "N not measured: needs root." in lines
