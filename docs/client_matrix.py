"""``python -m docs.client_matrix REPORT ...`` writes the table of tested clients into docs/clients.md.

``make clients`` does it. REPORT: a JUnit report of tests/clients. A client that no report tells of is not in the table.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

PAGE = Path(__file__).with_name("clients.md")
BEGIN, END = "<!-- written by make clients -->\n", "<!-- end of what make clients writes -->\n"
_HEAD = """\
| client | version | tested on | passed | failed | not run | what |
|---|---|---|---|---|---|---|
"""


@dataclass
class Client:
    """What a run says of one client. ``notes``: what its tests say of themselves. ``skipped``: names of tests."""

    name: str
    version: str
    date: str
    passed: int = 0
    failed: int = 0
    not_run: int = 0
    what: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, test: ElementTree.Element) -> None:
        """Count one test, or the checks that it made of a suite."""
        said = _properties(test)
        name = test.get("name", "").partition("[")[0].removeprefix("test_").replace("_", " ")
        if test.find("failure") is not None or test.find("error") is not None:
            self.failed += 1
            self.notes.append(f"failed: {name}")
            return
        if test.find("skipped") is not None:
            self.not_run += 1
            self.skipped.append(name)
            return
        self.passed += int(said.get("checks", "1"))
        self.not_run += int(said.get("not_run", "0"))
        what = said.get("suite", name)
        if what not in self.what:
            self.what.append(what)
        if "note" in said:
            self.notes.append(said["note"])

    def all_notes(self) -> list[str]:
        """What failed, was left out or skipped, each once."""
        skipped = [f"skipped: {', '.join(dict.fromkeys(self.skipped))}"] if self.skipped else []
        return [*dict.fromkeys(self.notes), *skipped]

    def row(self) -> str:
        """The client's line of the table."""
        counts = (str(count) if count else "" for count in (self.passed, self.failed, self.not_run))
        cells = (self.name, self.version, self.date, *counts, "; ".join(self.what))
        return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |\n"


def clients(reports: Iterable[ElementTree.Element]) -> list[Client]:
    """The clients of these reports, in the order of their tests."""
    found: dict[str, Client] = {}
    for suite in (suite for report in reports for suite in report.iter("testsuite")):
        date = suite.get("timestamp", "")[:10]
        for test in suite.iter("testcase"):
            said = _properties(test)
            if "client" in said:
                found.setdefault(said["client"], Client(said["client"], said["version"], date)).add(test)
    return list(found.values())


def table(found: Iterable[Client]) -> str:
    """The table, and below it what did not pass or was left out."""
    found = list(found)
    notes = [f"- {client.name}: {note}\n" for client in found for note in client.all_notes()]
    return _HEAD + "".join(client.row() for client in found) + ("\n" + "".join(notes) if notes else "")


def written_into(page: str, text: str) -> str:
    """The page with this text in place of what stands between its marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE} has no place for the table: the lines {BEGIN.strip()!r} and {END.strip()!r}")
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def write(reports: Iterable[Path]) -> None:
    """Write the table of these reports into the page."""
    found = clients(ElementTree.parse(report).getroot() for report in reports)
    PAGE.write_text(written_into(PAGE.read_text(), table(found)))
    print(f"wrote the table of tested clients into {PAGE}")


def _properties(test: ElementTree.Element) -> dict[str, str]:
    return {one.get("name", ""): one.get("value", "") for one in test.iter("property")}


if __name__ == "__main__":
    write(map(Path, sys.argv[1:]))
