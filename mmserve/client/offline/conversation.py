"""What a caller gives as a conversation, as the body of a chat completion. Pure, except that picture files are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from mmserve.client.pictures import Picture, url_of

Message: TypeAlias = Mapping[str, Any]
"""As chat completions have it: role and content."""
Conversation: TypeAlias = str | Sequence[Message]
"""The messages, or a text that is the user's only message."""
Pictures: TypeAlias = "Picture | Sequence[Picture] | None"
_OWN_FIELDS = frozenset({"model", "messages", "stream", "stream_options"})


def is_one(messages: Conversation | Sequence[Conversation]) -> bool:
    """Whether this is one conversation, and not a list of them. Raises TypeError for anything else."""
    if isinstance(messages, str):
        return True
    if isinstance(messages, Mapping) or not isinstance(messages, Sequence):
        raise TypeError("messages must be a text, a list of messages, or a list of conversations")
    kinds = {isinstance(message, Mapping) for message in messages}
    if len(kinds) > 1:
        raise TypeError("messages mixes messages and conversations")
    return kinds == {True}


def paired(messages: Sequence[Conversation], images: Sequence[Pictures] | None) -> list[tuple[Conversation, Pictures]]:
    """Each conversation with its pictures. Raises ValueError if their numbers differ."""
    if images is None:
        return [(conversation, None) for conversation in messages]
    if isinstance(images, str | bytes) or not isinstance(images, Sequence) or len(images) != len(messages):
        raise ValueError(f"images must be a list with the pictures of each of the {len(messages)} conversations")
    return list(zip(messages, images, strict=True))


def body_of(
    model: str,
    conversation: Conversation,
    images: Pictures,
    schema: Mapping[str, Any] | None,
    fields: Mapping[str, Any],
) -> dict[str, Any]:
    """``images`` stand before the text of the last message of the user. ``fields``: further ones of the body; those
    that are None are left out. Raises PictureError, and ValueError for what cannot be asked."""
    messages: list[Message] = (
        [{"role": "user", "content": conversation}] if isinstance(conversation, str) else list(conversation)
    )
    if own := sorted(_OWN_FIELDS & fields.keys()):
        raise ValueError(f"{own[0]} is not an argument of chat")
    if urls := [url_of(picture) for picture in _each(images)]:
        place = _last_of_user(messages)
        content = messages[place].get("content")
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())
        pictures = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        messages[place] = {**messages[place], "content": [*pictures, *parts]}
    body = {"model": model, "messages": messages, **{name: fields[name] for name in fields if fields[name] is not None}}
    if schema is not None:
        if "response_format" in body:
            raise ValueError("schema and response_format do not go together")
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    return body


def _each(images: Pictures) -> Sequence[Picture]:
    if images is None:
        return ()
    return images if isinstance(images, list | tuple) else [images]  # type: ignore[list-item]


def _last_of_user(messages: Sequence[Message]) -> int:
    places = [place for place, message in enumerate(messages) if message.get("role") == "user"]
    if not places:
        raise ValueError("images need a message of the user")
    return places[-1]
