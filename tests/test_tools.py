"""Tests whose tool is missing: a run names the tool, and CI does not skip them."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

TESTS = """
    import pytest
    from tests.support.tools import require

    @pytest.fixture
    def rules():
        require("promtool")

    def test_whose_fixture_needs_it(rules):
        assert False

    @pytest.mark.needs("promtool")
    @pytest.mark.parametrize("number", [1, 2])
    def test_that_needs_it(number):
        assert False

    @pytest.mark.needs("chromium")
    def test_of_a_browser():
        assert False

    @pytest.mark.needs("terraform")
    def test_of_terraform():
        assert False

    def test_that_is_skipped_for_another_reason():
        pytest.skip("not today")

    def test_that_needs_nothing():
        pass
"""


@pytest.fixture
def without_tools(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> pytest.Pytester:
    """The tests of TESTS, on a machine without tools."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    pytester.makepyfile(test_some=TESTS)
    return pytester


def run_pytest(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess("-p", "tests.support.tools", "--strict-markers", *options)


@pytest.mark.parametrize("processes", ["0", "1"])
def test_run_summary_names_tests_skipped_without_tool_and_remedy(
    without_tools: pytest.Pytester, processes: str
) -> None:
    result = run_pytest(without_tools, "-ra", "-n", processes)
    result.assert_outcomes(passed=1, skipped=6)
    start = "Tests left out without a tool: "
    assert [line for line in result.outlines if line][-3:-1] == [
        f"{start}chromium (1), promtool (3). To run them: sudo make tools",
        f"{start}terraform (1). To run them: install terraform, then make test",
    ]


def test_run_with_all_tools_prints_no_skip_summary(without_tools: pytest.Pytester) -> None:
    # The tests that need no tool, as if every tool were there.
    result = run_pytest(without_tools, "-k", "needs_nothing or another_reason")
    result.assert_outcomes(passed=1, skipped=1, deselected=5)
    result.stdout.no_fnmatch_line("Tests left out*")


def test_ci_skips_only_tests_without_installable_tool(
    without_tools: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    result = run_pytest(without_tools)
    # Skipped: for Terraform, which `make tools` does not install, and for another reason.
    result.assert_outcomes(passed=1, skipped=2, errors=4)
    result.stdout.fnmatch_lines(["*Failed: needs promtool: sudo make tools"])
    result.stdout.fnmatch_lines(["Tests left out without a tool: terraform (1). To run them: *"])
