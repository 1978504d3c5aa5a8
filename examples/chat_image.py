"""Asks a running server about a picture and prints the answer as it comes.

python examples/chat_image.py examples/picture.png "What colour is the circle?"
"""

from __future__ import annotations

import argparse
import base64
import mimetypes
from pathlib import Path

from openai import OpenAI


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", type=Path, nargs="?", default=Path(__file__).with_name("picture.png"))
    parser.add_argument("question", nargs="?", default="What colour is the circle?")
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="llava")
    options = parser.parse_args()
    kind = mimetypes.guess_type(options.picture)[0] or "image/png"
    data = base64.b64encode(options.picture.read_bytes()).decode()
    content = [
        {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data}"}},
        {"type": "text", "text": options.question},
    ]
    stream = OpenAI(base_url=options.base_url, api_key="none").chat.completions.create(
        model=options.model, messages=[{"role": "user", "content": content}], stream=True
    )
    for event in stream:
        print(event.choices[0].delta.content or "", end="", flush=True)
    print()


if __name__ == "__main__":
    main()
