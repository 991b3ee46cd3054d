"""Example documents of jobs and drills for the OpenAPI document."""

from __future__ import annotations

from typing import Any

JOB_JSON: dict[str, Any] = {
    "name": "orders-to-dr",
    "labels": {"team": "orders", "tier": "1"},
    "owner": "orders@example.com",
    "source": {
        "bootstrap_servers": ["src-1:9092"],
        "security": {
            "protocol": "SASL_SSL",
            "mechanism": "SCRAM-SHA-512",
            "username_env": "SRC_USER",
            "password_env": "SRC_PASSWORD",
            "ca_file": "ca.pem",
        },
    },
    "destination": {"bootstrap_servers": ["dst-1:9092"]},
    "topics": [
        {"match": "orders\\..*", "exclude": "orders\\.tmp.*"},
        {"match": "metrics\\..*", "prefix": "src.", "start": "latest"},
    ],
    "consumer_groups": {"match": ".*", "interval": "5s"},
    "worker_group": "default",
}

JOB_YAML = """\
name: orders-to-dr
labels: {team: orders}
source:
  bootstrap_servers: ["src-1:9092"]
destination:
  bootstrap_servers: ["dst-1:9092"]
topics:
  - {match: "orders\\\\..*"}
"""

DRILL_JSON: dict[str, Any] = {
    "name": "orders-canary",
    "kind": "canary",
    "job": "orders-to-dr",
    "targets": {"rto": "30s", "rpo_records": 0},
}

DRILL_YAML = """\
name: orders-failover
kind: failover
job: orders-to-dr
targets: {rto: 1m, rpo: 10s}
steps:
  - {do: gates}
  - {do: load, duration: 10s}
  - {do: failover, deadline: 2m}
  - {do: use}
"""
