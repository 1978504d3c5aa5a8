"""The ``llm`` command, told about the server by its file of further OpenAI models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.clients.conftest import scripted_server
from tests.clients.questions import ASK_WEATHER, GREETING, PICTURE, QUESTION

pytest.importorskip("llm", reason="make clients installs llm")

pytestmark = pytest.mark.client("llm", "llm")
Llm = Callable[..., str]
_TOOL = '''
def get_weather(city: str, days: int) -> str:
    """The weather of the next days."""
    return f"{city} sunny {days}"
'''


@pytest.fixture
def llm(server_url: str, tmp_path: Path) -> Llm:
    return _command(tmp_path, "tiny", server_url)


def _command(directory: Path, model: str, url: str) -> Llm:
    """Runs ``llm`` with a home folder that knows one model, and returns what it prints."""
    served: dict[str, Any] = {"model_id": model, "model_name": model, "api_base": f"{url}/v1"}
    abilities = {"supports_tools": True, "supports_schema": True, "vision": True}
    (directory / "extra-openai-models.yaml").write_text(yaml.safe_dump([served | abilities]))
    environment = {**os.environ, "LLM_USER_PATH": str(directory), "OPENAI_API_KEY": "none"}
    environment["OPENAI_BASE_URL"] = f"{url}/v1"  # of its own embedding models

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "llm", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


def test_prompt(llm: Llm) -> None:
    assert llm("-m", "tiny", "--no-stream", "Hello") == GREETING


def test_prompt_streamed(llm: Llm) -> None:
    assert llm("-m", "tiny", "Hello") == GREETING


def test_conversation_continued(llm: Llm) -> None:
    llm("-m", "tiny", "Hello")
    assert llm("-c", "And now?") == GREETING


def test_schema(llm: Llm) -> None:
    answer = json.loads(llm("-m", "tiny", "--schema", "name, age int", "Hello"))
    assert {name: type(value) for name, value in answer.items()} == {"name": str, "age": int}


@pytest.mark.parametrize("streaming", [[], ["--no-stream"]], ids=["stream", "whole"])
def test_tools(llm: Llm, streaming: list[str]) -> None:
    question = ASK_WEATHER[0]["content"]
    assert llm("-m", "tiny", *streaming, "--functions", _TOOL, question) == "The result is: Oslo sunny 3"


def test_embeddings(tmp_path: Path) -> None:
    with scripted_server("text-embedding-3-small") as url:
        llm = _command(tmp_path, "tiny", url)
        assert len(json.loads(llm("embed", "-m", "text-embedding-3-small", "-c", "Hello"))) == 8


def test_picture(packaged_url: str, tmp_path: Path) -> None:
    llm = _command(tmp_path, "llava", packaged_url)
    assert "green" in llm("-m", "llava", "-o", "temperature", "0", "-a", str(PICTURE), QUESTION).lower()
