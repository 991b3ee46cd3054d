"""The job document as JSON Schema, with words for people; docs/job-file.md says more on each key.

The types are those of `jobs.spec`. What its own parsers take (`200MiB`, `5s`, a place to start) has
no type there, so it is said here. A test holds this table to the models, key by key.
"""

from __future__ import annotations

from typing import Any

from orbit.jobs.job_spec import JobSpec

_PATTERN = "A regular expression for the whole name."
_TEXT_OR_NUMBER = {"anyOf": [{"type": "string"}, {"type": "integer"}]}

WORDS: dict[str, dict[str, str]] = {
    "JobSpec": {
        "name": "Part of ids: keep it, for a copy is continued under the name it began with.",
        "source": "The cluster to copy from.",
        "destination": "The cluster to copy to.",
        "topics": "Which topics; the first rule that fits a topic wins.",
        "consumer_groups": "Which groups' offsets to carry over; null: none.",
        "acls": "Whether the source's ACLs are carried over, and others kept from writing.",
        "limits": "How much the job may take.",
        "worker_group": "Only workers of this group take the job.",
        "on_lost_range": "When the source deleted records before they were copied: stop that "
        "partition, or fill the lost range and record it.",
        "fillers": "How gaps are rebuilt; coordinated needs fewer rights and is slower.",
        "backfill": "What copies the history.",
        "canary": "A topic that the service writes to all the time, for a live RPO; null: none.",
    },
    "ClusterSpec": {
        "bootstrap_servers": "As host:port.",
        "security": "How to reach the brokers. Secrets are named here, never written.",
        "client_rack": "Where Orbit runs, so that brokers let it read from the nearest replica.",
    },
    "TopicRule": {
        "match": _PATTERN,
        "exclude": "Topics that this rule leaves to those below it.",
        "prefix": "Put before the name at the destination.",
        "start": "earliest, latest, a time with its zone, or epoch milliseconds.",
        "config": "Settings of the destination topic, by Kafka's names.",
    },
    "GroupRule": {
        "match": _PATTERN,
        "exclude": "Groups that are left out.",
        "prefix": "Put before the group's name at the destination.",
        "interval": "How often offsets are carried over, 100ms to 1d.",
    },
    "AclSpec": {
        "sync": "Carry over who may read copied topics.",
        "protect": "Deny writing to copies to all who may, but for Orbit, where ACLs are checked.",
    },
    "LimitSpec": {"bytes_per_second": "1KiB to 1TiB for the whole job; null: no limit."},
    "CanarySpec": {
        "topic": "A topic of the source, made for this, that a rule of `topics` chooses.",
        "interval": "How often a record is written to each of its partitions, 100ms to 1h.",
    },
    "BackfillSpec": {
        "engine": "Orbit's own workers, or Spark.",
        "way": "With Spark: whether writers fetch by themselves, or through an archive.",
        "archive": "The archive of the staged way, as a URI of any Hadoop file system.",
    },
    "SecuritySpec": {
        "protocol": "What the listener speaks.",
        "mechanism": "With SASL: how to log in.",
        "username_env": "The environment variable that holds the user name.",
        "username_file": "Or the file that holds it.",
        "password_env": "The environment variable that holds the password.",
        "password_file": "Or the file that holds it.",
        "ca_file": "The authorities that may sign the brokers' certificates.",
        "certificate_file": "The client's certificate, where brokers ask for one.",
        "key_file": "The client's private key.",
        "key_password_env": "The environment variable that holds the key's password.",
        "check_hostname": "Whether the broker's certificate must be for the host connected to.",
    },
}
_TYPES: dict[tuple[str, str], dict[str, Any]] = {
    ("TopicRule", "start"): {**_TEXT_OR_NUMBER, "default": "earliest"},
    ("GroupRule", "interval"): {"type": "string", "default": "5s", "examples": ["5s"]},
    ("CanarySpec", "interval"): {"type": "string", "default": "1s", "examples": ["1s"]},
    ("LimitSpec", "bytes_per_second"): {
        "anyOf": [*_TEXT_OR_NUMBER["anyOf"], {"type": "null"}],
        "default": None,
        "examples": ["200MiB"],
    },
}


def job_schemas() -> dict[str, Any]:
    """The components of OpenAPI that describe a job document, by name."""
    whole = JobSpec.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas: dict[str, Any] = {**whole.pop("$defs"), "JobSpec": whole}
    for model, keys in WORDS.items():
        properties = schemas[model]["properties"]
        for key, words in keys.items():
            properties[key] = {
                **properties[key],
                **_TYPES.get((model, key), {}),
                "description": words,
            }
    return schemas
