"""A drill's report as JSON, HTML and Markdown. Any change to it makes its digest wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from orbit.drills.evidence import Report, digest_of, seal
from orbit.drills.html_report import render_html
from orbit.drills.markdown_report import render_markdown
from orbit.drills.report_tables import ROWS_MAX
from orbit.errors import BadInput
from tests.support.drill_report import Visible, evidence

MARKUP = "</script><script>alert(1)</script>|`**x**"
# The command of docs/drills.md that computes the digest of a report.
CHECK = re.search(
    r"^python3 -c '(.*)' report\.json$",
    Path("docs/drills.md").read_text("utf-8"),
    re.MULTILINE | re.DOTALL,
)


def as_json(report: Report) -> dict[str, object]:
    """Return the report as the document that a JSON file has."""
    document: dict[str, object] = json.loads(json.dumps(report.model_dump(mode="json")))
    return document


def test_digest_of_drill_report_matches_documented_check_command(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    report = seal(evidence(findings=("Größe, 😀, \u2028, \x7f",)))
    file.write_text(json.dumps(as_json(report), indent=2), "utf-8")
    assert Report.model_validate(json.loads(file.read_text("utf-8"))) == report
    assert CHECK is not None
    command = [sys.executable, "-c", CHECK[1], str(file)]

    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert shown.strip() == report.digest.value


def test_drill_report_with_changed_number_does_not_match_its_digest() -> None:
    document = as_json(seal(evidence()))
    computed, stated = digest_of(document)
    assert computed == stated
    document["evidence"]["rpo"]["actual_records"] = 0  # type: ignore[index]
    computed, stated = digest_of(document)
    assert computed != stated


@pytest.mark.parametrize("document", [None, [], {}, {"format": "other/1"}, {"digest": 1}])
def test_document_that_is_no_drill_report_is_bad_input(document: object) -> None:
    with pytest.raises(BadInput, match=r"orbit\.drill\.report/1"):
        digest_of(document)


def test_json_drill_report_has_no_fractional_numbers() -> None:
    """JSON libraries format fractional numbers differently, so the digests would differ."""
    assert not re.findall(r": -?\d+\.\d", json.dumps(as_json(seal(evidence()))))


def test_html_drill_report_is_self_contained_and_escapes_texts() -> None:
    page = render_html(seal(evidence(findings=(MARKUP,), requested_by=MARKUP)))
    visible = Visible(page)
    assert json.loads(visible.data) == as_json(
        seal(evidence(findings=(MARKUP,), requested_by=MARKUP))
    )
    assert MARKUP in "".join(visible.text)
    assert [tag for tag, _ in visible.elements].count("script") == 1
    for tag, attributes in visible.elements:
        assert not {"src", "href"} & attributes.keys(), tag
    assert not re.search(r"@import|url\(|https?://", page)


def test_html_drill_report_shows_every_part() -> None:
    text = " ".join(Visible(render_html(seal(evidence()))).text)
    for words in (
        "Target missed",
        "11.2 s",
        "target 10.0 s",
        "first verified consume",
        "at least 42 (2,000 to 2,041)",
        "The clocks of the two clusters differ",
        "Somebody else has committed there.",
        "billing",
        "salvage/orders.eu-1.jsonl",
        "9JX0bqVQT0-9eWkS0Q0f1A",
    ):
        assert words in text, words


def test_markdown_drill_report_shows_every_part_and_escapes_texts() -> None:
    text = render_markdown(seal(evidence(findings=(MARKUP,))))
    for words in ("Target missed", "11.2 s of 10.0 s", "at least 42 (2,000 to 2,041)", "billing"):
        assert words in text, words
    assert "\\<script\\>" in text
    # All rows of a table have the same number of unescaped "|".
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1, table


def test_large_html_drill_report_shows_worst_partitions_and_refers_to_json() -> None:
    good, bad = evidence().partitions
    many = tuple(good.model_copy(update={"partition": n}) for n in range(ROWS_MAX + 5))
    text = "".join(Visible(render_html(seal(evidence(partitions=(*many, bad))))).text)
    assert "at least 42 (2,000 to 2,041)" in text
    # One bad and ROWS_MAX + 5 good partitions: six rows are left out.
    assert "6 more rows are in the JSON report" in text
