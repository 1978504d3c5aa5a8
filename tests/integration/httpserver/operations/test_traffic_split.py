"""The traffic split of one server with several worker processes: a value set through one applies to all."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2

from mmserve.config.resolved.deployment import Deployment
from mmserve.ipc.links.codec import Codec
from tests.fakes.models.chat_models import deployment_of, write_chat_model

FRACTION = "concurrent_alloc_fraction"


@contextmanager
def worker(deployment: Deployment, index: int) -> Iterator[httpx2.Client]:
    """A client of a worker process; the process is killed at the end."""
    file = Path(deployment.run_dir) / "deployment"
    codec: Codec[Deployment] = Codec(Deployment)
    file.write_bytes(codec.encode(deployment))
    command = [sys.executable, "-m", "tests.integration.httpserver.worker_main", str(file), str(index)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            url = f"http://127.0.0.1:{int(process.stdout.readline())}"
            with httpx2.Client(base_url=url, timeout=30, headers={"x-api-key": "secret"}) as client:
                yield client
        finally:
            process.kill()


def share_at(client: httpx2.Client) -> float:
    return float(client.get("/admin/alloc").json()[FRACTION])


def test_a_new_fraction_applies_to_all_workers_and_to_a_restarted_one(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="test-mmserve-") as run_dir, ExitStack() as stack:
        deployment = deployment_of(
            write_chat_model(tmp_path),
            run_dir=run_dir,
            enable_admin=True,
            api_key="secret",
            concurrent_alloc_fraction=0.25,
        )
        one = stack.enter_context(worker(deployment, 0))
        with worker(deployment, 1) as other:
            assert share_at(one) == share_at(other) == 0.25
            assert other.post("/admin/alloc", json={FRACTION: 0.75}).json() == {FRACTION: 0.75}
            assert share_at(one) == share_at(other) == 0.75
        with worker(deployment, 1) as restarted:
            assert share_at(restarted) == share_at(one) == 0.75
            one.post("/admin/alloc", json={FRACTION: 0})
            assert share_at(restarted) == 0.0
