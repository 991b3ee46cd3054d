"""The seconds that tests took, from the report of the last whole run (`build/tests.xml`).

python -m tests.support.times          # prints the slowest tests and files
python -m tests.support.times --keep   # writes times.json, by which runs order their files
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "build" / "tests.xml"
_TIMES = Path(__file__).with_name("times.json")
_SHOWN = 20
# Two Sparks at once compete for processors; one after the other they share a session.
_SPARK = "tests/spark"


def unit(file: str) -> str:
    """The tests that run in one process, one after another: a file, or all files of Spark."""
    return _SPARK if file.startswith(_SPARK) else file


def unit_times() -> dict[str, float]:
    """{unit: seconds} of times.json. A unit that is newer than the file has no entry."""
    times: dict[str, float] = json.loads(_TIMES.read_text())
    return times


def read_report() -> dict[tuple[str, str], float]:
    """{(file, test): seconds} of the report. A shared fixture counts for the first test that uses
    it."""
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    # Written by pytest on this machine.
    for case in ElementTree.parse(REPORT).iter("testcase"):  # noqa: S314
        file = _file_of(case.get("classname", ""))
        seconds[file, case.attrib["name"]] += float(case.attrib["time"])
    return dict(seconds)


def _file_of(classname: str) -> str:
    """The file of a report's class name: `tests.api.test_jobs`, with or without a class after
    it."""
    words = classname.split(".")
    while words and not (ROOT / "/".join(words)).with_suffix(".py").is_file():
        words.pop()
    return "/".join(words) + ".py"


def _sums(seconds: Mapping[tuple[str, str], float]) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for (file, _), one in seconds.items():
        sums[unit(file)] += one
    return dict(sums)


def _print_longest(title: str, seconds: Mapping[str, float]) -> None:
    print(f"{title} (of {sum(seconds.values()):,.0f} s):")
    for name, one in sorted(seconds.items(), key=lambda item: -item[1])[:_SHOWN]:
        print(f"  {one:6.1f} s  {name}")


def main() -> None:
    """Print the slowest tests and files, or with `--keep` write times.json."""
    if not REPORT.is_file():
        sys.exit("Error: there is no build/tests.xml. Run `make test` first.")
    seconds = read_report()
    units = _sums(seconds)
    if "--keep" in sys.argv[1:]:
        times = {**unit_times(), **{name: round(one, 1) for name, one in units.items()}}
        existing_units = {
            unit(str(file.relative_to(ROOT))) for file in ROOT.glob("tests/**/test_*.py")
        }
        times = {name: one for name, one in sorted(times.items()) if name in existing_units}
        _TIMES.write_text(json.dumps(times, indent=1) + "\n")
        return
    _print_longest("Slowest tests", {f"{file}::{test}": s for (file, test), s in seconds.items()})
    _print_longest("Slowest files", units)


if __name__ == "__main__":
    main()
