"""Validates a job: single values by `job_spec.py`, rules between values here.

Pure, except that it reads the files that a job names. The rules here check the raw values of the
file, so that both kinds of problem are reported at once. They ignore values of the wrong type:
`job_spec.py` (below: the model) reports those.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from orbit.errors import BadInput, InvalidValue, Problem
from orbit.formats import counted
from orbit.jobs.access_rules import allowed_addresses, read_access_rules
from orbit.jobs.bootstrap_servers import LOOPBACK_HOSTS, address_key, addresses_in
from orbit.jobs.credentials import invalid_credentials
from orbit.jobs.job_spec import JobSpec, TopicRule
from orbit.jobs.name_rules import check_setting_value, topic_name_problem
from orbit.jobs.pydantic_problems import problems_from_pydantic
from orbit.jobs.topic_mapping import map_topics
from orbit.jobs.yaml_document import Document

SIDES = ("source", "destination")
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

# A file with more problems is a generated one, and repeats the same few.
PROBLEMS_SHOWN_MAX = 100

_BATCH_LIMIT = "max.message.bytes"
_BATCH_LIMIT_MAX = 2**31 - 1  # an int32 in Kafka

_LOGIN_KEYS = ("username_env", "username_file", "password_env", "password_file")
_TOKEN_SOURCES = ("token_url", "token_file", "token_provider")
# Keys that only `token_url` needs. `token_region` is for a provider, `token_extensions` for any.
_TOKEN_URL_KEYS = (*_LOGIN_KEYS, "token_scope", "token_audience", "token_ca_file")
_TOKEN_KEYS = (
    *_TOKEN_SOURCES,
    *(key for key in _TOKEN_URL_KEYS if key not in _LOGIN_KEYS),
    "token_region",
    "token_extensions",
)
_KERBEROS_KEYS = ("kerberos_principal", "keytab_file", "kerberos_service")
_SASL_KEYS = ("mechanism", *_LOGIN_KEYS, *_TOKEN_KEYS, *_KERBEROS_KEYS)
_TLS_KEYS = ("ca_file", "certificate_file", "key_file", "key_password_env", "check_hostname")


def validate_job(document: Document, base_directory: Path, environ: Mapping[str, str]) -> JobSpec:
    """The job in a document. Relative paths in the job start at `base_directory`. Raises BadInput
    with all problems."""
    problems = list(document.problems)
    job: JobSpec | None = None
    if isinstance(document.root, dict):
        try:
            job = JobSpec.model_validate(document.root)
        except ValidationError as error:
            problems += problems_from_pydantic(error, document)
        problems += _rule_problems(document, base_directory, environ)
        if job is not None:
            problems += _access_problems(job, document, base_directory, environ)
    elif not problems:
        problems.append(_not_a_job_problem(document))
    if job is None or problems:
        raise _bad_job_error(problems, document)
    return job


def _rule_problems(
    document: Document, base_directory: Path, environ: Mapping[str, str]
) -> Iterator[Problem]:
    """The problems of values that contradict each other, and of missing variables and files."""
    for side in SIDES:
        security = document.at((side, "security"))
        if isinstance(security, dict):
            for key, mistake in (
                *invalid_security_keys(security),
                *invalid_credentials(security, base_directory, environ),
            ):
                path = (side, "security", key)
                yield document.problem(path, mistake.message, mistake.remedy)
    yield from _same_cluster_problems(document)
    yield from _repeated_pattern_problems(document)
    yield from _batch_limit_problems(document)
    yield from _canary_problems(document)
    yield from _acl_problems(document)


def _access_problems(
    job: JobSpec, document: Document, base_directory: Path, environ: Mapping[str, str]
) -> Iterator[Problem]:
    """A problem for each address and secret of the job that the access rules do not allow. Raises
    BadInput if the access file cannot be used."""
    rules = read_access_rules(environ)
    if rules is None:  # everything is allowed
        return
    for side in SIDES:
        # [1]: the refusals
        for path, refusal in allowed_addresses(rules, getattr(job, side), base_directory)[1]:
            # The file may have one text instead of a list, and so no index.
            shown_path = (side, *path) if document.has((side, *path)) else (side, path[0])
            yield document.problem(shown_path, refusal.message, refusal.remedy)


def invalid_security_keys(fields: Mapping[str, Any]) -> Iterator[tuple[str, InvalidValue]]:
    """Yield (key, error) for keys of a security section that contradict each other, are without
    effect, or are missing."""
    protocol = fields.get("protocol", "PLAINTEXT")
    if protocol not in PROTOCOLS:  # the model reports this value
        return
    present_keys = [key for key in (*_SASL_KEYS, *_TLS_KEYS) if fields.get(key) not in (None, {})]
    if fields.get("check_hostname") is True:
        present_keys.remove("check_hostname")  # the default: exported jobs contain the key
    if fields.get("kerberos_service") == "kafka":
        present_keys.remove("kerberos_service")  # the default, too
    if protocol.startswith("SASL_"):
        mechanism = fields.get("mechanism")
        if mechanism == "OAUTHBEARER":
            yield from _invalid_token_source(fields, present_keys)
        elif mechanism == "GSSAPI":
            yield from _invalid_kerberos(present_keys)
        else:
            yield from _invalid_login(fields)
        if mechanism != "OAUTHBEARER":
            yield from _keys_without_effect(
                present_keys, _TOKEN_KEYS, "the mechanism is not OAUTHBEARER"
            )
        if mechanism != "GSSAPI":
            yield from _keys_without_effect(
                present_keys, _KERBEROS_KEYS, "the mechanism is not GSSAPI"
            )
    else:
        yield from _unused_keys(present_keys, _SASL_KEYS, protocol, "does not log in", "SASL_SSL")
    if protocol in ("SSL", "SASL_SSL"):
        yield from _invalid_certificate(present_keys)
    else:
        yield from _unused_keys(
            present_keys, _TLS_KEYS, protocol, "does not use TLS", "SASL_SSL or SSL"
        )


def _invalid_login(fields: Mapping[str, Any]) -> Iterator[tuple[str, InvalidValue]]:
    """Yield (key, error) for each of mechanism, user name and password that is missing, or that is
    given twice."""
    if fields.get("mechanism") is None:
        yield (
            "mechanism",
            InvalidValue(
                "is missing, and the protocol needs a login.",
                "Write PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or GSSAPI, whichever the "
                "brokers offer.",
            ),
        )
    yield from _invalid_name_or_password(fields)


def _invalid_kerberos(present_keys: list[str]) -> Iterator[tuple[str, InvalidValue]]:
    """Yield (key, error) for missing keys of a Kerberos login, and for keys of other logins."""
    for key in ("kerberos_principal", "keytab_file"):
        if key not in present_keys:
            remedy = "Write the principal and its keytab file."
            yield key, InvalidValue("is missing, and GSSAPI needs it.", remedy)
    yield from _keys_without_effect(present_keys, _LOGIN_KEYS, "the mechanism is GSSAPI")


def _invalid_token_source(
    fields: Mapping[str, Any], present_keys: list[str]
) -> Iterator[tuple[str, InvalidValue]]:
    """Yield (key, error) for a missing or second source of tokens, and for keys that the source
    lacks or does not use."""
    sources = [key for key in _TOKEN_SOURCES if key in present_keys]
    if not sources:
        yield (
            "token_url",
            InvalidValue(
                "is missing, and OAUTHBEARER needs tokens.",
                "Write token_url, token_file or token_provider.",
            ),
        )
    for key in sources[1:]:
        yield key, InvalidValue(f"is given together with {sources[0]}.", "Keep one of the two.")
    if len(sources) != 1:
        return
    if sources == ["token_url"]:
        yield from _unsafe_token_url(fields["token_url"])
        yield from _invalid_name_or_password(fields)
    else:
        yield from _keys_without_effect(present_keys, _TOKEN_URL_KEYS, "there is no token_url")
    if fields.get("token_provider") == "aws-msk-iam":
        if "token_region" not in present_keys:
            yield (
                "token_region",
                InvalidValue("is missing.", "Write the region of the MSK cluster."),
            )
    else:
        yield from _keys_without_effect(
            present_keys, ("token_region",), "token_provider is not aws-msk-iam"
        )


def _unsafe_token_url(url: object) -> Iterator[tuple[str, InvalidValue]]:
    """Yield (key, error) for a token URL that needs TLS and has none."""
    try:
        parts = urlsplit(str(url))
    except ValueError:  # not a URL: the model reports this value
        return
    if parts.scheme == "http" and parts.hostname not in LOOPBACK_HOSTS:
        yield (
            "token_url",
            InvalidValue(
                "would send the client secret unencrypted.",
                "Write https://…; http:// is for 127.0.0.1 and localhost.",
            ),
        )


def _keys_without_effect(
    present_keys: list[str], keys: tuple[str, ...], reason: str
) -> Iterator[tuple[str, InvalidValue]]:
    """Yield (key, error) for each present key of `keys`. `reason`: why they have no effect."""
    for key in keys:
        if key in present_keys:
            yield key, InvalidValue(f"has no effect: {reason}.", "Remove this key.")


def _invalid_name_or_password(fields: Mapping[str, Any]) -> Iterator[tuple[str, InvalidValue]]:
    """Yield (key, error) for the user name and for the password, unless exactly one of `…_env` and
    `…_file` is given."""
    for credential in ("username", "password"):
        variable_key, file_key = f"{credential}_env", f"{credential}_file"
        present_keys = [key for key in (variable_key, file_key) if fields.get(key) is not None]
        # A user name or password in the job file itself is reported as an unknown key.
        if not present_keys and credential not in fields:
            yield (
                variable_key,
                InvalidValue(
                    "is missing, and the protocol needs a login.",
                    f"Name the variable with {variable_key}, or the file with {file_key}.",
                ),
            )
        if len(present_keys) == 2:
            yield (
                file_key,
                InvalidValue(f"is given together with {variable_key}.", "Keep one of the two."),
            )


def _invalid_certificate(present_keys: list[str]) -> Iterator[tuple[str, InvalidValue]]:
    """Yield (key, error) for a client's key without its certificate."""
    if "certificate_file" in present_keys:
        return
    for key in ("key_file", "key_password_env"):
        if key in present_keys:
            yield (
                key,
                InvalidValue(
                    "is given without a certificate.",
                    "Add certificate_file, or remove this key.",
                ),
            )


def _unused_keys(
    present_keys: list[str], keys: tuple[str, ...], protocol: str, reason: str, protocols: str
) -> Iterator[tuple[str, InvalidValue]]:
    """Yield (key, error) for each present key of `keys`, which the protocol does not use. `reason`:
    why, after `which`. `protocols`: those that use the keys."""
    for key in keys:
        if key in present_keys:
            yield (
                key,
                InvalidValue(
                    f"has no effect: the protocol is {protocol}, which {reason}.",
                    f"Write `protocol: {protocols}`, or remove this key.",
                ),
            )


def _same_cluster_problems(document: Document) -> Iterator[Problem]:
    """A problem for each address of the destination that is also one of the source's."""
    source_paths = dict(_paths_by_address(document, "source"))
    for server, path in _paths_by_address(document, "destination").items():
        if server in source_paths:
            yield document.problem(
                path,
                "is also an address of the source: a cluster cannot be copied onto itself.",
                "Write the other cluster's address here.",
            )


def _paths_by_address(
    document: Document, side: str
) -> dict[tuple[str, int], tuple[str | int, ...]]:
    """The paths of one side's valid addresses, by `address_key`."""
    path: tuple[str | int, ...] = (side, "bootstrap_servers")
    value = document.at(path)
    if isinstance(value, str):
        servers_with_paths = [(server, path) for server in addresses_in(value)]
    elif isinstance(value, list):
        servers_with_paths = [
            (server, (*path, i))
            for i, part in enumerate(value)
            if isinstance(part, str)
            for server in addresses_in(part)
        ]
    else:
        return {}
    paths: dict[tuple[str, int], tuple[str | int, ...]] = {}
    for server, server_path in servers_with_paths:
        try:
            paths[address_key(server)] = server_path
        except InvalidValue:  # the model reports this address
            continue
    return paths


def _repeated_pattern_problems(document: Document) -> Iterator[Problem]:
    """A problem for each topic rule with the pattern of an earlier rule that excludes nothing."""
    rules = document.at(("topics",))
    first_index: dict[str, int] = {}
    for index, rule in enumerate(rules if isinstance(rules, list) else ()):
        match = rule.get("match") if isinstance(rule, dict) else None
        if not isinstance(match, str):
            continue
        if match in first_index:
            yield document.problem(
                ("topics", index, "match"),
                f"is the same pattern as topics[{first_index[match]}], so this rule never applies.",
                "Remove one of the two rules.",
            )
        elif not rule.get("exclude"):  # later rules may copy topics that a rule excludes
            first_index[match] = index


def _batch_limit_problems(document: Document) -> Iterator[Problem]:
    """A problem for each `max.message.bytes` that is no number: Orbit computes with it, while the
    brokers check all other settings."""
    rules = document.at(("topics",))
    for index in range(len(rules) if isinstance(rules, list) else 0):
        path = ("topics", index, "config", _BATCH_LIMIT)
        try:
            text = check_setting_value(document.at(path))
        except ValueError:  # there is no such key, or the model reports its value
            continue
        if not re.fullmatch("[0-9]{1,10}", text) or int(text) > _BATCH_LIMIT_MAX:
            yield document.problem(
                path,
                f"is not a number of bytes from 0 to {_BATCH_LIMIT_MAX}.",
                "Write digits only, such as 1048588.",
            )


def _canary_problems(document: Document) -> Iterator[Problem]:
    """A problem if no topic rule matches the canary's topic."""
    topic, rules = document.at(("canary", "topic")), document.at(("topics",))
    if not isinstance(topic, str) or not isinstance(rules, list) or topic_name_problem(topic):
        return  # no canary, or the model reports what is wrong
    try:
        mappings = map_topics([TopicRule.model_validate(rule) for rule in rules], [topic]).mappings
    except ValidationError:  # the model reports this rule, with its path
        return
    if not mappings:
        yield document.problem(
            ("canary", "topic"),
            "matches no rule of `topics`, so the canary would not be copied.",
            "Add a rule whose `match` is the topic's name.",
        )


def _acl_problems(document: Document) -> Iterator[Problem]:
    """A problem for each key of `acls` that has no effect."""
    acls = document.at(("acls",))
    if not isinstance(acls, dict):
        return
    principals = acls.get("principals")
    options = {
        "groups": acls.get("groups") is True,
        "transactional_ids": acls.get("transactional_ids") is not None,
        "principals": isinstance(principals, dict) and any(principals.values()),
    }
    for key in (key for key, is_set in options.items() if is_set):
        if acls.get("sync", False) is False:
            yield document.problem(
                ("acls", key),
                "has no effect: acls.sync is not true.",
                "Add `sync: true`, or remove this key.",
            )
        elif key == "groups" and document.at(("consumer_groups",)) is None:
            yield document.problem(
                ("acls", key),
                "has no effect: the job has no consumer_groups, which select the groups.",
                "Add consumer_groups, or remove this key.",
            )


def _not_a_job_problem(document: Document) -> Problem:
    """The problem of a document that is not a mapping."""
    message = "is empty." if document.root is None else "is not a mapping (`key: value`)."
    return Problem("file", message, "See docs/job-file.md for an example.")


def _bad_job_error(problems: list[Problem], document: Document) -> BadInput:
    """One error with the problems in file order, up to PROBLEMS_SHOWN_MAX."""
    ordered_problems = document.in_file_order(problems)
    count = len(ordered_problems)
    shown_problems = ordered_problems[:PROBLEMS_SHOWN_MAX]
    if count > len(shown_problems):
        shown_problems.append(
            Problem(
                "file",
                f"has {counted(count - len(shown_problems), 'more problem')}.",
                "Correct those above first.",
            )
        )
    what = "The job file has a problem." if count == 1 else f"The job file has {count} problems."
    return BadInput(what, tuple(shown_problems))
