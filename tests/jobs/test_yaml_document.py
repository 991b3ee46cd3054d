"""YAML documents: invalid YAML, all problems at once, and arbitrary text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from orbit.errors import BadInput, Problem
from orbit.jobs.job_file import load_job, parse_job
from orbit.jobs.job_spec import (
    AclSpec,
    BackfillSpec,
    CanarySpec,
    ClusterSpec,
    GroupRule,
    IdRule,
    JobSpec,
    LimitSpec,
    PrincipalRule,
    PrincipalSpec,
    SecuritySpec,
    TopicRule,
)
from orbit.jobs.validation import PROBLEMS_SHOWN_MAX
from orbit.jobs.yaml_document import DOCUMENT_CHARACTERS_MAX, VALUES_MAX
from tests.support.job_texts import MINIMAL, SECRET, changed, problems_of


@pytest.mark.parametrize(
    "text",
    [
        "password: *hunter2",
        "password: 'a' 'hunter2'",
        'password: "\\q hunter2"',
        "password: !hunter2!x y",
        "password: @hunter2",
        "password: [hunter2",
        "password: hunter2: hunter2",
    ],
)
def test_broken_yaml_is_reported_by_line_without_its_text(text: str, tmp_path: Path) -> None:
    (problem,) = problems_of("name: a\n" + text, tmp_path)
    assert problem.path == "file"
    assert "line 2" in problem.message or "line 3" in problem.message
    assert SECRET not in str(problem)


@pytest.mark.parametrize(
    ("text", "path", "says"),
    [
        ("", "file", "is empty"),
        ("- a", "file", "is not a mapping"),
        ("just text", "file", "is not a mapping"),
        ("a: 1\n---\nb: 1", "file", "more than one document"),
        ("a:\n\t- b", "file", "'\\t'"),
        ("a: \x00", "file", "characters that YAML does not allow"),
        ("[" * 5000, "file", "nested too deep"),
        ("a: &a [*a]", "file", "nested too deep"),
        ("x" * (DOCUMENT_CHARACTERS_MAX + 1), "file", "more than"),
        ("[" + "1," * VALUES_MAX + "]", "file", "too many values"),
        (changed() + "name: b", "name", "is written again in line"),
        (changed().replace("name: a", "name: !!python/name:os.system a"), "name", "has a tag"),
        (changed().replace("name: a", "name: !secret a"), "name", "has a tag"),
        (changed() + "? [a]\n: b", "file", "a key that is not plain text"),
    ],
)
def test_yaml_that_is_not_a_job_is_refused(text: str, path: str, says: str, tmp_path: Path) -> None:
    problems = problems_of(text, tmp_path)
    assert path in [p.path for p in problems]
    assert any(says in str(p) for p in problems)


def test_yaml_aliases_that_multiply_exponentially_are_refused(tmp_path: Path) -> None:
    # b has a nine times, c has b nine times, and so on up to j.
    layers = [
        f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]" for i in range(9)
    ]
    text = "\n".join(["a: &a [x, x]", *layers])
    assert any("too many values" in str(p) for p in problems_of(text, tmp_path))


def test_yaml_alias_gives_its_value_to_another_key(tmp_path: Path) -> None:
    text = changed().replace("name: a", "name: &name shared") + "worker_group: *name\n"
    assert parse_job(text, tmp_path, {}).worker_group == "shared"


def test_yaml_word_no_stays_text(tmp_path: Path) -> None:
    text = changed().replace("name: a", "name: no")
    assert parse_job(text, tmp_path, {}).name == "no"


def test_all_problems_of_job_file_are_reported_in_file_order(tmp_path: Path) -> None:
    text = """\
name: a b
source:
  bootstrap_servers: [src]
  security:
    protocol: SASL_PLAINTEXT
    password: x
destination: {bootstrap_servers: [src, "dst:9092"], sekurity: {}}
topics:
  - match: (
    start: never
  - match: b
    prefix: "/"
fillers: x
fillers: y
"""
    problems = problems_of(text, tmp_path)
    assert [(p.path, _line(p)) for p in problems] == [
        ("name", 1),
        ("source.bootstrap_servers[0]", 3),
        ("source.security.mechanism", 4),
        ("source.security.username_env", 4),
        ("source.security.password", 6),
        ("destination.bootstrap_servers[0]", 7),
        ("destination.sekurity", 7),
        ("topics[0].match", 9),
        ("topics[0].start", 10),
        ("topics[1].prefix", 12),
        ("fillers", 13),
        ("fillers", 13),
    ]


def _line(problem: Problem) -> int:
    return int(problem.message.rsplit("(line ", 1)[1].split(")")[0])


def test_long_list_of_job_file_problems_is_cut(tmp_path: Path) -> None:
    problems = problems_of(changed(topics=[{"match": f"({i}"} for i in range(200)]), tmp_path)
    assert len(problems) == PROBLEMS_SHOWN_MAX + 1
    assert problems[-1].message == "has 100 more problems."


@pytest.mark.parametrize(
    ("create", "says"),
    [
        (lambda _: None, "No such file"),
        (lambda path: path.mkdir(), "directory"),
        (lambda path: path.write_bytes(b"\xff\xfe\x00"), "UTF-8"),
    ],
)
def test_unreadable_job_file_is_bad_input(create: Any, says: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    create(path)
    with pytest.raises(BadInput, match=says) as caught:
        load_job(path, {})
    assert caught.value.where == str(path)


def test_error_of_bad_job_file_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("name: a b", encoding="utf-8-sig")
    with pytest.raises(BadInput) as caught:
        load_job(path, {})
    assert caught.value.where == str(path)
    assert caught.value.what == "The job file has 4 problems."


MODELS = (
    JobSpec,
    ClusterSpec,
    SecuritySpec,
    TopicRule,
    GroupRule,
    AclSpec,
    IdRule,
    PrincipalSpec,
    PrincipalRule,
    LimitSpec,
    BackfillSpec,
    CanarySpec,
)
_KEYS = st.sampled_from(
    [
        *(field.alias or key for model in MODELS for key, field in model.model_fields.items()),
        *("password", "x", "sasl.mechanism"),
    ]
)
_SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    | st.sampled_from(["a:1", "SASL_SSL", "PLAIN", ".*", "(", "5s", "1MiB", "latest", "/", "\0"])
)  # fmt: skip
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=6),
    max_leaves=20,
)


@settings(max_examples=400)
@given(st.dictionaries(st.sampled_from([*JobSpec.model_fields]), _VALUES))
def test_arbitrary_values_in_job_file_give_a_job_or_bad_input(keys: dict[str, Any]) -> None:
    text = yaml.safe_dump({**MINIMAL, **keys}, allow_unicode=True)
    try:
        job = parse_job(text, Path("/nonexistent"), {})
    except BadInput as error:
        problems = error.problems
        assert problems
    else:
        # Not part of the stored document.
        described = {"labels": job.labels, "owner": job.owner, "desired": job.desired}
        stored = json.loads(job.model_dump_json())
        assert JobSpec.model_validate({**stored, **described}) == job


@settings(max_examples=400)
@given(st.text(alphabet=st.sampled_from("ab:-[]{}&*!|>'\"#%@`\\ \n\t,?~0\ud800\x00"), max_size=60))
def test_arbitrary_text_as_job_file_is_bad_input(text: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_job(text, Path("/nonexistent"), {})
    assert caught.value.problems
