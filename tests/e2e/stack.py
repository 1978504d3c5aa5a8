"""Starts the whole server as a user runs it, for end-to-end tests; sends requests, reads /metrics, lists processes."""

from __future__ import annotations

import contextlib
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import psutil

from benchmarks.load.server import serve
from mmserve.cache_server.client import MediaCacheClient, connect
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.model_backend.platforms.cpu.attention import PagedCpuAttention

BLOCK_TOKENS = PagedCpuAttention.block_sizes[0]
LITTLE_MEMORY = ("--kv-cache-gb", "0.25", "--mm-cache-gb", "0.1")
"""Enough for every test. Mapping and clearing the default sizes takes a third of a start's time."""


@dataclass(frozen=True)
class Stack:
    """A running server."""

    url: str
    pid: int

    def client(self, *, timeout: float = 120, **options: object) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=timeout, **options)

    def async_client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=120)

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """The status and the JSON of the answer to a JSON body."""
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}{path}", json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=120) as reply:
                return reply.status, json.loads(reply.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the metric's samples that have these labels; 0 if there are none yet."""
        text = urllib.request.urlopen(f"{self.url}/metrics", timeout=10).read().decode()
        total = 0.0
        for line in text.splitlines():
            if match := re.fullmatch(rf"mmserve:{name}(\{{.*\}})? (\S+)", line):
                pairs = [f'{key}="{value}"' for key, value in labels.items()]
                if all(pair in (match[1] or "") for pair in pairs):
                    total += float(match[2])
        return total

    def eventually(self, name: str, value: float, within_s: float = 20.0, **labels: str) -> float:
        """Wait until the metric equals ``value``. Returns its last value, also after a timeout."""
        deadline = time.monotonic() + within_s
        while (seen := self.metric(name, **labels)) != value and time.monotonic() < deadline:
            time.sleep(0.1)
        return seen

    @property
    def runs(self) -> bool:
        """False once a test has ended the supervisor."""
        try:
            return psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    @property
    def answers(self) -> bool:
        """Whether requests and metrics are served now."""
        try:
            for path in ("health", "metrics"):
                urllib.request.urlopen(f"{self.url}/{path}", timeout=10).close()
        except OSError:
            return False
        return True

    def titles(self) -> set[str]:
        """The titles of the live server processes, such as ``mmserve: router``."""
        found = set()
        for process in self.processes("mmserve: "):
            with contextlib.suppress(psutil.NoSuchProcess):
                found.add(" ".join(process.cmdline()).strip())
        return found

    def check_all_released(self) -> None:
        """Without live requests, all budgets, permits and leases are free, and no lease was leaked."""
        for gauge in ("num_requests_in_flight", "budget_used_bytes", "mm_decoding", "mm_decode_waiting", "mm_leases"):
            assert self.eventually(gauge, 0) == 0, gauge
        assert self.metric("mm_lease_leaks_total") == 0

    def processes(self, title: str = "mmserve") -> list[psutil.Process]:
        """Live processes of the tree whose title starts with ``title``."""
        found = []
        for process in psutil.Process(self.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if " ".join(process.cmdline()).startswith(title):
                    found.append(process)
        return found

    @contextlib.contextmanager
    def cache_client(self) -> Iterator[MediaCacheClient]:
        """A client of the cache server, connected as one more process of this server."""
        (run_dir,) = run_dirs_of(self.processes())
        client = connect(Endpoints(run_dir), "test", batched=True)
        try:
            yield client
        finally:
            client.close()


def run_dirs_of(processes: Sequence[psutil.Process]) -> list[Path]:
    """Directories of internal sockets, found from the open Unix sockets of the processes."""
    paths = {Path(address) for process in processes for address in _unix_addresses(process)}
    return sorted({path.parent for path in paths if path.parent.name.startswith("mmserve")})


def _unix_addresses(process: psutil.Process) -> list[str]:
    try:
        return [connection.laddr for connection in process.net_connections("unix") if connection.laddr]
    except psutil.Error:
        return []


def kv_tokens(stack: Stack) -> float:
    """That the server's KV cache holds. Once it has answered something."""
    stack.eventually("num_requests_running", 0)
    blocks = sum(stack.metric("kv_blocks", state=state) for state in ("free", "held", "cached"))
    return BLOCK_TOKENS * blocks


@contextlib.contextmanager
def running(*arguments: str, default_memory: bool = False, wrapper: Sequence[str] = ()) -> Iterator[Stack]:
    """``mmserve serve`` on a free port, in float32: answers do not depend on batch sizes or ranks."""
    memory = () if default_memory else LITTLE_MEMORY
    with serve("--dtype", "float32", *memory, *arguments, wrapper=wrapper) as target:
        assert target.pid is not None
        stack = Stack(target.url, target.pid)
        yield stack
        if stack.runs:
            stack.check_all_released()


def ask(client: openai.OpenAI, messages: Sequence[dict[str, object]], **options: object) -> str:
    """The greedy answer."""
    reply = client.chat.completions.create(model="llava", messages=list(messages), temperature=0, **options)
    return reply.choices[0].message.content or ""


def ask_streamed(client: openai.OpenAI, messages: Sequence[dict[str, object]], **options: object) -> str:
    """The greedy answer, joined from its stream."""
    stream = client.chat.completions.create(
        model="llava", messages=list(messages), temperature=0, stream=True, **options
    )
    return "".join(event.choices[0].delta.content or "" for event in stream if event.choices)
