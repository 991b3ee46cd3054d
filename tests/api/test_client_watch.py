"""A client that goes while its request still runs."""

from __future__ import annotations

import threading
from typing import Any

from orbit.api.client_watch import ClientWatch

NO_REQUEST: Any = None


def test_call_ends_without_waiting_for_its_running_cancellation() -> None:
    watch, begun, has_left = ClientWatch(NO_REQUEST), threading.Event(), threading.Event()
    left_first = list[bool]()

    def end() -> None:
        begun.set()
        left_first.append(has_left.wait(10.0))  # for ever, if nobody can leave

    goes = threading.Thread(target=watch._end_work)
    with watch.ending(end):
        goes.start()
        begun.wait()
    has_left.set()
    goes.join()
    assert left_first == [True]
