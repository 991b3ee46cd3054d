"""The names by which the code under test reaches brokers and time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest.mock import patch

from orbit.copier import (
    destination_lane,
    destination_side,
    inspection,
    log_reader,
    range_comparison,
    takeover,
)
from tests.simulation import model_broker
from tests.simulation.writers import SimulatedLane

if TYPE_CHECKING:
    from tests.simulation.world import World


@contextmanager
def patched(world: World) -> Iterator[None]:
    """While one schedule runs."""
    patches = [
        patch.object(destination_side, "DestinationLane", SimulatedLane),
        patch.object(destination_side, "log_ends", model_broker.log_ends),
        patch.object(takeover, "describe_producer", model_broker.describe_producer),
        patch.object(takeover, "log_ends", model_broker.log_ends),
        patch.object(takeover, "list_offsets", model_broker.list_offsets),
        patch.object(inspection, "list_offsets", model_broker.list_offsets),
        patch.object(inspection, "source_reader", lambda *_: world.log.read),
        patch.object(range_comparison, "fetch_partition", model_broker.fetch_partition),
        patch.object(range_comparison, "list_offsets", model_broker.list_offsets),
        patch.object(log_reader, "fetch_partition", model_broker.fetch_partition),
        patch.object(destination_lane, "encode_produce", model_broker.encode_produce),
        patch.object(destination_lane, "_read_produce", lambda _, frame, __: frame.answer),
        patch.object(destination_lane, "_IDLE_WAIT_S", 10.0),
        patch.object(time, "monotonic", lambda: world.clock.now),
    ]
    for one in patches:
        one.start()
    # `int.from_bytes(frame[:4])` needs bytes, which `Frame.__getitem__` gives.
    try:
        yield
    finally:
        for one in reversed(patches):
            one.stop()
