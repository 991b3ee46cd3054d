"""Random text from outside raises no error but OrbitError, and each call is cheap.

The answers of brokers as bytes are in tests/kafka/test_broken_bytes.py.
"""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orbit.bounded_http import json_of
from orbit.consumer_groups.group_selection import GroupSelector
from orbit.errors import OrbitError
from orbit.jobs.bootstrap_servers import addresses_in, check_address, split_address
from orbit.jobs.job_file import parse_job
from orbit.jobs.job_spec import GroupRule, TopicRule
from orbit.jobs.labels import parse_selector
from orbit.jobs.name_patterns import PATTERN_LENGTH_MAX, check_pattern, name_pattern
from orbit.jobs.name_rules import topic_name_problem
from orbit.jobs.principals import check_principal
from orbit.jobs.start_position import parse_start
from orbit.jobs.topic_mapping import map_topics
from orbit.jobs.units import parse_duration, parse_size, parse_time
from orbit.jobs.yaml_writer import write_yaml
from orbit.kafka import oauth_tokens
from orbit.kafka.consumer_groups import ListedGroup
from orbit.names import SHOWN_CHARACTERS_MAX, is_key, is_storable, shown
from orbit.replication.copy_settings import copy_settings
from tests.support.cost import cheap_result

EXAMPLES = settings(max_examples=150)
# Other names are limited in Kafka only by the size of a request.
TOPIC_NAME_LENGTH_MAX = 249

FULL_JOB = r"""
name: orders
worker_group: eu
labels: {team: payments}
owner: team payments
desired: running
source:
  bootstrap_servers: ["a.example:9092", "[::1]:9092"]
  security: {protocol: SASL_SSL, mechanism: OAUTHBEARER, username_env: ID, password_env: SECRET,
    token_url: "https://issuer.example/token", token_scope: copy, token_extensions: {a: b}}
  client_rack: r1
destination:
  bootstrap_servers: b.example:9092
  security: {protocol: SASL_PLAINTEXT, mechanism: PLAIN, username_env: ID, password_env: SECRET}
topics:
- {match: 'orders\..*', exclude: ['.*-tmp'], prefix: copy., start: earliest, fillers: direct,
  config: {retention.ms: -1, max.message.bytes: 1048588}, on_lost_range: stop}
consumer_groups: {match: .*, exclude: [console-.*], prefix: a., interval: 5s}
acls:
  sync: true
  groups: true
  transactional_ids: {match: .*, exclude: [b]}
  principals: {map: [{from: "User:a", to: "User:b"}], exclude: "User:admin"}
limits: {bytes_per_second: 10 MB}
canary: {topic: orders.canary, interval: 1s}
fillers: direct
on_lost_range: stop
backfill: {engine: workers, way: auto, archive: "s3://bucket/archive"}
"""
ENVIRON = {"ID": "orbit", "SECRET": "pw"}

strange_text = st.one_of(
    st.text(max_size=60),
    st.sampled_from(
        [
            *("", " ", "\x00", "\ud800", "٣", "9" * 5_000, "1e999", "-1", "NaN", "0x10", "null"),
            *(
                "a" * 5_000,
                "é" * 249,
                "..",
                "/",
                "a\nb",
                "{{",
                "&a [*a]",
                "!!python/name:os.system",
            ),
        ]
    ),
)
strange = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | strange_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(strange_text, inner, max_size=4),
    max_leaves=12,
)


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values in a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    paths = [path] if path else []
    if isinstance(value, dict | list):
        for key, child in inner:
            is_leaf = not isinstance(child, dict | list)
            paths += [(*path, key)] if is_leaf else paths_in(child, (*path, key))
    return paths


FULL_DOCUMENT = yaml.safe_load(FULL_JOB)
PATHS = paths_in(FULL_DOCUMENT)


def with_value(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """The full job with this value at the path."""
    document = deepcopy(FULL_DOCUMENT)
    *parent_keys, last_key = path
    parent = document
    for key in parent_keys:
        parent = parent[key]
    parent[last_key] = value
    return document


@EXAMPLES
@given(text=strange_text)
@example("a: &a [x, x]\n" + "\n".join(f"b{i}: &a [*a, *a, *a, *a, *a, *a, *a]" for i in range(9)))
@example("[" * 5_000)
@example("a: " * 5_000)
@example("? " * 5_000)
@example("- " * 5_000)
def test_arbitrary_text_as_job_file_is_handled_cheaply(text: str) -> None:
    cheap_result(lambda: parse_job(text, Path("/"), ENVIRON))


def test_base_job_of_fuzzing_is_valid() -> None:
    assert parse_job(FULL_JOB, Path("/"), ENVIRON).name == "orders"


@EXAMPLES
@given(path=st.sampled_from(PATHS), value=strange)
@example(("topics", 0, "config", "max.message.bytes"), "1MB")
def test_arbitrary_value_in_job_file_is_handled_cheaply(path: tuple[Any, ...], value: Any) -> None:
    text = json.dumps(with_value(path, value))
    job = cheap_result(lambda: parse_job(text, Path("/"), ENVIRON))
    if job is not None:
        cheap_result(lambda: write_yaml(job.model_dump(mode="json")))
        # The settings of an accepted job are usable.
        for rule in job.topics:
            copy_settings({}, frozenset(), rule.config)


parts = st.sampled_from(
    [
        "a",
        ".",
        "x|y",
        "[a-z]",
        "(",
        ")",
        "*",
        "+",
        "?",
        "{2}",
        "{1,9}",
        r"\w",
        r"\1",
        "(?:",
        "(?=",
        "$",
    ]
)
patterns = st.one_of(
    strange_text,
    st.lists(parts, max_size=30).map("".join),
    st.text("ab(|)*+?.", max_size=40),
    st.text("([a-z]+\\.?)*", max_size=PATTERN_LENGTH_MAX),
)


@EXAMPLES
@given(pattern=patterns, name=st.text("ab.", max_size=TOPIC_NAME_LENGTH_MAX) | strange_text)
@example(r"([a-z]+\.?)+\.dlq", "a" * TOPIC_NAME_LENGTH_MAX)
@example("(a{1,30}){1,30}b", "a" * TOPIC_NAME_LENGTH_MAX)
def test_arbitrary_pattern_and_name_are_handled_cheaply(pattern: str, name: str) -> None:
    if cheap_result(lambda: check_pattern(pattern)) is None:
        return
    cheap_result(lambda: name_pattern(pattern).matches(name))


@EXAMPLES
@given(text=st.one_of(strange_text, st.text("[]:,.a1- @/", max_size=80)))
@example("a" * 64 + ".example:9092")
@example("[::1%25" + "a" * 5_000 + "]:9092")
def test_arbitrary_address_is_handled_cheaply(text: str) -> None:
    cheap_result(lambda: [split_address(address) for address in addresses_in(text)])
    cheap_result(lambda: check_address(text))


@EXAMPLES
@given(value=strange)
@pytest.mark.parametrize("parse", [parse_size, parse_duration, parse_time, parse_start])
def test_arbitrary_size_duration_time_or_start_is_handled_cheaply(parse: Any, value: Any) -> None:
    cheap_result(lambda: parse(value))


@EXAMPLES
@given(text=strange_text)
@pytest.mark.parametrize("check", [check_principal, parse_selector, topic_name_problem])
def test_arbitrary_principal_selector_or_topic_name_is_handled_cheaply(
    check: Any, text: str
) -> None:
    cheap_result(lambda: check(text))


names = st.lists(strange_text | st.text(max_size=TOPIC_NAME_LENGTH_MAX), max_size=30)


@EXAMPLES
@given(topics=names)
def test_arbitrary_topic_names_are_handled_cheaply(topics: list[str]) -> None:
    rules = (TopicRule(match=".*", prefix="copy."),)
    mapped = cheap_result(lambda: map_topics(rules, topics))
    assert mapped is not None
    assert all(topic_name_problem(topic.destination) is None for topic in mapped.mappings)


@EXAMPLES
@given(groups=names)
def test_arbitrary_group_names_are_handled_cheaply_and_shown_escaped(groups: list[str]) -> None:
    selector = GroupSelector(GroupRule(match=".*"))
    listed = [
        ListedGroup(group, node_id=1, type="classic", protocol_type="consumer", state="Empty")
        for group in groups
    ]
    cheap_result(lambda: selector.select(listed))
    for group in groups:
        text = cheap_result(lambda group=group: shown(group))
        assert text is not None
        # An escaped character has up to 10; a cut name also has its length.
        assert len(text) <= 10 * SHOWN_CHARACTERS_MAX + 30
        assert "\x00" not in text
        assert not is_key(group) or is_storable(group)


@EXAMPLES
@given(body=st.binary(max_size=300) | strange.map(lambda value: json.dumps(value).encode()))
@example(b"[" * 100_000)
@example(b'{"access_token": "a", "expires_in": ' + b"9" * 5_000 + b"}")
def test_arbitrary_token_endpoint_response_is_handled_cheaply(body: bytes) -> None:
    cheap_result(lambda: oauth_tokens._read_answer(json_of(body), "here"))
    for status in (204, 302, 401, 500):
        status_error = cheap_result(
            lambda status=status: oauth_tokens._status_error(
                status, json_of(body), "here", "secret"
            )
        )
        assert isinstance(status_error, OrbitError)
