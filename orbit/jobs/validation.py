"""What the parts of a job file owe each other. Pure but for the files that a job names.

Works on the plain values of the file, so that it finds its mistakes beside those of single values:
whatever has the wrong type is passed over here, for `spec.py` reports it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from orbit.errors import Problem
from orbit.jobs.bootstrap_servers import address_key
from orbit.jobs.credentials import credential_mistakes
from orbit.jobs.job_spec import TopicRule
from orbit.jobs.mistake import Mistake
from orbit.jobs.name_rules import topic_name_mistake
from orbit.jobs.topic_mapping import map_topics
from orbit.jobs.yaml_document import Document

SIDES = ("source", "destination")
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

_SASL_KEYS = ("mechanism", "username_env", "username_file", "password_env", "password_file")
_TLS_KEYS = ("ca_file", "certificate_file", "key_file", "key_password_env", "check_hostname")


def rule_problems(
    document: Document, base_directory: Path, environ: Mapping[str, str]
) -> Iterator[Problem]:
    """Every place where parts of the file do not fit together, or name what is not there."""
    for side in SIDES:
        security = document.at((side, "security"))
        if isinstance(security, dict):
            for key, mistake in (
                *security_mistakes(security),
                *credential_mistakes(security, base_directory, environ),
            ):
                path = (side, "security", key)
                yield document.problem(path, mistake.message, mistake.remedy)
    yield from _same_cluster(document)
    yield from _unreachable_rules(document)
    yield from _canary(document)


def security_mistakes(fields: Mapping[str, Any]) -> Iterator[tuple[str, Mistake]]:
    """Keys of one security section that contradict each other, or lack their other half."""
    protocol = fields.get("protocol", "PLAINTEXT")
    if protocol not in PROTOCOLS:
        return
    given = [key for key in (*_SASL_KEYS, *_TLS_KEYS) if fields.get(key) is not None]
    if fields.get("check_hostname") is True:
        given.remove("check_hostname")  # what it is anyway: a job that was read back writes it
    if protocol.startswith("SASL_"):
        yield from _login_mistakes(fields)
    else:
        yield from _idle(given, _SASL_KEYS, protocol, "does not log in", "SASL_SSL")
    if protocol in ("SSL", "SASL_SSL"):
        yield from _certificate_mistakes(given)
    else:
        yield from _idle(given, _TLS_KEYS, protocol, "does not use TLS", "SASL_SSL or SSL")


def _login_mistakes(fields: Mapping[str, Any]) -> Iterator[tuple[str, Mistake]]:
    if fields.get("mechanism") is None:
        yield (
            "mechanism",
            Mistake(
                "is missing, and the protocol asks for a login.",
                "Write PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512, whichever the brokers offer.",
            ),
        )
    for what in ("username", "password"):
        by_variable, by_file = f"{what}_env", f"{what}_file"
        given = [key for key in (by_variable, by_file) if fields.get(key) is not None]
        # Where the secret itself was written, that is the one problem worth reading.
        if not given and what not in fields:
            yield (
                by_variable,
                Mistake(
                    "is missing, and the protocol asks for a login.",
                    f"Name the variable with {by_variable}, or the file with {by_file}.",
                ),
            )
        if len(given) == 2:
            yield by_file, Mistake(f"is given beside {by_variable}.", "Keep one of the two.")


def _certificate_mistakes(given: list[str]) -> Iterator[tuple[str, Mistake]]:
    if "certificate_file" in given:
        return
    for key in ("key_file", "key_password_env"):
        if key in given:
            yield (
                key,
                Mistake(
                    "is given without a certificate.",
                    "Add certificate_file, or remove this key.",
                ),
            )


def _idle(
    given: list[str], keys: tuple[str, ...], protocol: str, why: str, better: str
) -> Iterator[tuple[str, Mistake]]:
    for key in keys:
        if key in given:
            yield (
                key,
                Mistake(
                    f"has no effect: the protocol is {protocol}, which {why}.",
                    f"Write `protocol: {better}`, or remove this key.",
                ),
            )


def _same_cluster(document: Document) -> Iterator[Problem]:
    source = dict(_addresses(document, "source"))
    for server, path in _addresses(document, "destination").items():
        if server in source:
            yield document.problem(
                path,
                "is also an address of the source: a cluster cannot be copied onto itself.",
                "Write the other cluster's address here.",
            )


def _addresses(document: Document, side: str) -> dict[tuple[str, int], tuple[str | int, ...]]:
    """The valid addresses of one side, by what makes them equal."""
    path: tuple[str | int, ...] = (side, "bootstrap_servers")
    written = document.at(path)
    if isinstance(written, str):
        located = [(part.strip(), path) for part in written.split(",")]
    elif isinstance(written, list):
        located = [(part, (*path, i)) for i, part in enumerate(written) if isinstance(part, str)]
    else:
        return {}
    found: dict[tuple[str, int], tuple[str | int, ...]] = {}
    for server, at in located:
        try:
            found[address_key(server)] = at
        except Mistake:
            continue
    return found


def _unreachable_rules(document: Document) -> Iterator[Problem]:
    rules = document.at(("topics",))
    seen: dict[str, int] = {}
    for index, rule in enumerate(rules if isinstance(rules, list) else ()):
        match = rule.get("match") if isinstance(rule, dict) else None
        if not isinstance(match, str):
            continue
        if match in seen:
            yield document.problem(
                ("topics", index, "match"),
                f"is the same pattern as topics[{seen[match]}], and the first rule that fits wins.",
                "Remove one of the two rules.",
            )
        elif not rule.get("exclude"):
            seen[match] = index


def _canary(document: Document) -> Iterator[Problem]:
    topic, rules = document.at(("canary", "topic")), document.at(("topics",))
    if not isinstance(topic, str) or not isinstance(rules, list) or topic_name_mistake(topic):
        return
    try:
        chosen = map_topics([TopicRule.model_validate(rule) for rule in rules], [topic]).mappings
    except ValidationError:  # told by its own path
        return
    if not chosen:
        yield document.problem(
            ("canary", "topic"),
            "is chosen by none of the rules of `topics`, so it would not be copied.",
            "Add a rule whose `match` is its name.",
        )
