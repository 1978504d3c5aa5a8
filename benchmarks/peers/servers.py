"""The servers to compare with: how each is started with room for a load, and stopped."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.load.server import STOP_TIMEOUT_S, Target, exit_on_sigterm
from benchmarks.load.workload import Workload

MODELS = {"text": "models/smollm2-noeos", "llava": "models/llava-rand"}
START_WITHIN_S = 300
_LLAMA_KV_TOKENS = 32_768
"""llama.cpp allocates its whole KV cache at start and divides it into slots of equal length."""


class DoesNotStart(RuntimeError):
    """A server ended or did not answer in time."""


@dataclass(frozen=True)
class Capacity:
    """Limits that a server is started with: tokens of the longest sequence, concurrent sequences."""

    context_tokens: int = 2048
    sequences: int = 32


@dataclass(frozen=True)
class Peer:
    """How a server is started. Its command's first word is the program's path.

    ``command`` is formatted with the fields of Setup and Capacity, model (a path), and slots (of llama.cpp)."""

    name: str
    command: str
    models: tuple[str, ...] = ("text", "llava")
    environment: dict[str, str] = field(default_factory=dict)
    preload: tuple[str, ...] = ()
    """Libraries for LD_PRELOAD, as the peer recommends; missing ones are skipped."""

    def is_installed(self, home: Path) -> bool:
        return Path(self.command.split()[0].format(home=home)).exists()


@dataclass(frozen=True)
class Setup:
    """Settings of a run, the same for all servers: directory of models and peers, port, dtype."""

    home: Path
    port: int
    dtype: str
    serve_args: str = ""
    """More flags for mmserve."""


OURS = "mmserve"
_CORES = ",".join(map(str, sorted(os.sched_getaffinity(0))))


def _vllm(name: str, dtype: str, *flags: str) -> Peer:
    command = (
        "{home}/venv-vllm/bin/vllm serve {model} --served-model-name m --port {port} --host 127.0.0.1 "
        "--max-model-len {context_tokens} --max-num-seqs {sequences} --dtype"
    )
    return Peer(
        name,
        " ".join((command, dtype, *flags)),
        environment={
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": _CORES,  # by default it leaves one core free
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
        },
        preload=("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4", "{home}/venv-vllm/lib/libiomp5.so"),
    )


def _openvino(name: str, *flags: str) -> Peer:
    command = (
        "{home}/venv-ov/bin/python -m benchmarks.peers.on_openvino --gguf {home}/models/smollm2-f16.gguf "
        "--checkpoint {model} --port {port} --sequences {sequences}"
    )
    environment = {"PYTHONPATH": str(Path(__file__).parents[2])}
    return Peer(name, " ".join((command, *flags)), models=("text",), environment=environment)


PEERS = (
    Peer(
        OURS,
        f"{sys.executable} -m mmserve serve --model {{model}} --served-model-name m --port {{port}} "
        "--dtype {dtype} --kv-cache-gb 1 --max-model-len {context_tokens} {serve_args}",
    ),
    _vllm("vllm", "{dtype}", "--enforce-eager"),
    _vllm("vllm-float32", "float32", "--enforce-eager"),
    _vllm("vllm-compiled", "{dtype}"),
    Peer(
        "llama.cpp",
        "{home}/llamacpp/build/bin/llama-server -m {home}/models/smollm2-f16.gguf --host 127.0.0.1 --port {port} "
        f"-np {{slots}} -c {_LLAMA_KV_TOKENS} --no-webui",
        models=("text",),
    ),
    _openvino("openvino"),
    _openvino("openvino-kv16", "--kv-precision f16"),
)
_ONE_PICTURE = ' --limit-mm-per-prompt {{"image":1,"video":0}}'
"""Without it vLLM reserves memory for videos, which no request has."""
MODES = {
    "vllm": ("vllm", "vllm-float32", "vllm-compiled"),
    "llama.cpp": ("llama.cpp",),
    "openvino": ("openvino-kv16",),
}
"""Peer -> its modes that count for the targets: all of vLLM's, of the others those of equal bits."""


def for_load(peer: Peer, load: Workload) -> Peer:
    """The server, told what requests with a picture have if it must be told."""
    needs_telling = load.images > 0 and peer.name != OURS
    return replace(peer, command=peer.command + _ONE_PICTURE) if needs_telling else peer


@contextlib.contextmanager
def started(peer: Peer, model: Path, capacity: Capacity, setup: Setup) -> Iterator[tuple[Target, float]]:
    """Start the server with the checkpoint. Yields it and the seconds its start took. Raises DoesNotStart with the
    reason, also where another server has the port already: its answers would be taken for those of this one."""
    if _answers(f"http://127.0.0.1:{setup.port}/health"):
        raise DoesNotStart(f"{peer.name} does not start: another server answers at port {setup.port}")
    preload = [path for path in (text.format(home=setup.home) for text in peer.preload) if Path(path).exists()]
    environment = os.environ | peer.environment | ({"LD_PRELOAD": ":".join(preload)} if preload else {})
    words, url = command(peer, model, capacity, setup), f"http://127.0.0.1:{setup.port}"
    started_s = time.perf_counter()
    with (
        exit_on_sigterm(),
        tempfile.TemporaryFile() as output,
        subprocess.Popen(words, env=environment, stdout=output, stderr=subprocess.STDOUT) as process,
    ):
        try:
            while not _answers(f"{url}/health"):
                if process.poll() is not None or time.perf_counter() - started_s > START_WITHIN_S:
                    output.seek(0)
                    reason = _reason(output.read().decode(errors="replace"))
                    raise DoesNotStart(f"{peer.name} does not start: {reason} ({' '.join(words)})")
                time.sleep(0.1)
            yield Target(peer.name, url, "m", process.pid), time.perf_counter() - started_s
        finally:
            process.terminate()
            process.wait(STOP_TIMEOUT_S)


def command(peer: Peer, model: Path, capacity: Capacity, setup: Setup) -> list[str]:
    """The words that start it."""
    slots = _LLAMA_KV_TOKENS // capacity.context_tokens
    values = {**vars(setup), **vars(capacity), "model": model, "slots": slots}
    return peer.command.format(**values).split()


def _reason(output: str) -> str:
    """The first error that a server printed, not one that a warning only quotes; without one, the last line."""
    error = re.search(r"(?<![\w`])\w*Error: .*", output)
    return error.group() if error else output.strip().rpartition("\n")[2]


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False
