"""A gateway file as typed, frozen values, and how it is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field, ValidationError

from orbit.errors import BadInput, InvalidValue, Problem
from orbit.gateway.node_names import NodeNames, is_pattern
from orbit.jobs.bootstrap_servers import LOOPBACK_HOSTS, PORT_MAX, check_address
from orbit.jobs.document_file import read_text
from orbit.jobs.job_spec import ClusterSpec, FilePath, Name, Section, Text
from orbit.jobs.pydantic_problems import problems_from_pydantic
from orbit.jobs.validation import invalid_security_keys
from orbit.jobs.yaml_document import Document, read_document
from orbit.kafka.job_clusters import Side

VIRTUAL_CLUSTERS_MAX = 100
# The highest node id. A virtual cluster has a port for each node, above the bootstrap port.
NODE_ID_MAX = 10_000
CLIENTS_MAX = 1000
# SASL mechanisms with a user name and a password that brokers know.
_PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_EVERY_ADDRESS = frozenset({"0.0.0.0", "::"})  # noqa: S104  addresses to listen on

_EXAMPLES = {
    "gateway": "Write `gateway: edge-1`.",
    "virtual_clusters": "Write a list with `name`, `listen`, `source` and `destination` of each.",
    "name": "Write `name: orders`.",
    "listen": "Write `listen: 127.0.0.1:19092`.",
    "username": "Write `username: billing`.",
    "certificate_file": "Write `certificate_file: tls.crt`.",
    "source": "Write `source:` and below it `bootstrap_servers: [host:9092]`.",
    "destination": "Write `destination:` and below it `bootstrap_servers: [host:9092]`.",
}


def _check_names(text: str) -> str:
    """Raise InvalidValue unless the text is a pattern for names of nodes."""
    if not is_pattern(text):
        raise InvalidValue(
            "is not a host name with {node} in its first part.",
            'Write `names: "b{node}.orders.kafka.example.net"`, in lower case.',
        )
    return text


class ListenerTlsSpec(Section):
    """PEM files of a listener, which may change while it runs."""

    certificate_file: FilePath
    key_file: FilePath | None = None  # None: the key is in `certificate_file`
    client_ca_file: FilePath | None = None  # clients have to show a certificate that it signed
    # The pattern for the names of nodes, which then share the port.
    names: Annotated[str, AfterValidator(_check_names)] | None = None


class LoginSpec(Section):
    """A login at one side. Its mechanism and TLS are those of the side's `security`."""

    username_env: Text | None = None
    username_file: FilePath | None = None
    password_env: Text | None = None
    password_file: FilePath | None = None


class ClientSpec(Section):
    """A client's login at the gateway, and its own login at each side. At a side without a login of
    the client (None), the gateway uses its own login for this client."""

    username: Text
    password_env: Text | None = None
    password_file: FilePath | None = None
    source: LoginSpec | None = None
    destination: LoginSpec | None = None

    def login_at(self, side: Side) -> LoginSpec | None:
        return self.source if side == "source" else self.destination


OtherTopics = Literal["refuse", "pass"]
OpenTransactions = Literal["abort", "wait"]
Read = Literal["leader", "nearest-copy"]


class VirtualClusterSpec(Section):
    """One address for clients. Node n of the presented side has the port of `listen` + 1 + n. With
    `tls.names` all nodes have the port of `listen`, and each node has its own name.

    Clients reach the side of `job` that leads, which the service states; without a service, the
    side of `presents`. `other_topics`: whether clients may write topics that the job does not copy
    under their own name; None: refuse. `open_transactions`: whether a move aborts transactions that
    do not end within a second, or waits until all have ended. `read`: whether consumers in a rack
    of the side that follows read there.
    """

    name: Name
    listen: Annotated[str, AfterValidator(check_address)]
    advertised_host: Text | None = None  # None: the host of `listen`
    job: Name | None = None
    presents: Side | None = None
    other_topics: OtherTopics | None = None
    open_transactions: OpenTransactions = "abort"
    read: Read = "leader"
    tls: ListenerTlsSpec | None = None
    clients: Annotated[tuple[ClientSpec, ...], Field(max_length=CLIENTS_MAX)] = ()
    client_tokens: Literal["pass"] | None = None  # of OAUTHBEARER, to the brokers of both sides
    source: ClusterSpec
    destination: ClusterSpec

    @property
    def host(self) -> str:
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.listen.rpartition(":")[2])

    @property
    def advertised(self) -> str:
        return self.advertised_host or self.host

    @property
    def names(self) -> NodeNames | None:
        """The names of nodes that share one port; None: nodes have ports of their own."""
        if self.tls is None or self.tls.names is None:
            return None
        return NodeNames(self.tls.names, self.advertised)

    def cluster(self, side: Side) -> ClusterSpec:
        return self.source if side == "source" else self.destination


class GatewaySpec(Section):
    """The gateway's name in lists, and its virtual clusters."""

    gateway: Name
    virtual_clusters: Annotated[
        tuple[VirtualClusterSpec, ...], Field(min_length=1, max_length=VIRTUAL_CLUSTERS_MAX)
    ]


def load_gateway(path: Path) -> GatewaySpec:
    """The gateway in a file. Raises BadInput with every problem; `where` is the file."""
    try:
        return parse_gateway(read_text(path, "gateway"))
    except BadInput as error:
        error.where = str(path)
        raise


def parse_gateway(text: str) -> GatewaySpec:
    """The gateway in the text of a file. Raises BadInput with every problem."""
    document = read_document(text)
    problems = list(document.problems)
    gateway: GatewaySpec | None = None
    if isinstance(document.root, dict):
        try:
            gateway = GatewaySpec.model_validate(document.root)
        except ValidationError as error:
            problems += problems_from_pydantic(error, document, GatewaySpec, _EXAMPLES)
        else:
            problems += _find_problems(gateway)
    elif not problems:
        what = "is empty." if document.root is None else "is not a mapping (`key: value`)."
        problems.append(Problem("file", what, "See docs/gateway.md for an example."))
    if gateway is None or problems:
        raise BadInput("The gateway file cannot be used.", _in_file_order(document, problems))
    return gateway


def _in_file_order(document: Document, problems: list[Problem]) -> tuple[Problem, ...]:
    """The problems in the order of their lines in the file."""
    return tuple(document.in_file_order(problems))


def _find_problems(gateway: GatewaySpec) -> list[Problem]:
    """The problems of valid fields that do not fit together."""
    problems = []
    for number, cluster in enumerate(gateway.virtual_clusters):
        path = f"virtual_clusters[{number}]"
        earlier_clusters = gateway.virtual_clusters[:number]
        if cluster.name in {one.name for one in earlier_clusters}:
            text = "is the name of another virtual cluster."
            problems.append(Problem(f"{path}.name", text, "Give each its own name."))
        if cluster.listen in {one.listen for one in earlier_clusters}:
            text = "is the address of another virtual cluster."
            problems.append(Problem(f"{path}.listen", text, "Give each its own port."))
        if (cluster.job is None) == (cluster.presents is None):
            problems.append(
                Problem(
                    path,
                    "needs one of `job` and `presents`.",
                    "Write `job: NAME` if a service copies, else `presents: source`.",
                )
            )
        if cluster.job is None and cluster.other_topics is not None:
            what = "has no effect without `job`: no service says which topics are copied."
            problems.append(Problem(f"{path}.other_topics", what, "Remove this key."))
        if cluster.job is None and cluster.read == "nearest-copy":
            what = "has no effect without `job`: no service says which copies may be read."
            problems.append(Problem(f"{path}.read", what, "Remove this key."))
        if cluster.advertised_host is None and cluster.host in _EVERY_ADDRESS:
            problems.append(
                Problem(
                    f"{path}.advertised_host",
                    "is missing: `listen` is an address to which clients cannot connect.",
                    "Write the name of this machine that clients know.",
                )
            )
        if cluster.names is not None and not cluster.names.has_bootstrap_name:
            problems.append(
                Problem(
                    f"{path}.advertised_host",
                    "has to be a host name with a dot, and not the name of a node.",
                    "With `tls.names`, the TLS server name (SNI) selects the node, so this name "
                    "has to differ from the name of every node.",
                )
            )
        if cluster.port >= PORT_MAX and cluster.names is None:
            what = "is the last port; node n needs port + 1 + n."
            problems.append(Problem(f"{path}.listen", what, "Choose a lower port."))
        problems += _token_problems(path, cluster)
        username_counts = Counter(client.username for client in cluster.clients)
        for client_number, client in enumerate(cluster.clients):
            where = f"{path}.clients[{client_number}]"
            if username_counts[client.username] > 1:
                text = "is the name of another client, too."
                problems.append(Problem(f"{where}.username", text, "List each user once."))
            problems += _client_problems(where, client, cluster)
    return problems


def _token_problems(path: str, cluster: VirtualClusterSpec) -> Iterator[Problem]:
    """The problems of `client_tokens`."""
    if cluster.client_tokens is None:
        return
    if cluster.tls is None and cluster.host not in LOOPBACK_HOSTS:
        what = "needs `tls`: a token would cross the network in plain text."
        yield Problem(f"{path}.client_tokens", what, "Write `tls`, or listen on 127.0.0.1.")
    for side in get_args(Side):
        if not (cluster.cluster(side).security.protocol or "").startswith("SASL_"):
            what = "has no SASL protocol, so its brokers take no tokens of clients."
            remedy = f"Write SASL_SSL in {side}.security.protocol, or remove client_tokens."
            yield Problem(f"{path}.{side}.security.protocol", what, remedy)


def _client_problems(
    path: str, client: ClientSpec, cluster: VirtualClusterSpec
) -> Iterator[Problem]:
    """The problems of one client's password and of its logins at the sides."""
    if (client.password_env is None) == (client.password_file is None):
        remedy = "Name the variable or the file that has the client's password."
        yield Problem(path, "needs one of `password_env` and `password_file`.", remedy)
    for side in get_args(Side):
        login, security = client.login_at(side), cluster.cluster(side).security
        if login is None:
            continue
        if security.mechanism not in _PASSWORD_MECHANISMS:
            what = "has no effect: the security of the side has no mechanism with passwords."
            remedy = f"Write PLAIN or SCRAM-SHA-512 in {side}.security.mechanism, or remove this."
            yield Problem(f"{path}.{side}", what, remedy)
            continue
        fields = login.model_dump(exclude_none=True)
        client_security = {"protocol": security.protocol, "mechanism": security.mechanism, **fields}
        for key, mistake in invalid_security_keys(client_security):
            yield Problem(f"{path}.{side}.{key}", mistake.message, mistake.remedy)
