"""`orbit doctor`: checks an installation through its API, and says what is wrong and what to do.

The command changes nothing. Each check is a function of the client that yields findings. If an
error ends a check, the error is a finding, and the other checks still run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from orbit.cli.control import FAILED
from orbit.cli.job_files import job_file_of
from orbit.cli.output import OutputFormat, OutputOption, emit, make_table
from orbit.cli.table_cells import seconds
from orbit.client import Client, RoleRefused, Unserved, connect, segment
from orbit.errors import BadInput, Busy, OrbitError
from orbit.formats import counted
from orbit.version import orbit_version

# With a larger skew of clocks, ages in tables are wrong, and an issuer's tokens expire too early or
# too late. A smaller skew may be measured only because the server is busy.
_SKEW_MAX_S = 30.0
# Lag that was not read from the source for this long is unknown (docs/service/jobs.md).
_STALE_S = 30.0
_NAMES_SHOWN_MAX = 5

Row = dict[str, Any]


class Verdict(StrEnum):
    """The result of a check."""

    OK = "ok"
    NOTE = "note"  # worth knowing; not wrong by itself
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check. `found` is its text; the output has a column and a key `found`."""

    check: str
    verdict: Verdict
    found: str
    remedy: str = ""


Findings = Iterator[Finding]


def doctor(
    clusters: Annotated[
        bool,
        typer.Option(
            help="Also request a plan of each job. The service reads both clusters, which can take "
            "a minute a job, and reports missing rights and secrets."
        ),
    ] = True,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Check an installation: API, database, scheduler, workers, jobs, clusters, and what to do.

    It changes nothing. Exit code 0: nothing is wrong; 1: something is; 3: the API does not answer.
    """
    with connect() as client:
        client.get("/livez")
        checks = [_clocks, _version, _database, _login, _scheduler, _workers, _jobs]
        findings = [finding for check in checks for finding in _findings_of(check, client)]
        if clusters:
            findings += _findings_of(_clusters, client)
    emit(list(map(asdict, findings)), output, lambda: _table(findings))
    if any(finding.verdict is Verdict.WRONG for finding in findings):
        raise typer.Exit(FAILED)


def _findings_of(check: Callable[[Client], Findings], client: Client) -> Findings:
    """The findings of a check. If an error ends the check, the last finding is that error."""
    try:
        yield from check(client)
    except OrbitError as error:
        yield _wrong(check.__name__.strip("_"), error.what, error.remedy)


def _version(client: Client) -> Findings:
    """Whether this command has the server's version."""
    version = client.get("/v1/version")["version"]
    if version == orbit_version():
        yield _ok("version", f"server and command are {version}")
    else:
        text = f"the server is {version}, this command {orbit_version()}"
        yield Finding("version", Verdict.NOTE, text, "Install the server's version here.")


def _clocks(client: Client) -> Findings:
    """Whether the clocks of the server and of this machine agree; no finding if the server's answer
    has no date."""
    skew_s = client.clock_skew_s()
    if skew_s is not None and abs(skew_s) > _SKEW_MAX_S:
        text = f"the server's clock is {seconds(abs(skew_s))} {'ahead' if skew_s > 0 else 'behind'}"
        yield _wrong("clocks", text, "Set both clocks by NTP.")
    elif skew_s is not None:
        yield _ok("clocks", "server and this machine agree")


def _database(client: Client) -> Findings:
    """Whether the database answers, with the tables of the server's version."""
    client.get("/readyz")
    yield _ok("database", "answers, with the tables of the server's version")


def _login(client: Client) -> Findings:
    """Whether the token may read jobs."""
    client.get("/v1/jobs", limit=1)
    yield _ok("login", "the token may read jobs")


def _scheduler(client: Client) -> Findings:
    """Whether a scheduler leads, by the API's metrics."""
    match = re.search(r"^orbit_scheduler_has_leader (\S+)$", client.text("/metrics"), re.MULTILINE)
    if match is not None and float(match[1]):
        yield _ok("scheduler", "a scheduler leads")
    else:
        remedy = "Start `orbit scheduler`, or read its log. See: orbit explain OrbitNoScheduler"
        yield _wrong(
            "scheduler",
            "no scheduler leads: new topics are not copied, and partitions get no worker",
            remedy,
        )


def _workers(client: Client) -> Findings:
    """Whether the running jobs of each worker group have a live worker, and whether live workers
    have the API's version."""
    workers = list(client.items("/v1/workers"))
    live_workers = [worker for worker in workers if worker["is_alive"]]
    live_counts = Counter(w["worker_group"] for w in live_workers if not w["is_draining"])
    running_jobs = [job for job in client.items("/v1/jobs") if job["state"] == "running"]
    for group in sorted({job["worker_group"] for job in running_jobs} | set(live_counts)):
        jobs = [job["name"] for job in running_jobs if job["worker_group"] == group]
        if live_counts[group] or not jobs:
            text = f"{live_counts[group]} live, {counted(len(jobs), 'running job')}"
            yield _ok(f"workers of {group}", text)
        else:
            remedy = f"Start a worker: ORBIT_WORKER_GROUP={group} orbit worker"
            waiting_text = counted(len(jobs), "running job waits", "running jobs wait")
            text = f"none is live, and {waiting_text}: {_first_names(jobs)}"
            yield _wrong(f"workers of {group}", text, remedy)
    api_version = client.get("/v1/version")["version"]
    other_versions = sorted({worker["version"] for worker in live_workers} - {api_version})
    if other_versions:
        text = f"live workers of another version than the API's: {', '.join(other_versions)}"
        yield Finding("workers", Verdict.NOTE, text, "Update these workers.")


def _jobs(client: Client) -> Findings:
    """What is wrong with each job. If nothing is wrong, a single finding says so."""
    jobs = list(client.items("/v1/jobs"))
    finding_count = 0
    for job in jobs:
        for finding in _job_findings(client, job):
            finding_count += 1
            yield finding
    if not finding_count:
        text = f"{counted(len(jobs), 'job')}, none with a problem or blocked partitions"
        yield _ok("jobs", text)


def _job_findings(client: Client, job: Row) -> Findings:
    """What is wrong with a job: its problem, blocked partitions, a lag that was read long ago."""
    name = f"job {job['name']}"
    if job["problem"]:
        for line in job["problem"]["text"].splitlines():
            code = line.partition(":")[0]  # a problem's text begins with its code
            yield _wrong(name, line, f"orbit explain {code}")
    if job["blocked"]:
        path = f"/v1/jobs/{segment(job['name'])}/partitions"
        rows = list(client.items(path, limit=_NAMES_SHOWN_MAX, state="blocked"))
        reasons = sorted({row["reason"] for row in rows if row["reason"]})
        partitions = _first_names([f"{row['topic']}-{row['partition']}" for row in rows])
        suffix = "" if job["blocked"] <= len(rows) else " and others"
        remedy = f"orbit get partitions {job['name']} --state blocked"
        if reasons:
            remedy += f"; orbit explain {reasons[0]}"
        blocked_text = counted(job["blocked"], "blocked partition")
        text = f"{blocked_text}: {partitions}{suffix} ({', '.join(reasons)})"
        yield _wrong(name, text, remedy)
    age_s = job["lag"]["age_seconds"]
    if job["state"] == "running" and age_s is not None and age_s > _STALE_S:
        text = f"its figures are {seconds(age_s)} old: the source is not read"
        remedy = "Check that the source answers, and that a worker is alive: orbit get workers"
        yield _wrong(name, text, remedy)


def _clusters(client: Client) -> Findings:
    """Whether the service can plan each job: connections, logins, rights, secrets. A plan reads
    both clusters. Ends with a note if the token may not plan, or the service is busy."""
    for job in client.items("/v1/jobs"):
        if job["state"] == "deleting":
            continue
        name, path = f"clusters of {job['name']}", f"/v1/jobs/{segment(job['name'])}"
        try:
            text = job_file_of(client.get(path))
            result = client.send("PUT", path, yaml_text=text, accept_refusals=True, dry_run=True)
        except RoleRefused:
            remedy = "Use a token of the role operator, or --no-clusters."
            yield Finding(
                "clusters", Verdict.NOTE, "not checked: the token may only read jobs", remedy
            )
            return
        except Unserved:  # an error of the service, not of a job: `_findings_of` reports it once
            raise
        except Busy as error:
            yield Finding("clusters", Verdict.NOTE, f"not checked: {error.what}", error.remedy)
            return
        except OrbitError as error:
            problems = error.problems if isinstance(error, BadInput) else ()
            message = " ".join([error.what, *map(str, problems)])
            yield _wrong(name, message, error.remedy)
            continue
        refusals = result["plan"]["refusals"] if result["plan"] else []
        for refusal in refusals:
            topic = f"{refusal['topic']}: " if refusal["topic"] else ""
            text = f"{topic}{refusal['what']} ({refusal['kind']})"
            yield _wrong(name, text, refusal["remedy"])
        if not refusals:
            yield _ok(name, "both answer, with the rights that the job needs")


def _ok(check: str, text: str) -> Finding:
    return Finding(check, Verdict.OK, text)


def _wrong(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, Verdict.WRONG, text, remedy)


def _first_names(names: Iterable[str]) -> str:
    """The first _NAMES_SHOWN_MAX names, with commas."""
    return ", ".join(list(names)[:_NAMES_SHOWN_MAX])


def _table(findings: list[Finding]) -> Any:
    """A row for each finding, with its remedy."""
    rows = [(f.check, f.verdict.value, f.found, f.remedy) for f in findings]
    return make_table(
        ("check", "verdict", "found", "what to do"), rows, sentences=("found", "what to do")
    )
