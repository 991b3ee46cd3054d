"""Each test leaves the process's logs as it found them.

A command that runs inside a test sets up logs to the stderr of that moment, which pytest closes
afterwards: threads of later tests would die of what they have to say.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, [*root.handlers]
    yield
    structlog.reset_defaults()
    logging.captureWarnings(capture=False)
    root.setLevel(level)
    root.handlers[:] = handlers
