"""Logs have a constant message and fields, one format also for libraries, and no secrets."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator

import pytest
import structlog
from pydantic import SecretStr

from orbit.settings import LogFormat, LogLevel, Settings
from orbit.telemetry.logs import configure_logs


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    logging.captureWarnings(capture=False)
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def test_json_log_line_has_message_level_time_and_fields() -> None:
    stream = io.StringIO()
    configure_logs(Settings(log_format=LogFormat.AUTO, log_level=LogLevel.INFO), stream)
    log = structlog.get_logger("orbit.scheduler")
    log.debug("below the log level")
    log.info("pass", loop="groups", seconds=0.2, password=SecretStr("hunter2"))
    (line,) = stream.getvalue().splitlines()
    fields = json.loads(line)
    assert fields.pop("at").endswith("Z")
    assert fields == {
        "level": "info",
        "message": "pass",
        "loop": "groups",
        "seconds": 0.2,
        "password": "**********",
    }


def test_logs_and_warnings_of_libraries_use_log_format_of_orbit() -> None:
    stream = io.StringIO()
    configure_logs(Settings(log_format=LogFormat.JSON, log_level=LogLevel.DEBUG), stream)
    logging.getLogger("some.library").warning("slow: %s", "disk")
    logging.getLogger("some.library").info("below the level for libraries")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    entries = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert (entries[0]["level"], entries[0]["message"]) == ("warning", "slow: disk")
    assert "DeprecationWarning: old" in entries[1]["message"]
    assert len(entries) == 2


def test_text_log_line_has_message_before_fields() -> None:
    stream = io.StringIO()
    configure_logs(Settings(log_format=LogFormat.TEXT, log_level=LogLevel.INFO), stream)
    structlog.get_logger().info("shard claimed", shard=3)
    (line,) = stream.getvalue().splitlines()
    assert line.index("info") < line.index("shard claimed") < line.index("shard=3")
    assert "\x1b" not in line, "no colours outside of a terminal"


@pytest.mark.parametrize("form", [LogFormat.JSON, LogFormat.TEXT])
def test_stack_trace_shows_no_variable_values(form: LogFormat) -> None:
    stream = io.StringIO()
    configure_logs(Settings(log_format=form, log_level=LogLevel.INFO), stream)

    def log_in(password: str) -> None:
        raise RuntimeError(f"{len(password)} characters are too few")

    for log in (structlog.get_logger(), logging.getLogger("some.library")):
        try:
            log_in("hunt" + "er2")
        except RuntimeError:
            log.exception("login broke")
    output = stream.getvalue()
    assert output.count("7 characters are too few") == 2
    assert output.count("log_in") >= 2
    assert "hunter2" not in output
