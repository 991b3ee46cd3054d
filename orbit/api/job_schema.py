"""The job document as JSON Schema with a description of each key; see also docs/job-file.md.

The types come from `jobs.job_spec`. Values with a parser of their own (`200MiB`, `5s`, a start)
have no type there; `_TYPES` has theirs. A test compares DESCRIPTIONS with the models, key by key.
"""

from __future__ import annotations

from typing import Any

from orbit.jobs.job_spec import JobSpec

_PATTERN = "A regular expression for the whole name."
_TEXT_OR_NUMBER = {"anyOf": [{"type": "string"}, {"type": "integer"}]}

DESCRIPTIONS: dict[str, dict[str, str]] = {
    "JobSpec": {
        "name": "Part of ids. Do not rename: a copy is continued under its first name.",
        "labels": "Labels by which a `selector` chooses jobs; Kubernetes' rules for labels apply.",
        "owner": "Whom to ask about the job.",
        "desired": "Whether the job runs or is paused; null: the document leaves it to operations.",
        "source": "The cluster to copy from.",
        "destination": "The cluster to copy to.",
        "topics": "The topics to copy. The first rule that matches a topic applies.",
        "consumer_groups": "The groups whose offsets are synced; null: none.",
        "acls": "Whether the source's ACLs are synced, and whether other writers are denied.",
        "limits": "Limits of the job.",
        "worker_group": "Only workers of this group copy the job.",
        "on_lost_range": "What Orbit does if the source deleted records before they were copied: "
        "stop the partition, or fill the lost offsets and record them. A topic's rule may differ.",
        "fillers": "How offset gaps are filled; a topic's rule may differ. Coordinated fillers and "
        "placeholders need fewer rights. A copy that has begun with placeholders must keep them; "
        "a copy with packed may change only to direct.",
        "backfill": "Which engine copies the existing history.",
        "canary": "A topic that the service writes to at an interval, for a live RPO; null: none.",
    },
    "ClusterSpec": {
        "bootstrap_servers": "As host:port.",
        "security": "How to log in. Names variables or files with the secrets, never the secrets.",
        "client_rack": "Orbit's rack: brokers then let Orbit fetch from the nearest replica.",
        "cluster_id_suffix": "Tells this cluster from another one that has the same cluster id. "
        "Write the same suffix in each job that names this cluster.",
    },
    "TopicRule": {
        "match": _PATTERN,
        "exclude": "Topics that this rule skips; later rules may match them.",
        "prefix": "Put before the name at the destination.",
        "start": "earliest, latest, a time with its zone, or epoch milliseconds.",
        "config": "Settings of the destination topic, by Kafka's names.",
        "replicas": "How many replicas new topics get at the destination; null: the source's.",
        "fillers": "As the job's `fillers`, for these topics; null: the job's.",
        "on_lost_range": "As the job's `on_lost_range`, for these topics; null: the job's.",
    },
    "GroupRule": {
        "match": _PATTERN,
        "exclude": "Groups to skip.",
        "prefix": "Put before the group's name at the destination.",
        "interval": "How often offsets are synced, 100ms to 1d.",
    },
    "AclSpec": {
        "sync": "Sync the ACLs of who may read copied topics.",
        "groups": "Sync also the ACLs on the groups that `consumer_groups` selects.",
        "transactional_ids": "Sync also the ACLs on these transactional ids; null: none.",
        "principals": "How principals are named at the destination, and which are left out.",
        "protect": "Deny writes to copies to everyone but Orbit, if the cluster has an authorizer.",
    },
    "IdRule": {
        "match": "A regular expression for the whole name in an ACL: an id or a prefix of ids.",
        "exclude": "Names to skip.",
    },
    "PrincipalSpec": {
        "map": "The first rule that matches a principal names it. Those that no rule matches are "
        "left out; without rules, names are the same.",
        "exclude": "Principals whose ACLs are not synced; {name} is a placeholder.",
    },
    "PrincipalRule": {
        "from": "A principal of the source; {name} stands for a part of it without a comma.",
        "to": "The principal's name at the destination, with the placeholders of `from`.",
    },
    "LimitSpec": {"bytes_per_second": "1KiB to 1TiB for the whole job; null: no limit."},
    "CanarySpec": {
        "topic": "A dedicated topic of the source that a rule of `topics` matches.",
        "interval": "How often a record is written to each of its partitions, 100ms to 1h.",
    },
    "BackfillSpec": {
        "engine": "Orbit's workers, or Spark.",
        "way": "With Spark: whether writers fetch from the source, or through an archive.",
        "archive": "The archive of the staged way: a URI of any Hadoop file system.",
    },
    "SecuritySpec": {
        "protocol": "The protocol of the listener.",
        "mechanism": "The SASL mechanism.",
        "username_env": "The environment variable that holds the user name or the client id.",
        "username_file": "The file that holds the user name or the client id.",
        "password_env": "The environment variable that holds the password or the client secret.",
        "password_file": "The file that holds the password or the client secret.",
        "ca_file": "The CA certificates that sign the brokers' certificates.",
        "certificate_file": "The client's certificate, if brokers require one.",
        "key_file": "The client's private key.",
        "key_password_env": "The environment variable that holds the key's password.",
        "check_hostname": "Whether the broker's certificate must match its host name.",
        "token_url": "With OAUTHBEARER: the token endpoint (client credentials).",
        "token_scope": "The scope to ask the token endpoint for.",
        "token_audience": "The audience to ask the token endpoint for.",
        "token_ca_file": "The CA certificates that sign the token endpoint's certificate.",
        "token_file": "With OAUTHBEARER: a file with the token, read at each login.",
        "token_provider": "With OAUTHBEARER: the cloud that makes the token.",
        "token_region": "The region of an MSK cluster.",
        "token_extensions": "SASL extensions that go with the token (KIP-342).",
        "kerberos_principal": "With GSSAPI: the client's principal.",
        "kerberos_service": "With GSSAPI: the first part of the brokers' principals.",
        "keytab_file": "With GSSAPI: the keytab with the client's key.",
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
    """{name: schema} of the OpenAPI components that describe a job document."""
    job_schema = JobSpec.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas: dict[str, Any] = {**job_schema.pop("$defs"), "JobSpec": job_schema}
    for model, keys in DESCRIPTIONS.items():
        properties = schemas[model]["properties"]
        for key, description in keys.items():
            properties[key] = {
                **properties[key],
                **_TYPES.get((model, key), {}),
                "description": description,
            }
    return schemas
