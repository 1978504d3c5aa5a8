"""OpenAI's Responses against the whole server: the same answers as chat completions, streamed, and continued."""

from __future__ import annotations

from typing import Any

from tests.e2e.stack import Stack, ask
from training.sample import samples


def _item(message: dict[str, Any]) -> dict[str, Any]:
    """A user's message of a chat completion as an input item."""
    parts = [
        {"type": "input_text", "text": part["text"]}
        if part["type"] == "text"
        else {"type": "input_image", "image_url": part["image_url"]["url"]}
        for part in message["content"]
    ]
    return {"role": "user", "content": parts}


def test_answers_equal_those_of_chat_completions_and_can_be_continued(default_stack: Stack) -> None:
    (sample,) = samples(1, seed=12)
    with default_stack.client() as client:
        expected = ask(client, sample.messages, max_tokens=40)
        request: dict[str, Any] = {"model": "llava", "temperature": 0, "max_output_tokens": 40}
        items = [_item(message) for message in sample.messages]
        whole = client.responses.create(input=items, **request)
        with client.responses.stream(input=items, **request) as stream:
            streamed = stream.get_final_response()
        assert whole.output_text == streamed.output_text == expected
        following = [*sample.messages, {"role": "assistant", "content": expected}, {"role": "user", "content": "And?"}]
        continued = client.responses.create(input="And?", previous_response_id=whole.id, **request)
        assert continued.output_text == ask(client, following, max_tokens=40)
        assert client.responses.retrieve(continued.id).output_text == continued.output_text
    default_stack.check_all_released()
