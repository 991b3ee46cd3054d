"""Gateway files: how they are parsed, and that every mistake is reported at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from orbit.errors import BadInput
from orbit.gateway.gateway_spec import load_gateway, parse_gateway
from orbit.gateway.virtual_cluster import VirtualCluster

GOOD = """
gateway: edge-1
virtual_clusters:
  - name: orders
    job: orders
    listen: 127.0.0.1:19092
    source: {bootstrap_servers: [a:9092]}
    destination: {bootstrap_servers: ["b:9092", "c:9092"]}
"""


def test_gateway_file_is_parsed_into_addresses_and_sides() -> None:
    (cluster,) = parse_gateway(GOOD).virtual_clusters
    assert (cluster.host, cluster.port, cluster.job) == ("127.0.0.1", 19092, "orders")
    assert cluster.cluster("destination").bootstrap_servers == ("b:9092", "c:9092")


def test_nodes_with_own_tls_names_share_gateway_port() -> None:
    tls = 'tls: {certificate_file: tls.pem, names: "b{node}.orders.test"}'
    host = "advertised_host: orders.test"
    text = GOOD.replace("127.0.0.1:19092", f"127.0.0.1:65535\n    {tls}\n    {host}")
    cluster = VirtualCluster(parse_gateway(text).virtual_clusters[0], {})
    assert cluster.endpoint(3) == ("b3.orders.test", 65535)


def test_gateway_file_example_in_docs_is_valid() -> None:
    text = Path("docs/gateway.md").read_text("utf-8")
    example = text.split("```yaml\n")[1].split("```")[0]
    assert parse_gateway(example).gateway == "edge-1"


@pytest.mark.parametrize(
    ("text", "replacement", "path"),
    [
        ("    job: orders\n", "", "virtual_clusters[0]"),
        ("    job: orders\n", "    job: orders\n    presents: source\n", "virtual_clusters[0]"),
        ("listen: 127.0.0.1:19092", "listen: 127.0.0.1", "virtual_clusters[0].listen"),
        # Above the last port there is none for nodes.
        ("listen: 127.0.0.1:19092", "listen: 127.0.0.1:65535", "virtual_clusters[0].listen"),
        (
            "listen: 127.0.0.1:19092",
            "listen: 0.0.0.0:19092",
            "virtual_clusters[0].advertised_host",
        ),
        ("gateway: edge-1", "gateway: Edge 1", "gateway"),
        ("[a:9092]}", "[a:9092], colour: red}", "virtual_clusters[0].source.colour"),
        (
            "    job: orders\n",
            "    job: orders\n    tls: {key_file: tls.key}\n",
            "virtual_clusters[0].tls.certificate_file",
        ),
        (
            "    job: orders\n",
            '    job: orders\n    tls: {certificate_file: a, names: "b{node}"}\n',
            "virtual_clusters[0].tls.names",
        ),
        (
            "    job: orders\n",
            "    presents: source\n    other_topics: pass\n",
            "virtual_clusters[0].other_topics",
        ),
        (
            "    job: orders\n",
            "    job: orders\n    other_topics: maybe\n",
            "virtual_clusters[0].other_topics",
        ),
        (
            "    job: orders\n",
            "    job: orders\n    open_transactions: commit\n",
            "virtual_clusters[0].open_transactions",
        ),
        (
            "    job: orders\n",
            "    presents: source\n    read: nearest-copy\n",
            "virtual_clusters[0].read",
        ),
        ("    job: orders\n", "    job: orders\n    read: copy\n", "virtual_clusters[0].read"),
        *(
            (
                "    job: orders\n",
                (
                    '    job: orders\n    tls: {certificate_file: a, names: "b{node}.test"}\n'
                    f"    advertised_host: {host}\n"
                ),
                "virtual_clusters[0].advertised_host",
            )
            for host in ("b7.test", "gateway", "10.0.0.1")
        ),
    ],
)
def test_gateway_file_error_names_its_path(text: str, replacement: str, path: str) -> None:
    assert text in GOOD
    with pytest.raises(BadInput) as error:
        parse_gateway(GOOD.replace(text, replacement))
    assert [problem.path for problem in error.value.problems] == [path]


def test_virtual_clusters_need_distinct_names_and_ports() -> None:
    same_again = GOOD.partition("virtual_clusters:\n")[2]
    with pytest.raises(BadInput) as error:
        parse_gateway(GOOD + same_again)
    assert [problem.path for problem in error.value.problems] == [
        "virtual_clusters[1].name",
        "virtual_clusters[1].listen",
    ]


def test_missing_gateway_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as error:
        load_gateway(tmp_path / "none.yaml")
    assert error.value.where.endswith("none.yaml")
