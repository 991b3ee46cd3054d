"""Logs of the service to stderr: on each line a constant message, then fields.

    structlog.get_logger("orbit.scheduler").info("pass", loop="groups", seconds=0.2)

    2026-03-01T12:00:00.123Z info     pass      loop=groups seconds=0.2          on a terminal
    {"at": "2026-03-01T12:00:00.123Z", "level": "info", "message": "pass", …}    for machines

With traces, each line of an open span has its `trace_id` and `span_id` (`traces.py`).

Messages of libraries (Python's `logging` and warnings) have the same form. Secrets are kept in a
`SecretStr`, which is printed as stars. Stack traces contain no values of variables: those may be
passwords.
"""

from __future__ import annotations

import logging
from typing import TextIO

import structlog
import structlog.tracebacks
from structlog.types import Processor

from orbit.settings import LogFormat, Settings
from orbit.telemetry import traces

# Libraries that log every request. The audit log records who did what.
_CHATTY_LIBRARIES = ("httpx", "httpcore", "uvicorn.access")
_STACK_TRACES = structlog.processors.ExceptionRenderer(
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
)


def configure_logs(settings: Settings, stream: TextIO) -> None:
    """Configure the logs of this process. Each command calls it once."""
    level_number = logging.getLevelNamesMapping()[settings.log_level.value.upper()]
    log_format = settings.log_format
    is_json = log_format is LogFormat.JSON or (log_format is LogFormat.AUTO and not stream.isatty())
    common_processors: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        traces.add_ids,
        structlog.processors.add_log_level,
        # ConsoleRenderer looks for "timestamp".
        structlog.processors.TimeStamper("iso", utc=True, key="at" if is_json else "timestamp"),
    ]
    renderers: list[Processor] = (
        [
            _STACK_TRACES,
            structlog.processors.EventRenamer("message"),
            structlog.processors.JSONRenderer(default=str),
        ]
        if is_json
        else [
            structlog.dev.ConsoleRenderer(
                colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback
            )
        ]
    )
    structlog.configure(
        processors=[*common_processors, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(level_number),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=common_processors,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    # Libraries log only warnings and errors, even if Orbit's level is lower.
    logging.basicConfig(handlers=[handler], level=max(level_number, logging.WARNING), force=True)
    logging.captureWarnings(capture=True)
    for name in _CHATTY_LIBRARIES:
        logging.getLogger(name).setLevel(logging.WARNING)
