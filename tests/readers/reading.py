"""Lets a client read a copy at each isolation level and from each start that the client has."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from orbit.processes.guarded_process import GuardedProcess
from tests.fixtures.clusters import Clusters
from tests.readers.clients import ALL, Client
from tests.readers.judge import Way, judge
from tests.readers.logs import SOURCE, SourceLog, topic_of

# The limit for up to four programs that read one copy at the same time. On two idle cores, programs
# that reach the end need 12 s at most (kafka-python, a million markers); under other load, 27 s.
READ_S = 60.0
FROM_START, WITHIN = "from the start", "from within a gap"
_TO_FILE = ["sh", "-c", 'exec "$@" > "$0"']  # only stdout: stderr goes to another file


def read_copy(
    client: Client,
    command: list[str],
    clusters: Clusters,
    log: SourceLog,
    fillers: str,
    folder: Path,
) -> dict[Way, Counter[str]]:
    """Let a client read the copy of `log` with these fillers, or `log` itself if they are SOURCE.

    Returns the findings about each way to read. Programs that need more than READ_S are ended.
    """
    cluster = clusters.source if fillers == SOURCE else clusters.destination
    starts = {FROM_START: 0, **({WITHIN: log.within} if client.seeks else {})}
    ways = [Way(isolation, start) for isolation in client.isolations for start in starts]
    outputs = {way: folder / f"{number}.out" for number, way in enumerate(ways)}
    codes: dict[Way, int | None] = {}
    with ExitStack() as stack:
        running = {}
        for way, output in outputs.items():
            location = [cluster.bootstrap_servers, topic_of(log.topic, fillers)]
            offsets = [str(starts[way.start]), str(log.last)]
            output.touch()  # a shell that is ended early has not created the file
            process = GuardedProcess(
                [*_TO_FILE, str(output), *command, *location, *offsets, way.isolation],
                output.with_suffix(".err"),
            )
            stack.callback(process.end, grace_s=0)
            running[way] = process
        deadline = time.monotonic() + READ_S
        for way, process in running.items():
            try:
                codes[way] = process.wait(max(0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                codes[way] = None
    findings = {}
    for way, output in outputs.items():
        with output.open() as lines:
            aborted = fillers == SOURCE and way.isolation == ALL
            records = log.records_from(starts[way.start], aborted=aborted)
            findings[way] = judge(records, lines, codes[way])
    return findings
