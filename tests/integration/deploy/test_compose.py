"""The compose file: hardened, and in agreement with the files and options that it names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from mmserve.config.config import Config
from mmserve.config.options import resolve

DEPLOY = Path(__file__).parents[3] / "deploy"


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert isinstance(found, dict)
    return found


def test_the_server_gets_no_more_than_it_needs(services: dict[str, Any]) -> None:
    server = services["mmserve"]
    assert server["read_only"] is True
    assert server["cap_drop"] == ["ALL"]
    assert server["security_opt"] == ["no-new-privileges:true"]
    assert server["shm_size"] == "64m"
    assert "privileged" not in server


def test_live_requests_may_finish(services: dict[str, Any]) -> None:
    assert float(services["mmserve"]["stop_grace_period"].removesuffix("s")) > Config().shutdown_timeout


def test_ports_are_reached_from_this_machine_alone(services: dict[str, Any]) -> None:
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_images_of_others_have_a_version(services: dict[str, Any]) -> None:
    for name in ("prometheus", "grafana"):
        assert re.search(r":v?\d+\.\d+\.\d+$", services[name]["image"])


def test_mounted_files_and_build_targets_exist(services: dict[str, Any]) -> None:
    for service in services.values():
        for source in (volume.split(":")[0] for volume in service["volumes"] if volume.startswith("./")):
            assert (DEPLOY / source).exists(), source
    cuda = yaml.safe_load((DEPLOY / "compose.cuda.yaml").read_text())["services"]["mmserve"]
    stages = re.findall(r"^FROM \S+ AS (\S+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert {services["mmserve"]["build"]["target"], cuda["build"]["target"]} <= set(stages)


def test_its_variables_are_options_and_let_prometheus_in(services: dict[str, Any]) -> None:
    environment = {name: value.replace("${MMSERVE_MODEL:-llava}", "llava") for name, value in
                   services["mmserve"]["environment"].items()}  # fmt: skip
    config = resolve({}, environment, None)
    (scrape,) = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())["scrape_configs"]
    (target,) = scrape["static_configs"][0]["targets"]
    assert target == f"mmserve:{config.port}"
    assert urlsplit(f"http://{target}").hostname in config.allowed_hosts
