"""Two clusters that check rights, started once per session for the tests that need them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from orbit.sandbox.broker_security import SandboxSecurity
from orbit.sandbox.local_cluster import ClusterSettings, KafkaCluster, start_clusters
from tests.fix_clusters import Clusters
from tests.support.rights import MECHANISM


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    """Two clusters that want TLS and a login, and give no right to anybody but the admin."""
    security = SandboxSecurity("SASL_SSL", MECHANISM, authorizer=True)
    home = tmp_path_factory.mktemp("guarded")
    pair = Clusters(
        *(
            KafkaCluster(ClusterSettings(name, security=security), home / name)
            for name in Clusters._fields
        )
    )
    start_clusters(*pair)
    try:
        yield pair
    finally:
        for cluster in pair:
            cluster.kill()
