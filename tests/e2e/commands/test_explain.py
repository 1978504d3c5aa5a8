"""``mmserve explain`` with a server that runs."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from mmserve.cli.main import main
from tests.e2e.stack import Stack

PICTURE = Path(__file__).parents[3] / "examples/picture.png"


@pytest.fixture
def request_file(tmp_path: Path) -> Path:
    url = f"data:image/png;base64,{base64.b64encode(PICTURE.read_bytes()).decode()}"
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is on it?"}]
    body = {"model": "llava", "messages": [{"role": "user", "content": content}], "temperature": 0.25}
    (tmp_path / "request.json").write_text(json.dumps(body))
    return tmp_path / "request.json"


def test_the_prompt_its_picture_and_its_sampling_are_shown(
    default_stack: Stack, request_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["explain", str(request_file), "--url", f"{default_stack.url}/v1"]
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (image,) = found["images"]
    assert (image["width"], image["height"], image["tokens"]) == (126, 121, 64)
    assert [part["tokens"] for part in found["parts"] if part.get("image") == 0] == [64]
    assert "What is on it?" in "".join(part.get("text", "") for part in found["parts"])
    assert [turn["roles"] for turn in found["turns"]][-2:] == [["user"], []]
    status, answer = default_stack.post("/v1/chat/completions", json.loads(request_file.read_text()))
    assert (status, answer["usage"]["prompt_tokens"]) == (200, found["num_tokens"])
    # The answer has left all of its prompt in the caches, but for the token that is always computed.
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert f"{found['num_tokens'] - 1} of them in the prefix cache" in printed
    assert f"[64 x image 0, 126x121, {image['key'][:8]}, embedding in the arena]" in printed
    assert "-- message 0, user" in printed
    assert "-- of the template alone" in printed
    assert "temperature         0.25" in printed


def test_what_is_refused_says_why(default_stack: Stack, request_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    request_file.write_text('{"model": "llava", "messages": [], "top_p": 3}')
    assert main(["explain", str(request_file), "--url", default_stack.url]) == 1
    assert "HTTP 400" in capsys.readouterr().err
    assert main(["explain", "/no/such.json", "--url", default_stack.url]) == 1
    assert "/no/such.json" in capsys.readouterr().err
