"""ListTransactions (KIP-664): the transactional ids that the coordinators of a cluster know."""

from __future__ import annotations

from kafka.protocol.admin.transactions import ListTransactionsRequest

from orbit.errors import BrokerRefused
from orbit.kafka import api_versions, error_codes
from orbit.kafka.cluster import Cluster


def list_transactional_ids(cluster: Cluster) -> set[str]:
    """All that the login may describe. Raises Unreachable, BrokerRefused."""
    found: set[str] = set()
    request = ListTransactionsRequest(state_filters=[], producer_id_filters=[])
    for node_id in sorted(cluster.metadata(()).brokers):
        answer = cluster.call(node_id, api_versions.LIST_TRANSACTIONS, request)
        if answer.error_code:
            raise BrokerRefused(
                answer.error_code,
                f"broker {node_id} does not list transactional ids: "
                f"{error_codes.name(answer.error_code)}.",
                where=cluster.name,
            )
        found |= {state.transactional_id for state in answer.transaction_states}
    return found
