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
        """Number of first tokens that ``text`` agrees with; all of them if the texts are equal.

        Compared by text: an incomplete character counts as missing, and a token without text counts as equal if the
        token before it is."""
        if text == self.text:
            return len(self.ids)
        complete = (prefix.rstrip("\ufffd") for prefix in self.texts[1:])
        return next((index for index, prefix in enumerate(complete) if not text.startswith(prefix)), len(self.ids) - 1)


def reference(model: Path, prompts: Sequence[str], num_tokens: int, kept: Path | None) -> list[Reference]:
    """Answers to every prompt. ``kept``: a file; read if it has the answers for these arguments, else written."""
    digest = hashlib.sha256(json.dumps([str(model), num_tokens, *prompts]).encode()).hexdigest()
    if kept and kept.exists():
        found = json.loads(kept.read_text())
        if found["asked"] == digest:
            return [Reference(**each) for each in found["answers"]]
    answers = _computed(model, prompts, num_tokens)
    if kept:
        kept.write_text(json.dumps({"asked": digest, "answers": [asdict(each) for each in answers]}))
    return answers


def _computed(model: Path, prompts: Sequence[str], num_tokens: int) -> list[Reference]:
    # Imported here because it takes seconds and is not needed if the answers are read from a file.
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
    """The ``num_tokens`` most likely tokens; a stop token does not end the answer."""
    import torch

    ids, cache, inputs = list[int](), None, torch.tensor([prompt_ids])
    with torch.inference_mode():
        while len(ids) < num_tokens:
            out = network(inputs, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache, inputs = out.past_key_values, out.logits[:, -1:].argmax(dim=-1)
            ids.append(int(inputs))
    return ids
