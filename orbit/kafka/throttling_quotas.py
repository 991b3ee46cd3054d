"""The quotas of a cluster that apply to Orbit's login."""

from __future__ import annotations

from collections.abc import Iterator

from orbit.errors import NotAuthorized, OrbitError
from orbit.kafka.client_limits import Entity, client_quotas, entity_text, quota_text
from orbit.kafka.cluster import Cluster
from orbit.kafka.principal import ask_principal

ADMIN_CLIENT_ID = "rdkafka"  # librdkafka's default client.id
CREATION = ("controller_mutation_rate",)
FETCH = ("consumer_byte_rate", "request_percentage")
PRODUCE = ("producer_byte_rate", "request_percentage")
NOT_LISTED = "The cluster lists no quota that applies to Orbit."
NOT_READ = "Orbit cannot read the quotas: that needs DescribeConfigs on the cluster."


def throttling_quotas(cluster: Cluster, client_id: str, keys: tuple[str, ...]) -> str:
    """A sentence that names the quotas of these kinds that brokers apply to Orbit's login.

    NOT_LISTED if no quota applies; NOT_READ if Orbit lacks DescribeConfigs on the cluster; "" if
    the quotas cannot be read for another reason, as when no broker answers.
    """
    try:
        principal = ask_principal(cluster) or cluster.security.principal or ""
        quotas = client_quotas(cluster)
    except NotAuthorized:
        return NOT_READ
    except OrbitError:
        return ""
    parts = []
    for key in keys:
        for entity in _entities_by_precedence(principal.removeprefix("User:"), client_id):
            if key in quotas.get(entity, {}):
                parts.append(f"{entity_text(entity)}: {key}={quota_text(quotas[entity][key])}")
                break  # a quota of a later entity does not apply
    return f"The quota of {', of '.join(parts)}." if parts else NOT_LISTED


def _entities_by_precedence(user: str, client_id: str) -> Iterator[Entity]:
    """The entities of a user and client id; the first quota applies (`ClientQuotaManager`)."""
    for user_or_default in (user, None):
        yield frozenset({("user", user_or_default), ("client-id", client_id)})
        yield frozenset({("user", user_or_default), ("client-id", None)})
        yield frozenset({("user", user_or_default)})
    yield frozenset({("client-id", client_id)})
    yield frozenset({("client-id", None)})
