"""Checks of a running server, against a small server that behaves as told."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from mmserve.cli.doctor import server_checks
from mmserve.cli.doctor.finding import Finding, run_checks
from mmserve.cli.doctor.server_checks import RunningServer, is_loopback

KEY = "right"


class Behaviour:
    """``delay_s``: before each of eight pieces. ``collects``: all are sent at the end. ``keeps``: a lease each.
    ``says_so``: whether it takes pictures, as mmserve does."""

    delay_s = 0.05
    collects = False
    needs_key = True
    takes_pictures = True
    says_so = False
    keeps = 0
    leases = 0


@contextmanager
def _server(**behaviour: object) -> Iterator[str]:
    told = type("Told", (Behaviour,), behaviour)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            if told.needs_key and self.headers["Authorization"] != f"Bearer {KEY}":
                self._send(401, b'{"error": {"message": "wrong key"}}')
            elif self.path == "/metrics":
                self._send(200, b'mmserve:mm_leases{process="cache"} %d\n' % told.leases)
            elif self.path == "/server_info" and told.says_so:
                self._send(200, json.dumps({"max_images": 4 if told.takes_pictures else None}).encode())
            else:
                self._send(200, b'{"data": [{"id": "m"}]}')

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if b"image_url" in body and not told.takes_pictures:
                self._send(400, b'{"error": {"message": "this model takes no pictures"}}')
                return
            told.leases += told.keeps
            pieces = [{"delta": {"content": f"{number} "}, "finish_reason": None} for number in range(8)]
            pieces.append({"delta": {}, "finish_reason": "stop"})
            lines = [f"data: {json.dumps({'choices': [piece]})}\n\n".encode() for piece in pieces]
            self.send_response(200)
            self.end_headers()
            for line in [b"".join(lines)] if told.collects else lines:
                time.sleep(told.delay_s * (8 if told.collects else 1))
                self.wfile.write(line)
                self.wfile.flush()

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        server.shutdown()


def _findings(url: str, key: str | None = KEY) -> dict[str, Finding]:
    return {finding.name: finding for finding in run_checks(RunningServer(url, key).checks())}


@pytest.mark.parametrize("says_so", [True, False])
def test_a_good_server_has_no_finding(says_so: bool) -> None:
    with _server(says_so=says_so) as url:
        findings = _findings(url)
    assert {finding.status for finding in findings.values()} == {"ok"}, findings
    assert findings["text"].found.startswith("'0 1 2")


def test_a_proxy_that_collects_a_stream_is_found() -> None:
    with _server(collects=True) as url:
        findings = _findings(url)
    assert findings["text"].status == "warning"
    assert "proxy" in findings["text"].do


def test_a_lease_that_is_not_released_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_checks, "_SETTLE_S", 0.1)
    with _server(keeps=1) as url:
        findings = _findings(url)
    assert findings["leftovers"].status == "warning"
    assert "mm_leases 0 -> 2" in findings["leftovers"].found


def test_a_wrong_key_and_a_server_that_is_not_there_are_failures() -> None:
    with _server() as url:
        assert _findings(url, "wrong")["server"].status == "failure"
    findings = _findings("http://127.0.0.1:9")
    assert {findings[name].status for name in ("server", "text", "picture", "key")} == {"failure"}


def test_a_model_without_pictures_is_no_failure() -> None:
    with _server(takes_pictures=False) as url:
        findings = _findings(url)
    assert findings["picture"].status == "warning"
    assert "takes no pictures" in findings["picture"].found
    with _server(takes_pictures=False, says_so=True) as url:
        assert _findings(url)["picture"].status == "ok"


def test_a_server_without_keys_is_fine_on_loopback_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with _server(needs_key=False) as url:
        assert _findings(url, None)["key"].status == "ok"
        monkeypatch.setattr(server_checks, "is_loopback", lambda url: False)
        finding = _findings(url, None)["key"]
    assert finding.status == "warning"
    assert "--api-key" in finding.do


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "http://[::1]:1", "http://localhost:8000/v1"])
def test_loopback_is_this_machine_alone(url: str) -> None:
    assert is_loopback(url)


@pytest.mark.parametrize("url", ["http://192.168.1.2:8000", "https://example.com", "http://127.evil.com"])
def test_other_addresses_are_not(url: str) -> None:
    assert not is_loopback(url)
