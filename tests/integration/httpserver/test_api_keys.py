"""Several API keys from a file: what each opens, and how it shows in metrics and logs."""

from __future__ import annotations

import logging
from pathlib import Path

import httpx2
import pytest

from tests.fakes.http_worker import Worker, http_worker, run
from tests.fakes.samples import Samples

KEYS = "alice alice-s3cret\nprometheus prom-s3cret metrics\noperator ops-s3cret admin\n"
ALLOC = "/admin/alloc"


def test_each_key_opens_its_areas_and_is_counted_by_its_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "keys").write_text(KEYS)
    opens = {"alice-s3cret": "/v1/models", "prom-s3cret": "/metrics", "ops-s3cret": ALLOC}

    async def test() -> None:
        async with http_worker(api_key_file=str(tmp_path / "keys"), enable_admin=True) as worker:
            samples = Samples()
            worker.context.metrics.add = samples.add  # type: ignore[method-assign]
            for key, own in opens.items():
                for path in opens.values():
                    status = await _status(worker, path, key)
                    assert (status == 403) == (path != own), (key, path, status)
            assert await _status(worker, ALLOC, "wrong-s3cret") == 401
            assert samples.total("http_requests_by_key", "alice", "200") == 1
            assert samples.total("http_requests_by_key", "operator", "200") == 1
            assert samples.total("http_requests", "other", "403") == 6
            assert "s3cret" not in repr(samples.recorded)

    with caplog.at_level(logging.DEBUG):
        run(test)
    assert "'/v1/models': 200" in caplog.text
    assert "key alice" in caplog.text
    assert "s3cret" not in caplog.text


async def _status(worker: Worker, path: str, key: str) -> int:
    async with httpx2.AsyncClient(base_url=worker.url, headers={"x-api-key": key}, timeout=20) as http:
        return (await http.get(path)).status_code
