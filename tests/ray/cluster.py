"""A Ray cluster of one machine (``ray start --head``), and applications deployed there by ``serve deploy``."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.e2e.stack import LITTLE_MEMORY
from tests.fakes.http.ports import free_port
from tests.fakes.pictures.cache import until

EXAMPLE = Path(__file__).parents[2] / "examples" / "ray" / "serve.yaml"
_BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class RayCluster:
    """``environment``: for commands and drivers."""

    environment: Mapping[str, str]
    directory: Path
    dashboard: str
    pid: int

    def actors(self, name: str) -> list[psutil.Process]:
        """Processes of the replicas of a deployment that run, the same order each time."""
        found = []
        for process in psutil.Process(self.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if " ".join(process.cmdline()).startswith(f"ray::ServeReplica:{name}"):
                    found.append(process)
        return sorted(found, key=lambda process: process.pid)

    def servers(self) -> list[psutil.Process]:
        """Supervisors of the servers."""
        found = []
        for actor in self.actors("nodes:Node"):
            with contextlib.suppress(psutil.NoSuchProcess):
                found += [each for each in actor.children() if "mmserve: supervisor" in " ".join(each.cmdline())]
        return found

    def deploy(self, config: Mapping[str, Any]) -> None:
        """``serve deploy``, which returns before anything has changed."""
        path = self.directory / "serve.yaml"
        path.write_text(yaml.safe_dump(config))
        command = [str(_BIN / "serve"), "deploy", str(path), "--address", self.dashboard]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr

    def delete_all(self) -> None:
        command = [str(_BIN / "serve"), "shutdown", "--yes", "--address", self.dashboard]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        until(lambda: not self.actors(""), timeout_s=60)


def example(key_file: Path, port: int, *, servers: int, fronts: int, options: tuple[str, ...] = ()) -> dict[str, Any]:
    """examples/ray/serve.yaml for this machine: small servers without GPUs."""
    config: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    nodes, front = config["applications"]
    nodes["args"] = {
        "cluster_key_file": str(key_file),
        "options": [
            *nodes["args"]["options"],
            "--dtype",
            "float32",
            "--shutdown-timeout",
            "60",
            *LITTLE_MEMORY,
            *options,
        ],
    }
    nodes["deployments"][0] |= {"num_replicas": servers, "ray_actor_options": {"num_cpus": 0}}
    front["args"] |= {"cluster_key_file": str(key_file), "host": "127.0.0.1", "port": port, "allowed_hosts": []}
    front["deployments"][0] |= {"num_replicas": fronts, "ray_actor_options": {"num_cpus": 0}}
    return config


@contextlib.contextmanager
def ray_cluster() -> Iterator[RayCluster]:
    with tempfile.TemporaryDirectory(prefix="r-", ignore_cleanup_errors=True) as directory:
        ports = {name: str(free_port()) for name in ("port", "dashboard-port", "dashboard-agent-listen-port")}
        environment = {
            **os.environ,
            "RAY_TMPDIR": directory,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
            "PYTHONPATH": os.pathsep.join([str(EXAMPLE.parents[2]), os.environ.get("PYTHONPATH", "")]),
        }
        command = [str(_BIN / "ray"), "start", "--head", "--block", "--node-ip-address=127.0.0.1", "--num-cpus=4"]
        command += ["--object-store-memory=80000000", *(f"--{name}={port}" for name, port in ports.items())]
        with (Path(directory) / "ray.log").open("w+") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
            try:
                until(lambda: "Ray runtime started" in (Path(directory) / "ray.log").read_text(), timeout_s=60)
                yield RayCluster(
                    environment, Path(directory), f"http://127.0.0.1:{ports['dashboard-port']}", process.pid
                )
            finally:
                children = psutil.Process(process.pid).children(recursive=True)
                process.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(60)
                for each in [*children, psutil.Process(process.pid)] if process.poll() is None else children:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        each.kill()
                process.wait(10)
