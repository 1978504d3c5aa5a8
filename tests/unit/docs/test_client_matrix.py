"""The table of tested clients: the counts of one run, without clients that were not run; the rest of the page stays."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from docs.client_matrix import BEGIN, END, PAGE, clients, table, written_into

REPORT = """<testsuites><testsuite timestamp="2026-11-24T03:00:00.1">
<testcase name="test_chat[True]">OF openai 3</testcase>
<testcase name="test_chat[False]">OF openai 3</testcase>
<testcase name="test_old|new_fields">OF openai 3<failure message="x"/></testcase>
<testcase name="test_images">OF openai 3<skipped message="no pictures"/></testcase>
<testcase name="test_suite">OF suite 0.5<properties><property name="checks" value="8"/>
  <property name="suite" value="all of it"/>
  <property name="note" value="one left out"/><property name="not_run" value="1"/></properties></testcase>
<testcase name=""><skipped message="could not import 'other'"/></testcase>
</testsuite></testsuites>"""
PROPERTIES = r'<properties><property name="client" value="\1"/><property name="version" value="\2"/></properties>'


@pytest.fixture
def report() -> ElementTree.Element:
    return ElementTree.fromstring(re.sub(r"OF (\S+) ([\d.]+)", PROPERTIES, REPORT))


def test_each_client_that_was_run_has_a_row_of_its_counts(report: ElementTree.Element) -> None:
    lines = table(clients([report])).splitlines()
    assert lines[2:] == [
        "| openai | 3 | 2026-11-24 | 2 | 1 | 1 | chat |",
        "| suite | 0.5 | 2026-11-24 | 8 |  | 1 | all of it |",
        "",
        "- openai: failed: old|new fields",
        "- openai: skipped: images",
        "- suite: one left out",
    ]


def test_the_table_takes_the_place_of_the_one_before() -> None:
    page = f"before\n{BEGIN}old\n{END}after\n"
    once = written_into(page, "new")
    assert once == written_into(once, "new") == f"before\n{BEGIN}\nnew\n{END}after\n"
    with pytest.raises(SystemExit, match="no place"):
        written_into("before\nafter\n", "new")


def test_the_page_has_a_place_for_the_table() -> None:
    assert written_into(PAGE.read_text(), "new") != PAGE.read_text()
