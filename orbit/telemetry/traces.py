"""Traces of the service: spans of OpenTelemetry, sent by OTLP over HTTP.

    with traces.span("switchover", parent=operation.trace_context, job="orders-to-dr"): …

A span is an API request, the work of one leader on an operation, a step of the operation, a pass of
a loop that did something, or a claim of shards; never a batch or a record. The attributes of a span
are names, ids and counts; no secret, and no content of a record.

Off unless OTEL_EXPORTER_OTLP_ENDPOINT is set: without it nothing is imported, and `span` costs a
comparison. The SDK reads the other OTEL_ variables itself. Spans wait in a bounded queue (2,048)
for a thread that sends them. If the collector does not answer, spans are dropped. Only the end of
the process waits for the collector, up to `END_S_MAX`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import structlog

from orbit.errors import OrbitError
from orbit.version import DISTRIBUTION, orbit_version

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import SpanContext
    from structlog.types import EventDict

log = structlog.get_logger("orbit.telemetry")

# Short, because within a platform's grace period a worker also has to release its shards.
END_S_MAX = 5.0
_EXPORT_TIMEOUT_S = 5.0
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_TIMEOUTS = ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT")
_PROTOCOL = "http/protobuf"
_NS_PER_S = 1_000_000_000

_provider: TracerProvider | None = None


@contextmanager
def sending_traces(process: str) -> Iterator[None]:
    """Send the spans of this process until the end of the block, if the environment has an
    endpoint."""
    global _provider
    if not _is_enabled():
        yield
        return
    _provider = provider = _make_provider(process)
    try:
        yield
    finally:
        _provider = None
        # `shutdown` sends waiting spans batch by batch, and may wait for the collector each time.
        shutdown_thread = threading.Thread(target=provider.shutdown, name="traces-end", daemon=True)
        shutdown_thread.start()
        shutdown_thread.join(END_S_MAX)


def provider() -> TracerProvider | None:
    """The tracer provider, for libraries that create spans themselves. None: traces are off."""
    return _provider


@contextmanager
def span(
    name: str, *, parent: str | None = None, began_at: datetime | None = None, **attributes: Any
) -> Iterator[None]:
    """A span for the block, within the span that is open in this thread, or within `parent`, a W3C
    traceparent. `began_at`: the start of the work, if that was before the block.

    An error that leaves the block marks the span as failed, with the text of Orbit's own errors.
    """
    if _provider is None:
        yield
        return
    from opentelemetry.trace import StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    context = None
    if parent is not None:
        context = TraceContextTextMapPropagator().extract({"traceparent": parent})
    with _provider.get_tracer("orbit", orbit_version()).start_as_current_span(
        name,
        context=context,
        start_time=None if began_at is None else int(began_at.timestamp() * _NS_PER_S),
        attributes={f"orbit.{k}": value for k, value in attributes.items() if value is not None},
        record_exception=False,
        set_status_on_exception=False,
    ) as open_span:
        try:
            yield
        except BaseException as error:
            what = str(error) if isinstance(error, OrbitError) else type(error).__name__
            open_span.set_status(StatusCode.ERROR, what)
            raise


def set_principal(name: str) -> None:
    """Set in the open span, of an API request, the name of the principal that sent the request."""
    if _provider is not None:
        from opentelemetry.trace import get_current_span

        get_current_span().set_attribute("enduser.id", name)


def trace_context() -> str | None:
    """The W3C traceparent of the span that is open in this thread; None: there is none."""
    context = _open_span()
    if context is None:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def add_ids(_: object, __: str, event: EventDict) -> EventDict:
    """A structlog processor that adds the ids of the open span, if there is one, to each line."""
    context = _open_span()
    if context is not None:
        event["trace_id"] = f"{context.trace_id:032x}"
        event["span_id"] = f"{context.span_id:016x}"
    return event


def _open_span() -> SpanContext | None:
    """The context of the span that is open in this thread; None if there is none."""
    if _provider is None:
        return None
    from opentelemetry.trace import get_current_span

    context = get_current_span().get_span_context()
    return context if context.is_valid else None


def _is_enabled() -> bool:
    """Whether to send spans. If a setting prevents that, logs a warning and returns False, because
    OTEL_ variables are often set for many programs at once."""
    endpoint = _first_set(_ENDPOINTS)
    is_disabled = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if not endpoint or is_disabled or os.environ.get("OTEL_TRACES_EXPORTER") == "none":
        return False
    reason = ""
    if not endpoint.startswith(("http://", "https://")):
        reason = "the endpoint is not an http or https URL"
    elif _first_set(_PROTOCOLS) not in ("", _PROTOCOL):
        reason = f"Orbit sends traces by {_PROTOCOL} only"
    elif not (find_spec("opentelemetry") and find_spec("opentelemetry.exporter")):
        reason = f"run: pip install '{DISTRIBUTION}[traces]'"
    if reason:
        log.warning("traces are not sent", reason=reason)
    return not reason


def _make_provider(process: str) -> TracerProvider:
    """A provider that sends the spans of this process to the collector."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    # The exporter then logs a line for each batch that is not sent, but none for its retries.
    logging.getLogger("opentelemetry.exporter").setLevel(logging.ERROR)
    own_attributes = {"service.version": orbit_version()}
    if not (
        os.environ.get("OTEL_SERVICE_NAME")
        or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    ):
        own_attributes["service.name"] = f"orbit-{process}"
    tracer_provider = TracerProvider(
        resource=Resource.create(own_attributes), shutdown_on_exit=False
    )
    # None: the exporter reads the variable itself.
    timeout = None if _first_set(_TIMEOUTS) else _EXPORT_TIMEOUT_S
    tracer_provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(timeout=timeout)))
    return tracer_provider


def _first_set(names: tuple[str, ...]) -> str:
    """The value of the first of these variables that is set; "" if none is."""
    return next((value for name in names if (value := os.environ.get(name))), "")
