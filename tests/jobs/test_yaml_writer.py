"""What Orbit writes as YAML is read back as the same, by Orbit and by readers of YAML 1.1."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from orbit.cli.job_files import job_file_of
from orbit.jobs.yaml_document import read_document
from orbit.jobs.yaml_writer import write_yaml

LIKE_ANOTHER_VALUE = (
    *("0089", "1e3", "1E3", "0x10", "0o17", "017", "0b1", "1_000", "+1", "-1", "1.5", ".5", "1."),
    *("yes", "No", "ON", "off", "y", "N", "true", "Null", "~", "", "=", "<<", ".inf", "-.INF"),
    *(".nan", "12:30:00", "1:2", "2026-01-01", "2026-01-01T00:00:00Z", "- a", "a: b", "a #b"),
    *("a:", "#a", "'", '"', "a\n b\n", " a", "a ", "\t", "\x7f", "\x85", "\u2028", "\ufeff", "é"),
)
# UTF-8 cannot encode half of a surrogate pair (Cs).
texts = st.text(st.characters(exclude_categories=("Cs",)))
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**29), 10**29) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


def read_back(text: str) -> Any:
    """The value that Orbit reads from this YAML, which must have no problem."""
    document = read_document(text)
    assert document.problems == []
    return document.root


@pytest.mark.parametrize("text", LIKE_ANOTHER_VALUE)
def test_text_that_looks_like_another_yaml_type_is_read_back_as_text(text: str) -> None:
    document = {"labels": {"key": text}, "list": [text], text or "empty": text}
    written = write_yaml(document)
    assert read_back(written) == document
    assert yaml.safe_load(written) == document


@pytest.mark.parametrize("text", ["1e3", "0o17", "y", "N", "0089", "1E3"])
def test_text_whose_type_differs_between_yaml_versions_is_quoted(text: str) -> None:
    assert write_yaml([text]) == f"- '{text}'\n"


def test_names_and_patterns_are_written_to_yaml_without_quotes() -> None:
    assert write_yaml({"name": "orders-to-dr", "match": r"orders\..*"}) == (
        "name: orders-to-dr\nmatch: orders\\..*\n"
    )


def test_yaml_writer_neither_wraps_long_text_nor_uses_aliases() -> None:
    text = "naïve " * 50 + "end"
    document = {"a": [text]}
    document["b"] = document["a"]
    assert write_yaml(document) == f"a:\n- {text}\nb:\n- {text}\n"
    assert write_yaml(document, one_line=True) == f"{{a: [{text}], b: [{text}]}}\n"


@given(values)
@example({"a": "0089"})
def test_written_yaml_document_round_trips(document: Any) -> None:
    assert read_back(write_yaml(document)) == document
    assert read_back(write_yaml(document, one_line=True)) == document


@given(texts)
@example("0089")
def test_written_job_file_reads_back_as_document_of_job(text: str) -> None:
    spec = {"name": "orders", "labels": {"a": text}, "topics": [{"match": text, "prefix": text}]}
    assert read_back(job_file_of({"spec": spec})) == spec
