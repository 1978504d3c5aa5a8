"""Checks of the installation: Python, packages, torch, C++ kernels, GPUs."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from importlib import metadata
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

from mmserve.cli.doctor.finding import Check, Finding, failure, ok, warning
from mmserve.config.resolved.gpu_capability import problem_with_bfloat16
from mmserve.supervisor.startup import machine

_PROBE = "mmserve.cli.doctor.probe"
_PROBE_TIMEOUT_S = 80.0
_TESTED_TORCH = ("2.11", "2.13")
"""The oldest and the newest minor version."""
_TESTED_PYTHON = (3, 11)
_MOST_WAYS = 3
"""Products that are named as faster in another way."""
_GIB = 1 << 30


def checks() -> list[Check]:
    """All of them. The last three import torch, in one child process."""
    return [
        Check("python", _python),
        Check("packages", _packages),
        Check("torch", lambda: torch_finding(_probe(), machine.num_cores())),
        Check("kernels", lambda: kernels_finding(_probe())),
        Check("gpu", lambda: gpu_finding(_probe(), machine.look().cuda_problem)),
    ]


def _python() -> Finding:
    found = f"Python {sys.version.split()[0]} in {sys.prefix}"
    if sys.version_info[:2] != _TESTED_PYTHON:
        found += f"; all tests ran with {'.'.join(map(str, _TESTED_PYTHON))}"
    return ok(found)


def _packages() -> Finding:
    """Each package that mmserve needs, in a version of the range that it states."""
    wrong, seen = [], 0
    for text in metadata.requires("mmserve") or ():
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        seen += 1
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{requirement.name} is missing")
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} {version} is not {requirement.specifier}")
    if wrong:
        return failure("; ".join(wrong), "pip install --upgrade mmserve in this environment")
    return ok(f"mmserve {metadata.version('mmserve')} and {seen} packages in the versions it states")


@cache
def _probe() -> dict[str, Any]:
    try:
        done = subprocess.run(
            [sys.executable, "-m", _PROBE], capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"importing torch took more than {_PROBE_TIMEOUT_S:g} s"}
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        return {"error": f"torch ends Python with code {done.returncode}: {last}"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def torch_finding(probe: dict[str, Any], num_threads: int) -> Finding:
    """``probe``: what ``doctor.probe`` has printed, or an error of running it. ``num_threads``: those that the
    server computes with on a CPU; torch alone would start one for each core of the machine, whatever a container
    allows."""
    torch = probe.get("torch", probe)
    if error := torch.get("error"):
        return failure(f"torch cannot be imported: {error}", "install it again: pip install --force-reinstall torch")
    build = f"CUDA {torch['cuda']}" if torch["cuda"] else "CPU build"
    found = f"torch {torch['version']}, {build}"
    if not torch["gpus"]:
        found += f"; the server computes with {num_threads} thread{'s' if num_threads > 1 else ''} (--cpu-threads)"
    minor = Version(torch["version"]).release[:2]
    first, last = (Version(version).release for version in _TESTED_TORCH)
    if not first <= minor <= last:
        return warning(found, f"tested with {_TESTED_TORCH[0]} to {_TESTED_TORCH[1]}")
    return ok(found)


def kernels_finding(probe: dict[str, Any]) -> Finding:
    """As ``torch_finding``."""
    kernels = probe.get("kernels", probe)
    if error := kernels.get("error"):
        return failure(f"the C++ kernels cannot be looked for: {error}", "see torch above")
    level, all_levels = kernels["level"], kernels["levels"]
    found = f"level {level} of {', '.join(all_levels)}"
    if kernels["correct"] is False:
        return warning(f"{found}: they compute wrong numbers here, so torch computes alone, slower", "report this CPU")
    if level != all_levels[0]:
        do = f"start with --kernel-level {level}, and report this CPU"
        return warning(f"{found}: faster ones compute wrong numbers here, or cannot be loaded", do)
    if kernels["refuses_tiles"]:
        do = "run a kernel that supports AMX (5.16 or later), and allow arch_prctl in the container"
        return warning(f"{found}: the system refuses this CPU's tile registers (AMX)", do)
    if kernels["source"]:
        found += f", from the {kernels['source']}, results checked against torch"
        if measured := kernels["measured"]:
            found += f"; {measured} products measured, {_faster_ways(kernels['faster'])}"
        return ok(found)
    if kernels["compilers"]:
        return ok(f"{found}, will be compiled at the first start by {kernels['compilers'][0]} (about 15 s)")
    return warning(
        f"{found}: not in this installation, and there is no compiler",
        "install g++ (apt install g++) or a wheel for this CPU: without them the server is several times slower",
    )


def _faster_ways(faster: list[list[float]]) -> str:
    """What ``--kernel-ways auto`` has chosen. ``faster``: as ``probe`` says it, or JSON."""
    found = f"{len(faster)} of them faster in another way than usual"
    most = sorted(faster, key=lambda each: -each[-1])[:_MOST_WAYS]
    named = (f"{inputs} x {outputs} with {rows} rows by {gain:.0%}" for _, inputs, outputs, rows, gain in most)
    return f"{found} ({', '.join(named)})" if faster else found


def gpu_finding(probe: dict[str, Any], cuda_problem: str) -> Finding:
    """``cuda_problem``: why there is no GPU to use, or empty."""
    gpus = probe.get("torch", {}).get("gpus") or []
    if not gpus:
        if cuda_problem in ("", "there is no NVIDIA driver"):
            return ok("none; the server computes on the CPU")
        return warning(f"none can be used: {cuda_problem}", "for a CPU server nothing; else install torch with CUDA")
    rows = [
        f"{gpu['name']} (compute {gpu['capability']}), {gpu['free'] / _GIB:.1f} of {gpu['total'] / _GIB:.1f} GiB free"
        for gpu in gpus
    ]
    found = "; ".join(rows)
    if driver := probe["torch"].get("driver"):
        found = f"driver {driver}: {found}"
    oldest = min(tuple(map(int, gpu["capability"].split("."))) for gpu in gpus)
    if problem := problem_with_bfloat16((oldest[0], oldest[1])):
        do = "choose newer GPUs with CUDA_VISIBLE_DEVICES: on this one torch computes attention, slower than kernels"
        return warning(f"{found}; {problem}", do)
    if any(len(gpu["peers"]) < len(gpus) - 1 for gpu in gpus):
        return warning(f"{found}; not all reach each other's memory", "--tp over these goes through host memory")
    return ok(found)
