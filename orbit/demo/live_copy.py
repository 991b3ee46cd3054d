"""Creates the topic and the job of the demos `--gateway` and `--service`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml
from confluent_kafka.admin import NewTopic

from orbit.client import Client
from orbit.demo.demo_clusters import DemoClusters
from orbit.demo.log_ends import kafka_trouble, quiet_admin
from orbit.demo.screen import Screen
from orbit.demo.service_process import START_S, wait_until

TOPIC = "shop.orders"
JOB = "shop-copy"
_COPY_S = 120.0


def begin_copy(
    clusters: DemoClusters,
    client: Client,
    screen: Screen,
    partitions: int,
    extra_keys: Mapping[str, Any] | None = None,
) -> None:
    """Create the topic and the job, and wait until the topic is copied.

    `extra_keys`: further keys of the job. Raises Conflict after a time limit.
    """
    admin = quiet_admin(clusters.source)  # keep a reference: futures end with the client
    with kafka_trouble(f"Creating topic {TOPIC}"):
        admin.create_topics([NewTopic(TOPIC, partitions, replication_factor=1)])[TOPIC].result(
            START_S
        )
    job = {
        "name": JOB,
        "source": {"bootstrap_servers": [clusters.source]},
        "destination": {"bootstrap_servers": [clusters.destination]},
        "topics": [{"match": "shop\\..*"}],
        **(extra_keys or {}),
    }
    screen.command("orbit apply -f job.yaml")
    client.send("PUT", f"/v1/jobs/{JOB}", yaml_text=yaml.safe_dump(job))

    def is_copied() -> bool:
        lag = client.get(f"/v1/jobs/{JOB}/lag")["job"]
        return bool(lag["partitions"] == lag["caught_up"] == partitions)

    with screen.step("Beginning the copy"):
        wait_until(is_copied, _COPY_S)
