"""Step 0: facts of the card and of the software. What needs no torch comes first."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import time
from pathlib import Path

from benchmarks.gpu.checks import Checks, Figures, Settings, Skipped

_PACKAGES = ("torch", "triton", "numpy", "transformers", "safetensors", "tokenizers", "torchvision", "nvidia-ml-py")
NEEDED = {
    "the model's code": ("msgspec", "numpy", "psutil", "safetensors", "torch", "llguidance"),
    "tiny checkpoints": ("transformers", "tokenizers", "PIL", "xxhash"),
    "the server": (
        *("fastapi", "starlette", "uvicorn", "httptools", "httpcore2", "httpx2", "zmq", "rpyc", "pybase64"),
        *("setproctitle", "jinja2", "uvloop", "prometheus_client", "yaml", "tqdm", "shtab", "packaging"),
    ),
}
"""Modules, by what needs them."""
_QUERY = (
    *("name", "driver_version", "memory.total", "memory.used", "power.limit", "clocks.sm", "clocks.mem"),
    *("clocks.max.sm", "clocks.max.mem", "temperature.gpu", "compute_mode", "mig.mode.current"),
)


def run(checks: Checks, settings: Settings) -> None:
    checks.run("host", _host)
    checks.run("packages", _packages)
    checks.run("nvidia-smi", lambda: _nvidia_smi(settings))
    checks.run("torch", lambda: _torch(settings))
    checks.run("device", lambda: _device(settings))


def _host() -> Figures:
    cores = len(os.sched_getaffinity(0))
    compilers = {name: shutil.which(name) or "" for name in ("c++", "g++", "nvcc", "nvidia-smi")}
    return {"processor": _processor(), "cores": cores, "kernel": platform.release(), **compilers}


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _packages() -> Figures:
    """Passes whatever is missing: the steps that need it say so."""
    found = {name: _version(name) for name in _PACKAGES}
    missing = {
        f"missing for {what}": " ".join(name for name in names if _is_missing(name)) for what, names in NEEDED.items()
    }
    return found | {what: names for what, names in missing.items() if names}


def _is_missing(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is None
    except ModuleNotFoundError:
        return True


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _nvidia_smi(settings: Settings) -> Figures:
    if settings.device == "cpu" or not shutil.which("nvidia-smi"):
        raise Skipped("needs nvidia-smi")
    said = _ask(f"--query-gpu={','.join(_QUERY)}")
    card = dict(zip(_QUERY, (part.strip() for part in said.splitlines()[0].split(",")), strict=True))
    return card | {"other processes": _ask("--query-compute-apps=pid,used_memory").splitlines()}


def _ask(query: str) -> str:
    command = ["nvidia-smi", query, "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout


def _torch(settings: Settings) -> Figures:
    started_s = time.perf_counter()
    import torch

    return {
        "version": torch.__version__,
        "CUDA": torch.version.cuda,
        "import s": round(time.perf_counter() - started_s, 2),
        "threads": torch.get_num_threads(),
    }


def _device(settings: Settings) -> Figures:
    import torch

    from benchmarks.gpu.rates.device import device_of

    device = device_of(settings)
    if device.type == "cpu":
        return {"name": "cpu"}
    about = torch.cuda.get_device_properties(device)
    free, total = torch.cuda.mem_get_info(device)
    return {
        "name": about.name,
        "capability": f"{about.major}.{about.minor}",
        "multiprocessors": about.multi_processor_count,
        "L2 bytes": about.L2_cache_size,
        "free bytes": free,
        "bytes": total,
        "count": torch.cuda.device_count(),
    }
