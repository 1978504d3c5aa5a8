"""OpenVINO GenAI's continuous batching with one checkpoint: a GGUF file, and the tokenizer and template beside it."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import openvino
import openvino_genai
from tokenizers import Tokenizer

from benchmarks.peers.on_openvino.chat import Asked, Message
from benchmarks.peers.on_openvino.engine import Handle, Request
from benchmarks.peers.on_openvino.options import Options


class OpenVino:
    """The pipeline on all cores that this process may use."""

    def __init__(self, options: Options) -> None:
        config = openvino_genai.SchedulerConfig()
        config.cache_size = options.kv_cache_gb
        config.enable_prefix_caching = True
        config.max_num_seqs = options.sequences
        config.max_num_batched_tokens = options.step_tokens
        properties: dict[str, object] = {"INFERENCE_NUM_THREADS": len(os.sched_getaffinity(0))}
        if options.kv_precision:
            properties["KV_CACHE_PRECISION"] = options.kv_precision
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(str(options.gguf), config, "CPU", properties)
        self._template = (options.checkpoint / "chat_template.jinja").read_text()
        self._of_templates = self._pipeline.get_tokenizer()
        self._tokenizer = Tokenizer.from_file(str(options.tokenizer))

    def ids(self, asked: Asked) -> list[int]:
        """The tokens of its prompt."""
        found: list[int] = self._tokenizer.encode(asked.prompt(self._apply), add_special_tokens=False).ids
        return found

    def _apply(self, messages: Sequence[Message], begins_answer: bool) -> str:
        text: str = self._of_templates.apply_chat_template(list(messages), begins_answer, self._template)
        return text

    def add(self, request: Request) -> Handle:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = request.max_tokens
        config.do_sample = False
        config.ignore_eos = True
        ids = openvino.Tensor(np.array([request.ids], dtype=np.int64))
        handle: Handle = self._pipeline.add_request(request.number, ids, config)
        return handle

    def step(self) -> None:
        self._pipeline.step()

    def is_ignored(self, handle: Handle) -> bool:
        status = handle.get_status()  # type: ignore[attr-defined]
        return bool(status == openvino_genai.GenerationStatus.IGNORED)
