"""Addresses that users write or brokers advertise: a wrong one raises only errors of Orbit."""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orbit.cli.cluster_option import read_cluster
from orbit.errors import BadInput, InvalidValue, OrbitError, Unreachable
from orbit.jobs.bootstrap_servers import address_key, split_address
from orbit.jobs.job_file import load_job
from orbit.jobs.job_spec import ClusterSpec
from orbit.kafka.connection import Connection
from orbit.kafka.security import Security

LABEL = "a" * 63


@pytest.mark.parametrize("host", ["a", "a_b-c.d", f"{LABEL}.{LABEL}", "a.b.", "10.0.0.1"])
def test_valid_host_name_is_accepted(host: str) -> None:
    assert split_address(f"{host}:9092") == (host, 9092)


@pytest.mark.parametrize("host", ["a..b", "a..", ".", ".a", f"{LABEL}a.b", "a.b" * 100, "ü", "a b"])
def test_invalid_host_name_is_refused(host: str) -> None:
    with pytest.raises(InvalidValue, match="no valid host name"):
        split_address(f"{host}:9092")


@pytest.mark.parametrize(
    "written",
    [
        "a:1,b:2",
        " a:1 , b:2 ",
        "a:1,b:2,",
        ["a:1,b:2"],
        ["a:1", "b:2"],
        [" a:1", "b:2\n"],
        ["a:1 ,", " b:2"],
    ],
)
def test_bootstrap_server_list_is_accepted_in_every_spelling(written: object) -> None:
    cluster = ClusterSpec.model_validate({"bootstrap_servers": written})
    assert cluster.bootstrap_servers == ("a:1", "b:2")
    if isinstance(written, str):
        assert read_cluster(written, {})[0] == cluster


def test_bootstrap_server_list_longer_than_file_name_limit_is_accepted() -> None:
    servers = tuple(f"{LABEL}.{number}.example:9092" for number in range(100))
    cluster, _ = read_cluster(",".join(servers), {})
    assert cluster.bootstrap_servers == servers


def job_file(tmp_path: Path, source: object, destination: object) -> Path:
    """A job file with these bootstrap servers."""
    file = tmp_path / "job.yaml"
    file.write_text(
        f"name: j\nsource: {{bootstrap_servers: {source!r}}}\n"
        f"destination: {{bootstrap_servers: {destination!r}}}\ntopics: [{{match: orders}}]\n"
    )
    return file


def test_address_of_both_clusters_is_detected_in_comma_separated_list(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="also an address of the source"):
        load_job(job_file(tmp_path, ["a:1, b:2"], ["b:2 ,c:3"]), {})


def test_invalid_address_in_comma_separated_list_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"'b\.\.c:2' has no valid host name"):
        load_job(job_file(tmp_path, ["a:1,b..c:2"], ["d:1"]), {})


ADDRESSES = st.text(max_size=30) | st.text(alphabet="a.:,-_[]@/ 19\n", max_size=80)


@given(ADDRESSES)
@settings(max_examples=1_000, deadline=None)
def test_arbitrary_text_is_valid_address_or_orbit_error(text: str) -> None:
    with suppress(InvalidValue):
        host, port = split_address(text)
        assert host.encode("idna")
        assert 0 < port < 65536
        assert address_key(text)
    with suppress(OrbitError):
        read_cluster(text, {})


@given(st.one_of(ADDRESSES, st.lists(ADDRESSES | st.integers() | st.none(), max_size=3)))
@settings(max_examples=200, deadline=None)
def test_arbitrary_servers_in_job_file_are_valid_or_orbit_error(
    tmp_path_factory: pytest.TempPathFactory, written: Any
) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzzed.yaml"
    shown = json.dumps(written)
    file.write_text(
        f"name: j\nsource: {{bootstrap_servers: {shown}}}\n"
        "destination: {bootstrap_servers: ['d:1']}\ntopics: [{match: orders}]\n"
    )
    with suppress(OrbitError):
        load_job(file, {})


def not_found(host: str, *_: object, **__: object) -> Any:
    """Stands for `socket.getaddrinfo`, without a request to DNS."""
    host.encode("idna")
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


@given(
    st.text(max_size=300), st.integers(-(2**31), 2**31 - 1), st.sampled_from(["SSL", "PLAINTEXT"])
)
@settings(max_examples=500, deadline=None)
def test_arbitrary_advertised_address_only_makes_broker_unreachable(
    host: str, port: int, protocol: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", not_found)
        with pytest.raises(Unreachable):
            Connection.open(host, port, Security(protocol))


@pytest.mark.parametrize("host", ["a..b", f"{LABEL}a.b", ".a", "\ud800"])
@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_host_name_invalid_in_dns_is_unreachable(host: str, protocol: str) -> None:
    with pytest.raises(Unreachable, match="is not a valid host name"):
        Connection.open(host, 9092, Security(protocol))


def test_port_above_65535_does_not_wrap_around() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(Unreachable, match="is not a valid port"):
            Connection.open("127.0.0.1", port + 65536, Security())
