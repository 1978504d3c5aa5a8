"""The files of examples/ray: what they name exists, and both say the same. Ray's own schema reads them where Ray is."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from mmserve.cli import main as cli
from mmserve.cluster.front.run import FrontOptions
from mmserve.config.options import resolve
from mmserve.ipc.links import cluster_key
from mmserve.ipc.links.cluster_key import ClusterKey

KEY = ClusterKey.of(bytes(32))
ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "ray"


def _serve_config() -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((EXAMPLES / "serve.yaml").read_text())
    return config


def _rayservice() -> dict[str, Any]:
    manifest: dict[str, Any] = yaml.safe_load((EXAMPLES / "kuberay.yaml").read_text())
    return manifest


def test_kubernetes_gets_the_same_applications() -> None:
    manifest = _rayservice()
    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", "RayService")
    assert yaml.safe_load(manifest["spec"]["serveConfigV2"]) == _serve_config()
    (workers,) = manifest["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    nodes, _ = _serve_config()["applications"]
    assert workers["replicas"] == nodes["deployments"][0]["num_replicas"]
    for group in (manifest["spec"]["rayClusterConfig"]["headGroupSpec"], workers):
        pod = group["template"]["spec"]
        (mount,) = pod["containers"][0]["volumeMounts"]
        assert mount["name"] in {volume["name"] for volume in pod["volumes"]}
        assert nodes["args"]["cluster_key_file"].startswith(mount["mountPath"] + "/")
        assert workers["template"]["spec"]["terminationGracePeriodSeconds"] > 600


def test_pods_are_ready_where_a_front_answers() -> None:
    """KubeRay sends requests to ready pods. Without a probe here it asks Ray's proxy, which these do not have."""
    _, front = _serve_config()["applications"]
    (workers,) = _rayservice()["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    (container,) = workers["template"]["spec"]["containers"]
    assert container["readinessProbe"]["httpGet"] == {"path": "/live", "port": front["args"]["port"]}


def test_ray_takes_commands_with_a_token_alone() -> None:
    assert _rayservice()["spec"]["rayClusterConfig"]["authOptions"] == {"mode": "token"}


def test_ray_is_the_version_that_the_router_is_written_for() -> None:
    (pinned,) = re.findall(r'ray = \["ray\[serve\]==(\d+\.\d+)\.\*"\]', (ROOT / "pyproject.toml").read_text())
    assert _rayservice()["spec"]["rayClusterConfig"]["rayVersion"].startswith(pinned + ".")


@pytest.mark.parametrize("number", [0, 1])
def test_the_applications_and_deployments_exist(number: int) -> None:
    application = _serve_config()["applications"][number]
    module, _, function = application["import_path"].partition(":")
    source = (ROOT / module.replace(".", "/")).with_suffix(".py").read_text()
    assert function in {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    names = "".join(path.read_text() for path in (ROOT / "mmserve" / "cluster" / "on_ray").glob("*.py"))
    for deployment in application["deployments"]:
        assert f'"{deployment["name"]}"' in names
        # Ray's schema accepts any field.
        assert deployment.keys() <= {
            "name", "num_replicas", "max_ongoing_requests", "graceful_shutdown_timeout_s", "ray_actor_options"
        }  # fmt: skip


def test_the_options_are_those_of_servers_and_fronts() -> None:
    nodes, front = _serve_config()["applications"]
    parsed, unknown = cli._parser().parse_known_args(["serve", *nodes["args"]["options"]])
    assert not unknown
    given = {name: value for name, value in vars(parsed).items() if name not in ("command", "config", "print_config")}
    resolve(given, {}, None)
    FrontOptions(
        KEY, **{name: each for name, each in front["args"].items() if name not in ("cluster_key_file", "port")}
    )


def test_rays_schema_reads_them() -> None:
    schema = pytest.importorskip("ray.serve.schema", reason="Ray's own schema needs the extra ray: make ray")
    schema.ServeDeploySchema.model_validate(_serve_config())


def test_the_builders_make_deployments_of_their_arguments(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the builders need the extra ray: make ray")
    from mmserve.cluster.on_ray import apps

    path = tmp_path / "key"
    cluster_key.make_if_missing(path)
    secret = cluster_key.read(path).secret.hex()
    nodes, front = (each["args"] | {"cluster_key_file": str(path)} for each in _serve_config()["applications"])
    assert apps.nodes(nodes)._bound_deployment.init_args == (["--model", "llava"], secret, {}, "")
    port, given, options = apps.front(front)._bound_deployment.init_args
    assert (port, given, options["host"]) == (8000, secret, "0.0.0.0")
