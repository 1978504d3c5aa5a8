"""The objects of docs/scale.md for a gateway: they name one another, options, paths and metrics as these are."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from mmserve.cli import main as cli
from mmserve.config.options import resolve
from tests.fakes.processes.code_blocks import ROOT, blocks_of

Object = dict[str, Any]


@pytest.fixture(scope="module")
def objects() -> dict[str, Object]:
    """By kind."""
    found = blocks_of((ROOT / "docs/scale.md").read_text(), "docs/scale.md")
    (code,) = [block.code for block in found if "kind: InferencePool" in block.code]
    return {each["kind"]: each for each in yaml.safe_load_all(code)}


def test_the_pool_has_the_pods_of_the_servers_and_the_route_has_the_pool(objects: dict[str, Object]) -> None:
    pool, pods = objects["InferencePool"]["spec"], objects["Deployment"]["spec"]["template"]
    labels = pods["metadata"]["labels"]
    assert pool["selector"]["matchLabels"].items() <= labels.items()
    assert objects["Deployment"]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    (container,) = pods["spec"]["containers"]
    assert pool["targetPorts"] == [{"number": each["containerPort"]} for each in container["ports"]]
    (backend,) = objects["HTTPRoute"]["spec"]["rules"][0]["backendRefs"]
    group = objects["InferencePool"]["apiVersion"].partition("/")[0]
    assert backend == {"group": group, "kind": "InferencePool", "name": objects["InferencePool"]["metadata"]["name"]}


def test_the_pool_asks_the_service_of_the_picker(objects: dict[str, Object]) -> None:
    asked, service = objects["InferencePool"]["spec"]["endpointPickerRef"], objects["Service"]
    assert asked["name"] == service["metadata"]["name"]
    assert asked["port"]["number"] in [port["port"] for port in service["spec"]["ports"]]


def test_servers_listen_where_the_pool_says_and_know_the_name_of_the_route(objects: dict[str, Object]) -> None:
    (container,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    parsed, unknown = cli._parser().parse_known_args(container["args"])
    assert not unknown
    given = {name: value for name, value in vars(parsed).items() if name not in ("command", "config", "print_config")}
    config = resolve(given, {}, None)
    assert [{"containerPort": config.port}] == container["ports"]
    assert (config.host, [*config.allowed_hosts]) == ("0.0.0.0", objects["HTTPRoute"]["spec"]["hostnames"])
    assert objects["Deployment"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > config.shutdown_timeout
    for probe in ("startupProbe", "readinessProbe"):
        assert container[probe]["httpGet"] == {"path": "/ready", "port": config.port}


def test_the_picker_asks_for_metrics_that_servers_have(objects: dict[str, Object]) -> None:
    (text,) = objects["ConfigMap"]["data"].values()
    plugins = {each["type"]: each.get("parameters", {}) for each in yaml.safe_load(text)["plugins"]}
    extractor = plugins["core-metrics-extractor"]
    (engine,) = extractor["engineConfigs"]
    assert extractor["defaultEngine"] == engine["name"]
    there = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE))
    asked = [value for key, value in engine.items() if key.endswith("Spec")]
    assert len(asked) == 4
    for name in asked:
        assert name.removeprefix("mmserve:") in there, name
    assert plugins["metrics-data-source"]["path"] == "/metrics"


def test_llm_d_listens_where_servers_publish_and_scores_with_plugins_that_are_there() -> None:
    found = blocks_of((ROOT / "docs/scale.md").read_text(), "docs/scale.md")
    (code,) = [block.code for block in found if "precise-prefix-cache-producer" in block.code]
    config = yaml.safe_load(code)
    parsed, unknown = cli._parser().parse_known_args(["serve", *config["args"]])
    assert not unknown
    plugins = {each["type"]: each.get("parameters", {}) for each in config["plugins"]}
    precise = plugins["precise-prefix-cache-producer"]["kvEventsConfig"]
    ports = precise["podDiscoveryConfig"]
    assert parsed.kv_events_endpoint == f"tcp://*:{ports['socketPort']}"
    assert parsed.kv_events_replay_endpoint == f"tcp://*:{ports['replaySocketPort']}"
    assert parsed.kv_events_topic.startswith(precise["topicFilter"])
    assert parsed.kv_events_topic.endswith(f"@{plugins['token-producer']['modelName']}")
    assert plugins["prefix-cache-scorer"]["prefixMatchInfoProducerName"] in plugins
    (profile,) = config["schedulingProfiles"]
    assert {each["pluginRef"] for each in profile["plugins"]} <= plugins.keys()


def test_aibrix_finds_servers_and_their_events_where_they_are() -> None:
    found = blocks_of((ROOT / "docs/scale.md").read_text(), "docs/scale.md")
    (code,) = [block.code for block in found if block.language == "yaml" and "model.aibrix.ai" in block.code]
    deployment, service = yaml.safe_load_all(code)
    pods = deployment["spec"]["template"]
    (container,) = pods["spec"]["containers"]
    parsed, unknown = cli._parser().parse_known_args(container["args"])
    assert not unknown
    labels = pods["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert service["spec"]["selector"].items() <= labels.items()
    assert service["metadata"]["name"] == labels["model.aibrix.ai/name"] == parsed.model
    ports = [int(labels["model.aibrix.ai/port"]), 5557, 5558]
    assert [each["containerPort"] for each in container["ports"]] == ports
    events = (parsed.kv_events_endpoint, parsed.kv_events_replay_endpoint)
    assert (int(parsed.port), *events) == (ports[0], "tcp://*:5557", "tcp://*:5558")
    assert parsed.kv_events_format == "array"
