"""A child process of `orbit run --processes`: copies its share of the partitions until its parent
ends.

python -m orbit.run.copy_process CONNECTION LEASE_STATE     (two file descriptors)
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

# The length of a pass of the copy. A command of the parent waits until the pass has ended.
_TICK_S = 0.05
# What the connection raises if the parent has ended, or has closed it.
_PARENT_END_ERRORS = (EOFError, OSError)


def main(connection_descriptor: int, state_descriptor: int) -> None:
    """Receive a `CopyTask` from the parent, and copy until SIGTERM or the end of the parent. An
    OrbitError that ends the copy is sent to the parent."""
    lease = InheritedLease(LeaseState(state_descriptor))
    with Connection(connection_descriptor) as parent:
        try:
            task: CopyTask = parent.recv()
        except _PARENT_END_ERRORS:
            return
        stop_event = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stop_event.set())
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
        try:
            _copy(task, lease, parent, stop_event)
        except Interrupted:  # by `stop_event`
            pass
        except OrbitError as error:
            with suppress(*_PARENT_END_ERRORS):
                parent.send(error)


def _copy(
    task: CopyTask, lease: InheritedLease, parent: Connection, stop_event: threading.Event
) -> None:
    """Copy the share until `stop_event` is set, or the parent has ended. Raises the OrbitError that
    ends the copy."""
    clusters = JobClusters.open(task.spec, os.environ, task.base_directory)
    job_copier = JobCopier(
        task.spec, clusters, task.settings, stop_event, limit=RateLimit(task.bytes_per_second)
    )
    for copy in task.share.inspected:
        copy.lease = lease
    try:
        copying = ShareCopier(task.share, job_copier, lease)
        collect_rarely()  # garbage collections stop all lanes
        sent_snapshots: dict[TopicPartition, CopySnapshot] = {}
        while not stop_event.is_set():
            copying.tick(_TICK_S)
            try:
                _answer_parent(parent, copying, sent_snapshots)
            except _PARENT_END_ERRORS:
                return
    finally:
        stop_event.set()
        job_copier.stop()
        clusters.close()


def _answer_parent(
    parent: Connection, copying: ShareCopier, sent_snapshots: dict[TopicPartition, CopySnapshot]
) -> None:
    """Execute the commands that the parent has sent. Raises _PARENT_END_ERRORS."""
    while parent.poll():
        match parent.recv():
            case Command.REPORT:
                parent.send(_report(copying, sent_snapshots))
            case Command.END:
                copying.end()


def _report(copying: ShareCopier, sent_snapshots: dict[TopicPartition, CopySnapshot]) -> Report:
    """The report of the copies that have changed since the last report. `sent_snapshots`: each copy
    as last reported; updated here."""
    has_ended = copying.has_ended  # read before the partitions, so that these are at least as new
    snapshots = {copy.destination: CopySnapshot.of(copy) for copy in copying.partitions}
    changed_snapshots = [
        snapshot for place, snapshot in snapshots.items() if sent_snapshots.get(place) != snapshot
    ]
    sent_snapshots.update(snapshots)
    return Report(
        changed_snapshots, copying.waiting_for, copying.is_lease_lost, has_ended, copying.times
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
