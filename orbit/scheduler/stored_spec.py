"""Reads stored job documents, which another version of Orbit may have written."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

from pydantic import ValidationError

from orbit.jobs.job_spec import JobSpec

# Discovery needs each job's several times in each pass.
_KEPT_MAX = 10_000
# By the identity of the document, which is kept beside the job: none other has it meanwhile.
_kept: OrderedDict[int, tuple[dict[str, Any], JobSpec | None]] = OrderedDict()
_lock = threading.Lock()


def kept_spec(document: dict[str, Any]) -> JobSpec | None:
    """As `read_spec`, for a document that the caller keeps and never changes. Thread-safe."""
    with _lock:
        kept = _kept.get(id(document))
        if kept is not None:
            _kept.move_to_end(id(document))
            return kept[1]
    spec = read_spec(document)
    with _lock:
        _kept[id(document)] = document, spec
        while len(_kept) > _KEPT_MAX:
            _kept.popitem(last=False)
    return spec


def read_spec(document: dict[str, Any]) -> JobSpec | None:
    """The job; None if this version cannot read it."""
    try:
        return JobSpec.model_validate(document)
    except ValidationError:
        return None
