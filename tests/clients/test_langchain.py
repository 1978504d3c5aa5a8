"""langchain-tests' standard suite of a chat model, for its adapters of three protocols."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import pytest

pytest.importorskip("langchain_tests", reason="make clients installs langchain-tests")
from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

_SUITE = f"the standard suite of a chat model of langchain-tests {version('langchain-tests')}"


class _Standard(ChatModelIntegrationTests):
    @pytest.fixture(autouse=True)
    def _url(self, server_url: str) -> None:
        type(self).url = server_url  # type: ignore[attr-defined]

    @property
    def has_tool_choice(self) -> bool:
        return True

    @property
    def standard_chat_model_params(self) -> dict[str, Any]:
        return {}


class _OpenAI(_Standard):
    @property
    def chat_model_class(self) -> type[ChatOpenAI]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": "tiny", "base_url": f"{self.url}/v1", "api_key": "none", "stream_usage": True}


@pytest.mark.client("langchain-openai, chat completions", "langchain-openai", suite=_SUITE)
class TestChatOpenAI(_OpenAI):
    pass


@pytest.mark.client("langchain-openai, Responses", "langchain-openai", suite=_SUITE)
class TestChatOpenAIResponses(_OpenAI):
    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {**super().chat_model_params, "use_responses_api": True, "output_version": "responses/v1"}


@pytest.mark.client("langchain-anthropic", "langchain-anthropic", suite=_SUITE)
class TestChatAnthropic(_Standard):
    @property
    def chat_model_class(self) -> type[ChatAnthropic]:
        return ChatAnthropic

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": "tiny", "base_url": self.url, "api_key": "none", "max_tokens": 500}
