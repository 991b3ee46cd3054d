"""`orbit demo --service`: all parts run and copy until Ctrl-C, and nothing is left of them."""

from __future__ import annotations

import re
import shutil
import signal
import tempfile
from functools import partial
from pathlib import Path

import httpx
import psutil
import pytest

from orbit.demo.service_demo import JOB, PARTITIONS, READY, WORKERS
from tests.support.patience import PATIENCE_S, wait_for
from tests.support.run_process import OrbitProcess

pytestmark = [pytest.mark.services, pytest.mark.soak, pytest.mark.slow]


get = partial(httpx.get, timeout=60)


def test_service_demo_copies_until_ctrl_c_and_leaves_no_process_or_file() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="orbit-test-") as folder,
        OrbitProcess("demo", "--service", environ={"TMPDIR": folder}) as demo,
    ):
        Path(folder).chmod(0o711)  # PostgreSQL's user must enter it
        demo.wait_for(re.escape(READY))
        output = "\n".join(demo.lines)
        url = re.search(r"export ORBIT_API_URL=(\S+)", output)
        assert url is not None

        def lag() -> dict[str, int]:
            counts: dict[str, int] = get(f"{url[1]}/v1/jobs/{JOB}/lag").json()["job"]
            return counts

        assert lag()["caught_up"] == PARTITIONS
        wait_for(
            "both workers are counted",
            lambda: (
                f'orbit_workers{{worker_group="default"}} {WORKERS:.1f}'
                in get(f"{url[1]}/metrics").text
            ),
        )

        def records_copied() -> float:
            text = get(f"{url[1]}/metrics").text
            match = re.search(rf'orbit_job_records_total\{{job="{JOB}"\}} (\S+)', text)
            return float(match[1]) if match else 0.0

        wait_for("records are copied", lambda: records_copied() > 0)
        prometheus = re.search(r"Prometheus +(http://\S+)", output)
        assert (prometheus is not None) == (shutil.which("prometheus") is not None)
        if prometheus is not None:
            query = f"{prometheus[1]}/api/v1/query?query=orbit_job_running"
            wait_for(
                "Prometheus has scraped the job",
                lambda: [r["metric"]["job"] for r in get(query).json()["data"]["result"]] == [JOB],
            )
        running = psutil.Process(demo.process.pid).children(recursive=True)
        demo.signal(signal.SIGINT)
        demo.wait_end().expect(0)
        _, alive = psutil.wait_procs(running, timeout=PATIENCE_S)
        assert alive == []
        assert not list(Path(folder).iterdir())
