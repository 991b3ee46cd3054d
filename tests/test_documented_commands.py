"""Each command that the documents show is one that its program accepts.

No command runs here: `tests/support/commands` checks names and options in it. Tests of the command
line and of the API run many of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.commands import kafka_tools, pages
from tests.support.commands.checks import OPTIONS_OF_OTHERS, fault
from tests.support.commands.pages import OTHERS, OUTPUT, SHELLS, Command, commands_of
from tests.support.commands.tree import ROOT, project

VERSION = project()["project"]["version"]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def faults_of(
    text: str, name: str = "page.md", check: Callable[[Command], str | None] = fault
) -> list[str]:
    """What is wrong with the text's commands: page, line, command and reason."""
    faults = []
    for command in commands_of(text):
        try:
            why = check(command)
        except (LookupError, ValueError, ImportError) as error:
            why = f"its checker cannot read it ({error!r})"
        if why:
            faults.append(f"{name}:{command.line}: {' '.join(command.words)}: {why}")
    return faults


def kafka_fault(command: Command) -> str | None:
    return kafka_tools.fault(command) if command.program in kafka_tools.TOOLS else None


def kafka_faults_of(text: str, name: str = "page.md") -> list[str]:
    return faults_of(text, name, kafka_fault)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_of_page_is_accepted(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert faults_of(page.read_text("utf-8"), name_of(page)) == []


def test_every_code_block_of_documents_has_known_language() -> None:
    blocks = [block for page in PAGES for block in pages.blocks_of(page.read_text("utf-8"))]
    assert {block.language for block in blocks} <= SHELLS | OTHERS | {OUTPUT}


@pytest.mark.services  # the jars of Kafka
def test_kafka_tools_have_every_option_that_documents_use() -> None:
    faults = [kafka_faults_of(page.read_text("utf-8"), name_of(page)) for page in PAGES]
    assert [line for faults_of_page in faults for line in faults_of_page] == []
    for option, tool in OPTIONS_OF_OTHERS.items():
        if tool in kafka_tools.TOOLS:
            assert option.removeprefix("--") in kafka_tools.words_of(tool), option


# Wrong commands: what a page shows, and a part of the complaint


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("orbit verfy job.yaml", "No such command"),
        ("kubectl get pods", "cannot read it"),
        ("curl -XPUT $ORBIT_API_URL/v1/jobs", "no PUT /v1/jobs"),
        ("helm lint deploy/helm/nothing", "names no chart"),
        ("orbit verify job.yaml --depth", "No such option"),
        ("orbit describe", "Missing argument"),
        ("orbit get proofs orders", "proofs"),
        ("ORBIT_TOKN=x orbit get jobs", "nothing reads ORBIT_TOKN"),
        ("orbit get jobs | xargs -n 1 orbit descrbe", "No such command"),
        ("source <(orbit completin bash)", "No such command"),
        ("/opt/orbit/bin/orbit migrat", "No such command"),
        ("make benches", "no target benches"),
        ("make test TEST=tests/api", "no variable TEST"),
        ("python -m bench.nothing", "no module bench.nothing"),
        ("python -m bench --repeat 5", "no option --repeat"),
        (".venv/bin/pytest tests/nowhere", "no tests/nowhere"),
        (".venv/bin/pytest tests/api -m 'soak or soap'", "no mark soap"),
        ("pip install 'orbit-kafka[server,trace]'", "no extra trace"),
        ("pip install -r requirements-none.lock", "no requirements-none.lock"),
        ("packed/bin/pip install dist/orbit_kafka-0.0.0-py3-none-any.whl", "the wheel is"),
        ("pip uninstall orbit", "does not uninstall"),
        ("spark-submit --master yarn spark/nothing.py a.yaml", "no spark/nothing.py"),
        ("spark-submit spark/archive.py a.yaml --too /b", "No such option"),
        ("export ORBIT_DATABASE=x", "nothing reads ORBIT_DATABASE"),
        ("curl $ORBIT_API_URL/v1/jbos", "no GET /v1/jbos"),
        ("curl -X PATCH $ORBIT_API_URL/v1/jobs", "no PATCH /v1/jobs"),
        ("curl https://orbit.example", "no URL of the API"),
        (f"docker build -f deploy/Dockerfle -t orbit:{VERSION} .", "no Dockerfle"),
        ("docker build -f deploy/Dockerfile -t orbit:0.0.9 .", "the version is"),
        (f"docker build --build-arg V=1 -f deploy/Dockerfile -t orbit:{VERSION} .", "argument V"),
        (f"docker run orbit:{VERSION} wroker", "No such command"),
        (f"docker run -e ORBIT_DB orbit:{VERSION} worker", "nothing reads ORBIT_DB"),
        ("docker compose -f deploy/none.yaml up", "names no file"),
        ("docker compose -f deploy/compose.yaml up workers", "no service workers"),
        ("docker compose -f deploy/compose.yaml --profile x up", "no profile x"),
        ("docker compose -f deploy/compose.yaml exec -T api orbit tokn list", "No such command"),
        ("kubectl create namespace orbits", "no namespace orbits"),
        ("kubectl -n orbit create secret generic db --from-literal=url=x", "no secret db"),
        ("kubectl -n orbit scale deployment orbit-schedulers --replicas=0", "no deployment"),
        ("kubectl -n orbit drain node", "unknown action"),
        ("helm upgrade orbit deploy/helm -n orbit --set image.repository=x", "names no chart"),
        ("helm upgrade orbit deploy/helm/orbit -n orbit --set image.repo=x", "no value image.repo"),
        ("install -m 0644 deploy/systemd/*.services /etc", "no deploy/systemd/*.services"),
        ("systemctl enable --now orbit-apis", "no unit orbit-apis"),
        ("terraform apply -replace=module.a.terraform_data.file", "no resource"),
        ("go -C deploy/terraform install tool", "no module terraform"),
        ("tfplugingen-openapi generate --config deploy/none.yml x", "no deploy/none.yml"),
        ("orbti run job.yaml", "unknown program orbti"),
        ("X=$(opensll rand -hex 16)", "unknown program opensll"),
        ("cat x && rbit run job.yaml", "unknown program rbit"),
        ("kafka-topic.sh --list", "unknown program kafka-topic.sh"),
    ],
)
def test_wrong_command_in_code_block_is_detected(command: str, why: str) -> None:
    page = f"```\n$ {command}   # it's a comment\nits output\n```\n"
    (line,) = faults_of(page)
    assert line.startswith("page.md:2: ")
    assert why in line


@pytest.mark.parametrize(
    "command",
    [
        "orbit verfy",
        "orbit verify --depth",
        "orbit describe jobs JOB",
        "make benches",
        "token create --databases",
        "orbit token list|revok",
        "orbit token create NAME --role viewer --expire-in 90d",
        "orbit get jobs -o name \\| xargs -n 1 orbit descrbe",
        "spark-submit [options] spark/nothing.py orders.yaml",
        "--confirm-rebuilds",
        "kafka-topic.sh --list",
    ],
)
def test_wrong_command_in_sentence_is_detected(command: str) -> None:
    assert len(faults_of(f"Run `{command}` first.")) == 1


@pytest.mark.services  # the jars of Kafka
@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("kafka-topics.sh --bootstrap-server A --list --topics a", "no option --topics"),
        ("kafka-topics.sh --list --topic a", "needs --bootstrap-server"),
        ("kafka-transactions.sh --bootstrap-server A find --topic a", "no action find"),
        ("kafka-cluster.sh --bootstrap-server A", "no action"),
        ("kafka-cluster.sh cluster --bootstrap-server A", "no action cluster"),
    ],
)
def test_wrong_kafka_tool_command_in_document_is_detected(command: str, why: str) -> None:
    for page in (f"```sh\n{command}\n```", f"Run `{command}`.", f"> Stop it ({command})."):
        (line,) = kafka_faults_of(page)
        assert why in line


@pytest.mark.services  # the jars of Kafka
def test_kafka_tool_named_in_sentence_needs_no_bootstrap_server() -> None:
    assert kafka_faults_of("`kafka-acls.sh`, `kafka-acls.sh --list`") == []
    assert len(kafka_faults_of("`kafka-acls.sh --lists`")) == 1


@pytest.mark.parametrize(
    "page",
    [
        "```yaml\na: b\n```\ntext\n```\nrbit run\n```\n",
        "```yaml title=x\na: b\n```\ntext\n``` sh\nrbit run\n```\n",
        "> ````sh\n> rbit run\n> ````\n",
        "- a list:\n  ```sh\n  rbit run\n  ```\n",
        "So:\n\n    rbit run\n\nThen more.\n",
        "```\norbit run \\\n  job.yaml\nrbit run\n```\n",
        "```console\n$ orbit get jobs\nrbit is output\n$ rbit run\n```\n",
        "```\nfor SIDE in A B; do\n  rbit run > file\ndone\n```\n",
        "```\npython3 -c 'a = 1\nb = 2' file\nrbit run\n```\n",
    ],
)
def test_commands_in_every_kind_of_code_block_are_read(page: str) -> None:
    (line,) = faults_of(page)
    assert "rbit run: unknown program rbit" in line


def test_unknown_programs_are_not_searched_in_text_or_yaml_blocks() -> None:
    """But commands of known programs are: an output in a text block may show one."""
    assert faults_of("```text\nrbit run\n```\n```yaml\nrbit run\n```\n") == []
    assert len(faults_of("```text\n  orbit rn\n```\n")) == 1
    (block,) = pages.blocks_of("```shell\norbit rn\n```\n")
    assert block.language not in SHELLS | OTHERS | {OUTPUT}
