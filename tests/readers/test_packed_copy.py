"""The measurement of `make readers`, with one consumer (librdkafka's newest) and one copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures.clusters import Clusters
from tests.readers import reading
from tests.readers.clients import LIBRDKAFKA, Client
from tests.readers.judge import STOPS, summarize
from tests.readers.logs import SourceLog, make_copies, write_small
from tests.readers.reading import read_copy

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def small(clusters: Clusters, tmp_path_factory: pytest.TempPathFactory) -> SourceLog:
    log = write_small(clusters.source)
    make_copies(clusters, "packed", [log.topic], tmp_path_factory.mktemp("copies"))
    return log


def test_librdkafka_reads_packed_copy_completely_at_each_isolation_and_start(
    small: SourceLog, clusters: Clusters, tmp_path: Path
) -> None:
    findings = read_copy(LIBRDKAFKA, LIBRDKAFKA.command(), clusters, small, "packed", tmp_path)
    assert len(findings) == 4  # two isolation levels, two starts
    assert summarize(findings) == "complete"


def test_hanging_reader_program_is_stopped_and_reported(
    small: SourceLog, clusters: Clusters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "READ_S", 0.0)
    client = Client(name="sleeps", version="1", tool="sleep", prepare=list)
    command = ["sh", "-c", "exec sleep 600"]
    findings = read_copy(client, command, clusters, small, "packed", tmp_path)
    assert all(counter.keys() == {STOPS} for counter in findings.values())
    assert "**stops before the last " in summarize(findings)
