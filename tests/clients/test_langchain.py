"""langchain-tests' standard suite of a chat model, for its adapters of three protocols."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("langchain_tests", reason="make clients installs langchain-tests")
from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests


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


@pytest.mark.client("langchain-openai, chat completions", "langchain-openai")
class TestChatOpenAI(_Standard):
    @property
    def chat_model_class(self) -> type[ChatOpenAI]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": "tiny", "base_url": f"{self.url}/v1", "api_key": "none", "stream_usage": True}


@pytest.mark.client("langchain-openai, Responses", "langchain-openai")
class TestChatOpenAIResponses(TestChatOpenAI):
    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {**super().chat_model_params, "use_responses_api": True, "output_version": "responses/v1"}


@pytest.mark.client("langchain-anthropic", "langchain-anthropic")
class TestChatAnthropic(_Standard):
    @property
    def chat_model_class(self) -> type[ChatAnthropic]:
        return ChatAnthropic

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": "tiny", "base_url": self.url, "api_key": "none", "max_tokens": 500}
