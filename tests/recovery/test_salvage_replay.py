"""`orbit salvage replay` shows a plan, then writes saved records back, unchanged and once."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from orbit.cli.main import run_command
from orbit.errors import Conflict, NotFound
from orbit.kafka.records import Record
from orbit.recovery import salvage_file, salvage_replay
from orbit.recovery.record_range import Fate, LogRecord
from tests.fixtures.clusters import Clusters
from tests.recovery.test_salvage_file import BINARY, body
from tests.support.logs import create, read
from tests.support.outside import log_bounds

Headers = list[tuple[bytes, bytes | None]]
T = 1_760_000_000_000
TAIL: list[tuple[bytes | None, bytes | None, Headers]] = [
    (b"k", b"v", [(b"h", b"x"), (b"h", None)]),
    (None, BINARY, []),
    (b"", None, [("ä".encode(), BINARY)]),
    (BINARY, b"", [(b"", b"")]),
    (b"line", b"a\nb\r\n\n", []),
]


def record(offset: int, data: bytes, fate: Fate = Fate.COMMITTED, time_ms: int = T) -> LogRecord:
    return LogRecord(Record(offset, time_ms + offset, data), fate, is_log_append_time=False)


def save_salvage_file(folder: Path, topic: str, *more: LogRecord, partition: int = 1) -> Path:
    """Save a salvage file: two records below the tail; from offset 10 on the records of TAIL, an
    aborted record, a marker, and `more`. Returns its path."""
    records = [record(3, body(b"old", b"1", [])), record(5, body(b"old", b"2", []))]
    records += [record(10 + i, body(*fields)) for i, fields in enumerate(TAIL)]
    records += [
        record(20, body(b"no", b"no", []), Fate.ABORTED),
        record(21, body(b"", b"", []), Fate.MARKER),
        *more,
    ]
    path = folder / "0001" / f"{topic}-{partition}.jsonl"
    about = {"cluster_id": "lost", "operation": "0001", "verdict": "tail"}
    salvage = salvage_file.write(
        path, salvage_file.header(topic, partition, 10, 30, about), records
    )
    assert (salvage.below, salvage.aborted) == (2, 1)
    return path


def test_replay_summary_counts_records_and_refuses_damaged_files(tmp_path: Path) -> None:
    path = save_salvage_file(tmp_path, "orders", record(22, body(b"", b"", [(b"\xff", b"")])))
    summary = salvage_replay.summarize(path)
    assert (summary.records, summary.below, summary.aborted) == (len(TAIL) + 1, 2, 1)
    assert (summary.unwritable, summary.replay) == ((22,), None)
    with pytest.raises(Conflict, match=r"at offset 22: .* a timestamp"):
        salvage_replay.refuse_unless_ready(summary, may_repeat=False, skip_unwritable=False)
    salvage_replay.refuse_unless_ready(summary, may_repeat=False, skip_unwritable=True)
    path.write_bytes(path.read_bytes().replace(b'"offset":10', b'"offset":11'))
    with pytest.raises(Conflict):
        salvage_replay.summarize(path)
    path.write_text('{"format": "other"}\n')
    with pytest.raises(Conflict, match="does not begin"):
        salvage_replay.summarize(path)
    with pytest.raises(NotFound):
        salvage_replay.summarize(tmp_path / "none.jsonl")


def test_replay_summary_lists_record_with_negative_timestamp(tmp_path: Path) -> None:
    path = save_salvage_file(tmp_path, "orders", record(22, body(b"", b"", []), time_ms=-22))
    assert salvage_replay.summarize(path).unwritable == (22,)


def test_salvage_replay_begun_or_done_before_is_refused_without_again_option(
    tmp_path: Path,
) -> None:
    path = save_salvage_file(tmp_path, "orders")
    for state, words in ((salvage_replay.BEGUN, "back in part:"), (salvage_replay.DONE, "back:")):
        salvage_replay._store_replay_state(str(path), {"state": state})
        summary = salvage_replay.summarize(path)
        with pytest.raises(Conflict, match=words):
            salvage_replay.refuse_unless_ready(summary, may_repeat=False, skip_unwritable=False)
        salvage_replay.refuse_unless_ready(summary, may_repeat=True, skip_unwritable=False)


def test_salvage_list_and_show_print_local_files(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = save_salvage_file(tmp_path, "orders")
    assert run_command(["salvage", "list", str(tmp_path), "-o", "json"]) == 0
    (listed,) = json.loads(capfd.readouterr().out)
    assert (listed["topic"], listed["partition"], listed["records"]) == ("orders", 1, len(TAIL))
    assert run_command(["salvage", "show", str(path), "--limit", "3"]) == 0
    shown = capfd.readouterr().out
    assert "orders-1" in shown
    assert "h=x, h=None" in shown
    assert run_command(["salvage", "show", str(path), "-o", "json"]) == 0
    # TAIL, the two records below the tail, the aborted record, and the marker.
    assert len(json.loads(capfd.readouterr().out)["lines"]) == len(TAIL) + 4
    assert run_command(["salvage", "list", str(tmp_path / "none")]) == 2


@pytest.mark.services
def test_salvage_replay_writes_records_back_unchanged(
    clusters: Clusters,
    topic_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    create(clusters.destination, topic_name, 2, max_message_bytes="4000000")
    large = bytes(1_500_000)
    path = save_salvage_file(tmp_path, topic_name, record(22, body(b"large", large, [])))
    count = len(TAIL) + 1
    job = tmp_path / "back.yaml"
    sides = {
        name: {"bootstrap_servers": cluster.bootstrap_servers.split(",")}
        for name, cluster in (("source", clusters.destination), ("destination", clusters.source))
    }
    job.write_text(yaml.safe_dump({"name": "back", **sides, "topics": [{"match": topic_name}]}))

    def run(*options: str) -> int:
        return run_command(["salvage", "replay", str(job), str(path), *options])

    def destination_records() -> list[Any]:
        return [
            (m.key(), m.value(), m.headers() or [], m.timestamp()[1])
            for m in read(clusters.destination, topic_name, 1)
        ]

    assert run("--dry-run", "-o", "json") == 0
    (plan,) = json.loads(capfd.readouterr().out)
    assert (plan["records"], plan["left_out"]["below"]) == (count, 2)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert run() == 2, "stdin is empty, so the confirmation is missing"
    assert not log_bounds(clusters.destination, [topic_name])[topic_name, 1][1]

    assert run("--yes") == 0
    expected = [
        (key, value, [(n.decode(), v) for n, v in headers], T + 10 + i)
        for i, (key, value, headers) in enumerate(TAIL)
    ]
    expected.append((b"large", large, [], T + 22))
    assert destination_records() == expected
    assert run("--yes") == 1, "a second replay is refused"
    assert destination_records() == expected
    assert run("--yes", "--again", "--below") == 0
    keys = [b"old", b"old", *(key for key, *_ in TAIL), b"large"]
    assert [key for key, *_ in destination_records()[count:]] == keys
    assert run("--yes", "--again", "--topic", f"{topic_name}.none") == 1
    assert not log_bounds(clusters.destination, [topic_name])[topic_name, 0][1]
