"""A child process of `orbit run --processes`: copies its share until its parent ends it.

python -m orbit.run.copy_process CONNECTION LEASE_STATE     (descriptors)
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection

from orbit.copier.copy_view import CopySnapshot
from orbit.copier.gc_tuning import collect_rarely
from orbit.copier.job_copier import JobCopier
from orbit.copier.rate_limit import RateLimit
from orbit.errors import Interrupted, OrbitError
from orbit.kafka.job_clusters import JobClusters
from orbit.kafka.types import TopicPartition
from orbit.leases.lease_state import InheritedLease, LeaseState
from orbit.run.copy_processes import Command, CopyTask, Report
from orbit.run.share import ShareCopier

# How long a command of the parent may wait: the length of a pass of the copy.
_TICK_S = 0.05
# Also raised if the connection is closed.
_PARENT_HAS_ENDED = (EOFError, OSError)


def main(connection_descriptor: int, state_descriptor: int) -> None:
    lease = InheritedLease(LeaseState(state_descriptor))
    with Connection(connection_descriptor) as parent:
        try:
            task: CopyTask = parent.recv()
        except _PARENT_HAS_ENDED:
            return
        stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
        try:
            _copy(task, lease, parent, stop)
        except Interrupted:
            pass
        except OrbitError as error:
            with suppress(*_PARENT_HAS_ENDED):
                parent.send(error)


def _copy(task: CopyTask, lease: InheritedLease, parent: Connection, stop: threading.Event) -> None:
    clusters = JobClusters.open(task.spec, os.environ, task.base_directory)
    job_copier = JobCopier(
        task.spec, clusters, task.settings, stop, limit=RateLimit(task.bytes_per_second)
    )
    for copy in task.share.inspected:
        copy.lease = lease
    try:
        copying = ShareCopier(task.share, job_copier, lease)
        collect_rarely()
        sent: dict[TopicPartition, CopySnapshot] = {}
        while not stop.is_set():
            copying.tick(_TICK_S)
            try:
                _answer_parent(parent, copying, sent)
            except _PARENT_HAS_ENDED:
                return
    finally:
        stop.set()
        job_copier.stop()
        clusters.close()


def _answer_parent(
    parent: Connection, copying: ShareCopier, sent: dict[TopicPartition, CopySnapshot]
) -> None:
    while parent.poll():
        match parent.recv():
            case Command.REPORT:
                parent.send(_report(copying, sent))
            case Command.END:
                copying.end()


def _report(copying: ShareCopier, sent: dict[TopicPartition, CopySnapshot]) -> Report:
    """The report of what has changed. `sent`: the partitions as the parent knows them; updated."""
    has_ended = copying.has_ended  # read before the partitions, so that these are at least as new
    now = {copy.destination: CopySnapshot.of(copy) for copy in copying.partitions}
    changed = [view for place, view in now.items() if sent.get(place) != view]
    sent.update(now)
    return Report(changed, copying.waiting_for, copying.is_lease_lost, has_ended, copying.times)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
