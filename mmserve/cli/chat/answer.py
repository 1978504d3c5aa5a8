"""One answer: streamed to the terminal as it comes, with its times."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from mmserve.client.completions import Event, Finished, Reasoning, Text

_NOT_PRINTED = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """Without control characters: a model's text could otherwise command the terminal, as to fill the clipboard."""
    return text.translate(_NOT_PRINTED)


@dataclass
class Answer:
    """``text``: as the model wrote it. ``reason`` is empty until it is complete. Times are seconds since the start."""

    text: str = ""
    reasoning: str = ""
    reason: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    ttft_s: float = 0.0
    end_s: float = 0.0

    def read(
        self,
        events: Iterator[Event],
        on_text: Callable[[str], object],
        on_reasoning: Callable[[str], object] = lambda text: None,
    ) -> None:
        """Read all events. Text goes to the callbacks at once, without control characters."""
        started_s = time.monotonic()
        try:
            for event in events:
                if isinstance(event, Finished):
                    self.reason, self.usage = event.reason, dict(event.usage)
                    continue
                self.ttft_s = self.ttft_s or time.monotonic() - started_s
                if isinstance(event, Text):
                    self.text += event.text
                    on_text(printable(event.text))
                elif isinstance(event, Reasoning):
                    self.reasoning += event.text
                    on_reasoning(printable(event.text))
        finally:
            self.end_s = time.monotonic() - started_s

    def stats(self) -> str:
        """Tokens and times in one line."""
        prompt, written = self.usage.get("prompt_tokens"), self.usage.get("completion_tokens")
        cached = (self.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        parts = [f"first token after {self.ttft_s:.2f} s"]
        if written and self.end_s > self.ttft_s and written > 1:
            parts.append(f"{(written - 1) / (self.end_s - self.ttft_s):.1f} tokens/s")
        if prompt is not None:
            parts.append(f"{prompt} tokens in the prompt, {cached} of them cached")
        if written is not None:
            parts.append(f"{written} in the answer")
        return ", ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """For --json."""
        return {
            "text": self.text,
            **({"reasoning": self.reasoning} if self.reasoning else {}),
            "finish_reason": self.reason,
            "usage": self.usage,
            "ttft_s": round(self.ttft_s, 4),
            "seconds": round(self.end_s, 4),
        }
