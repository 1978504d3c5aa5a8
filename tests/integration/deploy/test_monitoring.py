"""The dashboard and the alert rules ask only for series and labels that a scrape of our metrics has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from mmserve.ipc.links.endpoints import Endpoints
from mmserve.monitoring.metrics import memory
from mmserve.monitoring.metrics.client import MetricsClient
from mmserve.monitoring.metrics.memory import ProcessMemory
from mmserve.monitoring.metrics.names import METRICS
from mmserve.monitoring.metrics.series import Series
from mmserve.runtime.memory.cgroup import GroupMemory

DEPLOY = Path(__file__).parents[3] / "deploy"
RULES = DEPLOY / "prometheus/alerts.yml"
DASHBOARD = DEPLOY / "grafana/dashboards/mmserve.json"
OF_PROMETHEUS = {"instance", "job"}
"""Labels that Prometheus adds to each series."""


class Query(NamedTuple):
    text: str
    used_labels: frozenset[str]
    """Labels of the result that a legend or a message shows."""


def _panels() -> list[dict[str, Any]]:
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def _rules() -> list[dict[str, Any]]:
    return list(yaml.safe_load(RULES.read_text())["groups"][0]["rules"])


def _queries() -> Iterator[Query]:
    dashboard = json.loads(DASHBOARD.read_text())
    for panel in _panels():
        for target in panel["targets"]:
            yield _query(target["expr"], re.findall(r"{{(\w+)}}", target["legendFormat"]))
    for note in dashboard["annotations"]["list"]:
        yield _query(note["target"]["expr"], re.findall(r"{{(\w+)}}", note["titleFormat"]))
    for rule in _rules():
        yield _query(rule["expr"], re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))


def _query(text: str, used: list[str]) -> Query:
    return Query(text.replace("$__rate_interval", "1m").replace("$instance", ".*"), frozenset(used))


@pytest.fixture(scope="module")
def exposed() -> dict[str, set[str]]:
    """The name of each sample in a scrape of a server that has counted everything, and its labels."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(dir="/tmp") as run_dir:
        endpoints = Endpoints(run_dir)
        patch.setattr(memory, "memory_groups", lambda: [GroupMemory(limit_nbytes=2, left_nbytes=1)])
        with closing(MetricsClient(endpoints, "test")) as client:
            for name, metric in METRICS.items():
                client.add(name, 1, *(f"any {label}" for label in metric.labels))
            series = Series(endpoints.metrics)
            series.registry.register(ProcessMemory(root_pid=1))
            text = series.render().decode()
    families = list(text_string_to_metric_families(text))
    found = {sample.name: set(sample.labels) for family in families for sample in family.samples}
    # Without a process of a server these have no sample.
    assert {"mmserve:process_pss_bytes", "mmserve:process_rss_bytes"} <= {family.name for family in families}
    return found | {"mmserve:process_pss_bytes": {"process"}, "mmserve:process_rss_bytes": {"process"}, "up": set()}


@pytest.mark.parametrize("query", list(_queries()), ids=lambda query: query.text[:60])
def test_a_query_names_only_what_is_exposed(query: Query, exposed: dict[str, set[str]]) -> None:
    expression = promql_parser.parse(query.text)
    known: list[set[str]] = []
    grouped: list[set[str]] = []

    def visit(node: object) -> bool:
        if isinstance(node, promql_parser.VectorSelector):
            assert node.name in exposed, f"there is no series {node.name}"
            known.append(exposed[node.name] | OF_PROMETHEUS)
            asked = {matcher.name for matcher in node.matchers.matchers}
            assert asked <= known[-1], f"{node.name} has no label {asked - known[-1]}"
        if isinstance(node, promql_parser.AggregateExpr):
            assert node.modifier is None or node.modifier.type == promql_parser.AggModifierType.By
            grouped.append(set(node.modifier.labels) if node.modifier else set())
        return True

    promql_parser.walk(expression, pre_visit=visit)
    assert known
    shared = set.intersection(*known)
    for labels in grouped:
        assert labels <= shared, f"not all series have {labels - shared}"
    result = set.intersection(*grouped) if grouped else shared
    assert query.used_labels <= result, f"the result has no {query.used_labels - result}"


def test_panels_have_an_id_and_the_provisioned_data_source_and_do_not_overlap() -> None:
    (source,) = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    panels, places = _panels(), set()
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        assert panel["datasource"]["uid"] == source["uid"]
        assert all(target["datasource"]["uid"] == source["uid"] for target in panel["targets"])
        cells = {(x, place["y"]) for x in range(place["x"], place["x"] + place["w"])}
        assert not cells & places, panel["title"]
        assert max(cells)[0] < 24
        places |= cells


def test_every_alert_has_a_section_in_the_runbook() -> None:
    headings = re.findall(r"^#+ (\w+)$", (DEPLOY.parent / "docs/operating.md").read_text(), re.MULTILINE)
    for rule in _rules():
        assert rule["annotations"]["runbook"] == f"docs/operating.md#{rule['alert'].lower()}"
        assert rule["alert"] in headings
    assert {heading for heading in headings if heading.startswith("Mmserve")} == {rule["alert"] for rule in _rules()}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian's prometheus) is not installed")
def test_alerts_fire_when_they_should() -> None:
    subprocess.run(["promtool", "check", "config", "prometheus.yml"], cwd=DEPLOY / "prometheus", check=True)
    subprocess.run(["promtool", "test", "rules", "alerts_test.yml"], cwd=DEPLOY / "prometheus", check=True)
