"""Greedy answers of transformers in float32, one prompt at a time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm


@dataclass(frozen=True)
class Reference:
    """One prompt's answer: token ids, and the text of the first 0, 1, 2, ... of them, special tokens left out."""

    num_prompt_tokens: int
    ids: list[int]
    texts: list[str]

    @property
    def text(self) -> str:
        return self.texts[-1]

    def agreed_tokens(self, text: str) -> int:
        """How many first tokens the other text has in common; all of them when it is the same text.

        Of texts alone it cannot be told more: a character that has only begun counts as not there yet, and a token
        without text as there with the one before it."""
        if text == self.text:
            return len(self.ids)
        known = (shown.rstrip("\ufffd") for shown in self.texts[1:])
        return next((index for index, shown in enumerate(known) if not text.startswith(shown)), len(self.ids) - 1)


def reference(model: Path, prompts: Sequence[str], num_tokens: int, kept: Path | None) -> list[Reference]:
    """Of every prompt. ``kept``: a file that they are read from when it was made for the same, else written to."""
    asked = hashlib.sha256(json.dumps([str(model), num_tokens, *prompts]).encode()).hexdigest()
    if kept and kept.exists():
        found = json.loads(kept.read_text())
        if found["asked"] == asked:
            return [Reference(**each) for each in found["answers"]]
    answers = _computed(model, prompts, num_tokens)
    if kept:
        kept.write_text(json.dumps({"asked": asked, "answers": [asdict(each) for each in answers]}))
    return answers


def _computed(model: Path, prompts: Sequence[str], num_tokens: int) -> list[Reference]:
    # Imported here: it takes seconds, and none of it is needed where the answers have been kept.
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    network: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    answers = []
    for prompt in tqdm(prompts, desc="transformers", unit="prompt"):
        messages = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        prompt_ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        ids = _greedy(network, prompt_ids, num_tokens)
        texts = [
            tokenizer.decode(ids[:count], skip_special_tokens=True, clean_up_tokenization_spaces=False)
            for count in range(num_tokens + 1)
        ]
        answers.append(Reference(len(prompt_ids), ids, texts))
    return answers


def _greedy(network: Any, prompt_ids: list[int], num_tokens: int) -> list[int]:
    """The most likely tokens, whatever they are: none ends the answer."""
    import torch

    ids, cache, given = list[int](), None, torch.tensor([prompt_ids])
    with torch.inference_mode():
        while len(ids) < num_tokens:
            out = network(given, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache, given = out.past_key_values, out.logits[:, -1:].argmax(dim=-1)
            ids.append(int(given))
    return ids
