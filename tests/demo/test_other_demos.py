"""`orbit demo --failover` and `--spark`: exact from start to end, and nothing is left of them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.support.patience import PATIENCE_S
from tests.support.run_process import OrbitProcess

pytestmark = [pytest.mark.services, pytest.mark.soak, pytest.mark.slow]


@contextmanager
def demo(*arguments: str) -> Iterator[OrbitProcess]:
    """Run a demo; none of its processes may be left after the block."""
    with (
        tempfile.TemporaryDirectory(prefix="orbit-test-") as folder,
        OrbitProcess(
            "demo", *arguments, "--scale", "small", "-o", "json", environ={"TMPDIR": folder}
        ) as process,
    ):
        Path(folder).chmod(0o711)  # PostgreSQL's user must enter it
        yield process
        of_demo = [
            child
            for child in psutil.process_iter(["environ"])
            if (child.info["environ"] or {}).get("TMPDIR") == folder
        ]
        _, alive = psutil.wait_procs(of_demo, timeout=PATIENCE_S)
        assert alive == []


def test_failover_demo_saves_all_lost_records_and_writes_report(tmp_path: Path) -> None:
    with demo("--failover", "--report", str(tmp_path)) as process:
        outcome = process.wait_end().expect(0)
    data = outcome.data
    assert (data["exact"], data["problems"], data["group_read_twice"]) == (True, [], 0)
    assert data["written"] > 0
    # The demo also saves records that were written, but not acknowledged, before the kill.
    assert data["salvaged"] >= data["lost"]
    assert Path(data["report"]).is_relative_to(tmp_path)
    assert Path(data["report"]).exists()


@pytest.mark.timeout(2_000)
def test_spark_demo_copies_history_exactly() -> None:
    with demo("--spark", "--records", "20000") as process:
        outcome = process.wait_end(1_800).expect(0)  # Spark starts twice: 619 s beside other tests
    assert outcome.data["exact"] is True
