"""Checks of a running server: a text and a picture answered, streamed in pieces, keys checked, nothing left over."""

from __future__ import annotations

import base64
import io
import ipaddress
import re
import time
from urllib.parse import urlsplit

import httpx2
from PIL import Image, ImageDraw

from mmserve.cli.doctor.finding import Check, Finding, failure, ok, warning
from mmserve.client.completions import CompletionsClient, Finished, ServerError, Text

_TOKENS = 32
_TIMEOUT_S = 10.0
_SETTLE_S = 10.0
"""Until what the requests held must be free again."""
_HELD = ("num_requests_running", "mm_leases")
"""Metrics of ``/metrics`` that are 0 on a server without requests."""
_SAMPLE = re.compile(r"^mmserve:(\w+)(?:\{.*\})? (\S+)$", re.MULTILINE)


class RunningServer:
    """``url``: with or without ``/v1``."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self._client = CompletionsClient(url, api_key)
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._model = ""
        self._before: dict[str, float] | None = None

    def checks(self) -> list[Check]:
        """In this order: the later ones need what the first finds, and the last looks for what is left over."""
        return [
            Check("server", self._server),
            Check("text", self._text),
            Check("picture", self._picture),
            Check("key", self._key),
            Check("leftovers", self._leftovers),
        ]

    def _server(self) -> Finding:
        try:
            models = self._client.models()
        except ServerError as error:
            do = "look whether it runs (mmserve status), at the URL's port, and at the key (MMSERVE_API_KEY)"
            return failure(str(error), do)
        if not models:
            return failure("no model is served", "look at the server's log")
        self._model = models[0]
        self._before = self._held()
        return ok(f"{self._client.url} serves {', '.join(models)}")

    def _text(self) -> Finding:
        return self._ask([{"type": "text", "text": "Count from one to twenty."}], "text")

    def _picture(self) -> Finding:
        if self._model and self._takes_text_alone():
            return ok("not asked: the model takes no pictures")
        image = Image.new("RGB", (320, 240), "white")
        ImageDraw.Draw(image).ellipse((90, 50, 230, 190), fill="red")
        data = io.BytesIO()
        image.save(data, "PNG")
        url = f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"
        picture: dict[str, object] = {"type": "image_url", "image_url": {"url": url}}
        return self._ask([picture, {"type": "text", "text": "What colour is the circle?"}], "picture")

    def _ask(self, content: list[dict[str, object]], kind: str) -> Finding:
        if not self._model:
            return failure("not asked: there is no model", "see server above")
        body = {"model": self._model, "messages": [{"role": "user", "content": content}], "max_tokens": _TOKENS}
        started_s, arrivals, answer = time.monotonic(), list[float](), ""
        usage: dict[str, object] = {}
        try:
            for event in self._client.stream(body):
                if isinstance(event, Text):
                    arrivals.append(time.monotonic() - started_s)
                    answer += event.text
                elif isinstance(event, Finished):
                    usage = dict(event.usage)
        except ServerError as error:
            if kind == "picture" and "HTTP 400" in str(error):
                return warning(f"refused: {error}", "nothing, if this model takes no pictures")
            return failure(str(error), "look at the server's log for this request")
        return _answered(answer, arrivals, time.monotonic() - started_s, usage)

    def _takes_text_alone(self) -> bool:
        """True if it is an mmserve and says so."""
        try:
            reply = httpx2.get(f"{self._client.url}/server_info", headers=self._headers, timeout=_TIMEOUT_S)
            found = reply.json() if reply.status_code == 200 else None
        except (httpx2.HTTPError, ValueError):
            return False
        return isinstance(found, dict) and found.get("max_images", 0) is None

    def _key(self) -> Finding:
        if not self._model:
            return failure("not asked: there is no server", "see server above")
        wrong = {"Authorization": "Bearer mmserve-doctor-wrong-key"}
        status = httpx2.get(f"{self._client.url}/v1/models", headers=wrong, timeout=_TIMEOUT_S).status_code
        if status in (401, 403):
            return ok("a wrong key is refused")
        found = f"a wrong key is answered with {status}: the server needs none"
        if is_loopback(self._client.url):
            return ok(f"{found}, and this machine alone reaches it by this URL")
        return warning(found, "every client that reaches this address may use it: start the server with --api-key")

    def _leftovers(self) -> Finding:
        if self._before is None:
            return ok("/metrics is not mmserve's, or not shown with this key: not looked at")
        deadline_s = time.monotonic() + _SETTLE_S
        while (left := _more(self._before, self._held() or {})) and time.monotonic() < deadline_s:
            time.sleep(0.5)
        if left:
            do = "nothing, if others use the server now; else report it"
            return warning(f"after {_SETTLE_S:g} s more than before: {', '.join(left)}", do)
        return ok("sequences and leases are released")

    def _held(self) -> dict[str, float] | None:
        """What requests hold now, from ``/metrics``; None if it has none of these."""
        try:
            page = httpx2.get(f"{self._client.url}/metrics", headers=self._headers, timeout=_TIMEOUT_S).text
        except httpx2.HTTPError:
            return None
        held: dict[str, float] = {}
        for name, value in _SAMPLE.findall(page):
            if name in _HELD:
                held[name] = held.get(name, 0.0) + float(value)
        return held or None


def _answered(answer: str, arrivals: list[float], seconds: float, usage: dict[str, object]) -> Finding:
    if not arrivals:
        return warning("the answer has no text", "ask something else: some models answer nothing to this")
    shown = answer.strip().replace("\n", " ")[:40]
    found = (
        f"{shown!r} after {arrivals[0]:.2f} s, complete after {seconds:.2f} s, {usage.get('completion_tokens')} tokens"
    )
    if is_buffered(arrivals, seconds):
        return warning(f"{found}; all pieces came at once", "a proxy collects them: switch its buffering off")
    return ok(found)


def is_buffered(arrivals: list[float], seconds: float) -> bool:
    """True if several pieces of an answer that took a while came together at its end. Times in seconds."""
    return len(arrivals) >= 4 and seconds > 0.2 and arrivals[-1] - arrivals[0] < 0.05 * seconds


def is_loopback(url: str) -> bool:
    """True if the URL's host is this machine, for this machine alone."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _more(before: dict[str, float], after: dict[str, float]) -> list[str]:
    return [
        f"{name} {before.get(name, 0):g} -> {value:g}" for name, value in after.items() if value > before.get(name, 0)
    ]
