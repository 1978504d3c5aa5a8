"""What the tests ask: a greeting, a tool, a schema, and a picture with a question about it, in OpenAI's form."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from tests.clients.assistant import GREETING as GREETING

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
NAMED = {"type": "function", "function": {"name": "get_weather"}}


class Shape(BaseModel):
    colour: Literal["red", "blue"]
    count: int
    label: str


ASK_WEATHER: list[Any] = [{"role": "user", "content": "What is the weather in 'Oslo' for 3 days?"}]
PICTURE = Path(__file__).parents[2] / "examples" / "picture.png"
DATA = base64.b64encode(PICTURE.read_bytes()).decode()
URL = f"data:image/png;base64,{DATA}"
QUESTION = "What colour is the circle?"
CHAT: list[Any] = [
    {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": URL}}, {"type": "text", "text": QUESTION}],
    }
]
