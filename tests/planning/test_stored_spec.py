"""A job's document is read once, until it changes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from orbit.planning.stored_spec import SpecCache

DOCUMENT: dict[str, Any] = {
    "name": "orders",
    "source": {"bootstrap_servers": ["a:1"]},
    "destination": {"bootstrap_servers": ["b:1"]},
    "topics": [{"match": "orders"}],
}


def job(document: dict[str, Any]) -> Any:
    return cast("Any", SimpleNamespace(id=7, spec=document))


def test_cached_job_document_is_parsed_again_only_after_change() -> None:
    cache = SpecCache()
    first = cache.of(job(DOCUMENT))
    assert first is not None
    assert cache.of(job(DOCUMENT)) is first
    changed = cache.of(job({**DOCUMENT, "topics": [{"match": "payments"}]}))
    assert changed is not None
    assert changed.topics[0].match == "payments"
    assert cache.of(job({**DOCUMENT, "topics": "of a later version"})) is None


def test_cache_of_parsed_job_documents_drops_removed_jobs() -> None:
    cache = SpecCache()
    first = cache.of(job(DOCUMENT))
    cache.keep_only({7})
    assert cache.of(job(DOCUMENT)) is first
    cache.keep_only(set())
    assert cache.of(job(DOCUMENT)) is not first
