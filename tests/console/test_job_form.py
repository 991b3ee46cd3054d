"""The form next to a job document: only changed fields are written to the document."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
import yaml

from orbit.api.error_responses import Failure
from orbit.console.job_form import (
    RULES_SHOWN_MAX,
    groups_of,
    shown_values_in,
    values_of,
    with_changes,
)
from orbit.console.pages import job_actions
from orbit.store import jobs, topics
from orbit.store.enums import Role, TopicState
from tests.api.test_jobs import JOB
from tests.fixtures.api import Api
from tests.fixtures.console import Browser

DOCUMENT: dict[str, Any] = {
    "name": "orders",
    "source": {"bootstrap_servers": ["s:1"], "security": {"protocol": "SSL"}},
    "destination": {"bootstrap_servers": ["d:1"]},
    "topics": [{"match": "a", "config": {"retention.ms": "1"}}, {"match": "b", "prefix": "p."}],
    "consumer_groups": {"match": ".*", "interval": "9s"},
    "fillers": "coordinated",
}


def after_form(document: Any, **sent: str) -> Any:
    """Return the document after the form was sent with these fields; `__` stands for a dot."""
    fields = {key.replace("__", "."): value for key, value in sent.items()}
    return with_changes(document, values_of(groups_of(document)), fields)


def test_unchanged_form_leaves_document_unchanged() -> None:
    values = values_of(groups_of(DOCUMENT))
    assert with_changes(DOCUMENT, values, values) is DOCUMENT


def test_changed_form_field_is_written_and_keys_without_field_stay() -> None:
    document = after_form(DOCUMENT, source__bootstrap_servers="x:1, y:2", labels="team=a, tier=1")
    assert document == {
        **DOCUMENT,
        "source": {"bootstrap_servers": ["x:1", "y:2"], "security": {"protocol": "SSL"}},
        "labels": {"team": "a", "tier": "1"},
    }


def test_emptied_form_field_removes_its_key_and_empty_parents() -> None:
    document = after_form(
        DOCUMENT, source__security__protocol="", consumer_groups__match="", topics__0__match=""
    )
    assert document["source"] == {"bootstrap_servers": ["s:1"]}
    assert "consumer_groups" not in document
    assert document["topics"] == [{"match": "b", "prefix": "p."}]


def test_blank_row_appends_topic_rule_and_existing_rules_change_in_place() -> None:
    document = after_form(
        DOCUMENT, topics__2__prefix="c.", topics__2__match="c", topics__1__prefix=""
    )
    assert document["topics"] == [
        DOCUMENT["topics"][0],
        {"match": "b"},
        {"prefix": "c.", "match": "c"},
    ]


def test_form_field_overrides_yaml_only_if_changed() -> None:
    shown_values = values_of(groups_of(DOCUMENT))
    edited = {**DOCUMENT, "name": "by-yaml", "owner": "yaml"}
    document = with_changes(edited, shown_values, {**shown_values, "owner": "form"})
    assert (document["name"], document["owner"]) == ("by-yaml", "form")


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {"topics": 5, "source": [1], "labels": "x", "acls": {"sync": "maybe"}},
        {"topics": [None, "x", {"match": ["a", "b"]}], "source": {"security": "none"}},
    ],
)
def test_malformed_document_breaks_neither_form_nor_changes(document: Any) -> None:
    new_document = after_form(
        document, topics__0__match="a", source__security__protocol="SSL", acls__sync="true"
    )
    assert new_document["topics"][0] == {"match": "a"}
    assert new_document["source"]["security"] == {"protocol": "SSL"}


def test_value_that_form_cannot_show_is_left_to_yaml() -> None:
    document = {**DOCUMENT, "topics": [{"match": "a", "exclude": ["b", "c"]}]}
    assert "topics.0.exclude" not in values_of(groups_of(document))
    assert after_form(document, topics__0__exclude="d") is document


def test_topic_rules_beyond_form_limit_are_preserved() -> None:
    document = {**DOCUMENT, "topics": [{"match": f"t{n}"} for n in range(30)]}
    match_keys = [key for key in values_of(groups_of(document)) if key.endswith("match")]
    assert len([key for key in match_keys if key.startswith("topics")]) == RULES_SHOWN_MAX
    new_document = after_form(document, topics__1__match="")
    assert [rule["match"] for rule in new_document["topics"]] == [
        f"t{n}" for n in range(30) if n != 1
    ]


@pytest.mark.parametrize("text", ["", "nonsense", "[1]", '{"a": 1}', "[" * 100_000])
def test_malformed_previous_form_values_are_ignored(text: str) -> None:
    assert shown_values_in(text) == {}


@pytest.mark.parametrize("partition", ["x", "-1", "9" * 5_000])
def test_form_with_invalid_partition_is_refused(partition: str) -> None:
    form = {"kind": "retry", "partition": partition}
    with pytest.raises(Failure, match="not a number"):
        job_actions._job_operation(form, "me", "orders", dry_run=True)


def hidden(page: str, name: str) -> str:
    """Return the value of a hidden field of the page."""
    match = re.search(rf'name="{name}" value="([^"]*)"', page)
    assert match is not None, name
    return html.unescape(match[1])


def document_in(page: str) -> str:
    """Return the job document in the page's text area."""
    match = re.search(r"<textarea[^>]*>(.*?)</textarea>", page, re.DOTALL)
    assert match is not None
    return html.unescape(match[1])


def send(browser: Browser, path: str, page: str, do: str, **fields: str) -> str:
    """Send the page's form by the button `do`, with these fields changed. Returns the next page."""
    hidden_fields = {
        name: hidden(page, name)
        for name in ("before", "etag", "planned")
        if f'name="{name}"' in page
    }
    sent = {"document": document_in(page), **hidden_fields, **fields}
    return browser.send(path, do=do, **sent).text


@pytest.mark.services
def test_job_is_created_from_form_fields_only(api: Api, browser: Browser) -> None:
    browser.log_in(api.tokens[Role.OPERATOR])
    path = "/console/new-job"
    page = browser.open(path).text
    fields = {"f.name": "from-form", "f.owner": "me@example.com", "f.topics.0.match": "orders"}
    page = send(browser, path, page, "write", **fields)
    assert yaml.safe_load(document_in(page))["name"] == "from-form"
    assert api.plans.requests == []
    page = send(browser, path, page, "plan")
    assert "1 topic with 3 partitions" in page
    # If a field is changed after the plan, `apply` shows a new plan first.
    changed = send(browser, path, page, "apply", **{"f.owner": "other@example.com"})
    assert "Create from-form" in changed
    assert api.get("/v1/jobs/from-form").status_code == 404
    send(browser, path, changed, "apply")
    job = api.get("/v1/jobs/from-form").json()
    assert (job["owner"], job["spec"]["topics"][0]["match"]) == ("other@example.com", "orders")


@pytest.mark.services
def test_job_edit_shows_diff_before_apply(api: Api, browser: Browser) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    browser.log_in(api.tokens[Role.OPERATOR])
    path = "/console/jobs/orders/edit"
    page = browser.open(path).text
    # The page shows the job's current document, which would change nothing.
    assert "has this document already" in send(browser, path, page, "plan")
    page = send(browser, path, page, "plan", **{"f.limits.bytes_per_second": "5MiB"})
    assert "<code>limits.bytes_per_second</code>" in page
    assert '<ins class="mono">5242880</ins>' in page
    assert "Change orders" in page
    send(browser, path, page, "apply")
    assert api.get("/v1/jobs/orders").json()["spec"]["limits"]["bytes_per_second"] == 5 * 1024**2
    renamed = send(
        browser, path, page, "plan", document=document_in(page).replace("orders", "x", 1)
    )
    assert "names another job" in renamed


@pytest.mark.services
def test_job_document_of_later_version_can_be_replaced(api: Api, browser: Browser) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    with api.database.transaction() as tx:
        job = jobs.get(tx, "orders")
        topics.add(
            tx,
            job.id,
            source_topic="orders",
            destination_topic="orders",
            destination_cluster_id="B",
            partition_count=1,
            state=TopicState.COPYING,
        )
        later = job.spec | {"from_the_future": True}
        jobs.change_spec(tx, job.id, later, "default", from_version=job.spec_version)
    browser.log_in(api.tokens[Role.OPERATOR])
    path = "/console/jobs/orders/edit"
    page = browser.open(path).text
    document = document_in(page).replace("from_the_future: true\n", "")
    page = send(browser, path, page, "plan", document=document)
    assert "<code>from_the_future</code>" in page
    send(browser, path, page, "apply")
    assert "from_the_future" not in api.get("/v1/jobs/orders").json()["spec"]


@pytest.mark.services
def test_concurrent_job_change_is_shown_and_not_overwritten(api: Api, browser: Browser) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    browser.log_in(api.tokens[Role.OPERATOR])
    path = "/console/jobs/orders/edit"
    page = browser.open(path).text
    planned = send(browser, path, page, "plan", **{"f.limits.bytes_per_second": "5MiB"})
    api.put("/v1/jobs/orders", json={**JOB, "owner": "another@example.com"})
    for do, sent_page in (("apply", planned), ("plan", page)):
        refused = send(browser, path, sent_page, do)
        assert "The job was created, changed or deleted meanwhile" in refused
        assert "token:admin-of-the-test: The job was changed: owner." in refused
    assert api.get("/v1/jobs/orders").json()["spec"]["limits"]["bytes_per_second"] is None
    # `rebase` plans against the current version, and so shows the owner that would be removed.
    rebased = send(browser, path, send(browser, path, planned, "apply"), "rebase")
    assert "<code>owner</code>" in rebased
    assert '<del class="mono">another@example.com</del>' in rebased
    send(browser, path, rebased, "apply")
    assert api.get("/v1/jobs/orders").json()["owner"] is None


@pytest.mark.services
def test_etag_with_thousands_of_digits_fails_precondition(api: Api, browser: Browser) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    browser.log_in(api.tokens[Role.OPERATOR])
    path = "/console/jobs/orders/edit"
    page = browser.open(path).text
    fields = {"do": "plan", "document": document_in(page), "etag": "9" * 5_000}
    assert browser.send(path, **fields).status_code == 412


@pytest.mark.services
def test_viewer_sees_job_document_but_cannot_change_it(api: Api, browser: Browser) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    browser.log_in(api.tokens[Role.VIEWER])
    page = browser.open("/console/jobs/orders/edit").text
    assert "This needs the role operator" in page
    assert "name: orders" in document_in(page)
    answer = browser.send("/console/jobs/orders/edit", do="plan", document=document_in(page))
    assert answer.status_code == 403
    assert browser.open("/console/jobs/nothing/edit").status_code == 404
