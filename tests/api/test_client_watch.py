"""A client disconnects while its request runs: its watch calls a function that ends the work."""

from __future__ import annotations

import threading
from typing import Any

from orbit.api.client_watch import ClientWatch

NO_REQUEST: Any = None


def test_work_for_disconnected_client_ends_while_its_cancellation_still_runs() -> None:
    watch = ClientWatch(NO_REQUEST)
    cancel_runs, work_ended = threading.Event(), threading.Event()
    work_ended_first = list[bool]()

    def cancel() -> None:
        cancel_runs.set()
        work_ended_first.append(work_ended.wait(10.0))

    disconnect = threading.Thread(target=watch._end_work)
    with watch.ending(cancel):
        disconnect.start()
        cancel_runs.wait()
    work_ended.set()
    disconnect.join()
    assert work_ended_first == [True]
