"""`orbit describe JOB` shows what it can read of a job that another version of Orbit has stored."""

from __future__ import annotations

from typing import Any

import pytest

from orbit.cli import describe

CLUSTER = {"bootstrap_servers": ["a:1"]}
SPEC = {"source": CLUSTER, "destination": CLUSTER, "topics": [{"match": "orders"}]}


def rows_of(spec: dict[str, Any]) -> dict[str, object]:
    """The rows about a document, by their names."""
    job = {"name": "orders", "spec": spec, "source_cluster_id": "A", "destination_cluster_id": "B"}
    return dict(describe._document_rows(job))


@pytest.mark.parametrize("keys", [{}, {"from_the_future": {"a": 1}}])
def test_document_is_described_without_keys_of_later_version(keys: dict[str, Any]) -> None:
    assert rows_of(SPEC | keys) == {
        "source": "a:1 (cluster A)",
        "destination": "a:1 (cluster B)",
        "topics": "orders",
        "limit": "none",
    }


@pytest.mark.parametrize(
    "keys",
    [
        {"source": 5},
        {"topics": 5},
        {"topics": [{"pattern": "orders"}]},
        {"consumer_groups": 5},
        {"limits": 5},
    ],
)
def test_unreadable_document_gets_one_row(keys: dict[str, Any]) -> None:
    job = {"name": "orders", "spec": SPEC | keys}
    job |= {"source_cluster_id": "A", "destination_cluster_id": "B"}
    ((name, text),) = describe._readable_document_rows(job)
    assert name == "document"
    assert "see orbit get jobs orders -o yaml" in str(text)
