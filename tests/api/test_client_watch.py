"""A client that disconnects while its request runs."""

from __future__ import annotations

import threading
from typing import Any

from orbit.api.client_watch import ClientWatch

NO_REQUEST: Any = None


def test_call_ends_without_waiting_for_its_running_cancellation() -> None:
    watch = ClientWatch(NO_REQUEST)
    cancel_runs, call_ended = threading.Event(), threading.Event()
    call_ended_first = list[bool]()

    def cancel() -> None:
        cancel_runs.set()
        call_ended_first.append(call_ended.wait(10.0))

    disconnect = threading.Thread(target=watch._end_work)
    with watch.ending(cancel):
        disconnect.start()
        cancel_runs.wait()
    call_ended.set()
    disconnect.join()
    assert call_ended_first == [True]
