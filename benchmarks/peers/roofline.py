"""The least time that a load can take on this machine, from its arithmetic and its bytes (a roofline).

Operations over the rate of torch's matrix product, plus bytes over the rate of reading. Operations are those of linear
layers, of attention and of the vision tower. Bytes are the weights, once a decode step, and the keys and values which
that step attends to. Everything else (norms, sampling, HTTP, resizing) counts as nothing, so that the limit is out of
reach. One pass a token: with speculation a server may exceed it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from benchmarks.kernels.machine_rates import read_rate, square_rate
from benchmarks.load.workload import Workload
from mmserve.checkpoint.spec import ModelSpec, TextSpec
from mmserve.checkpoint.vision.clip import ClipVision
from mmserve.supervisor.startup.machine import look

_ROUNDS = 5
_WEIGHT_BYTES = 2
"""The models are in bfloat16, which both modes leave as it is."""
_KV_BYTES = {"bfloat16": 2, "float32": 4}


@dataclass(frozen=True)
class Rates:
    """``operations``: multiplications and additions a second. ``nbytes``: read a second."""

    operations: float
    nbytes: float

    def best(self, other: Rates) -> Rates:
        return Rates(max(self.operations, other.operations), max(self.nbytes, other.nbytes))


@dataclass(frozen=True)
class Tokens:
    """Of one request. ``cached``: those of the prompt which need no computing. ``drafted``: those of the answer that
    were drafts, and so needed no step of their own."""

    prompt: float
    cached: float = 0.0
    drafted: float = 0.0


@dataclass(frozen=True)
class Work:
    operations: float
    nbytes: float

    def __truediv__(self, parts: float) -> Work:
        return Work(self.operations / parts, self.nbytes / parts)

    def least_s(self, rates: Rates) -> float:
        return self.operations / rates.operations + self.nbytes / rates.nbytes


def mode(dtype: str) -> str:
    """What mmserve multiplies in on this CPU with ``--dtype``: "float32" or "bfloat16"."""
    return ("bfloat16" if look().fast_bfloat16 else "float32") if dtype == "auto" else dtype


def kv_mode(dtype: str, serve_args: str) -> str:
    """What mmserve's KV cache is in, computing in ``dtype`` and started with these flags: "float32" or "bfloat16"."""
    flags = serve_args.replace("=", " ").split()
    given = flags[flags.index("--kv-cache-dtype") + 1] if "--kv-cache-dtype" in flags else "auto"
    return dtype if given == "auto" else given


def measure(dtype: str) -> Rates:
    """Of this machine now, with torch's threads, and prints them. To be taken before and after loads, because others
    use the machine too. ``dtype``: "float32" or "bfloat16"."""
    rates = Rates(
        operations=square_rate(torch.bfloat16 if dtype == "bfloat16" else torch.float32, _ROUNDS),
        nbytes=read_rate(torch.get_num_threads(), _ROUNDS),
    )
    print(f"multiplies {rates.operations / 1e9:.0f} GFLOP/s, reads {rates.nbytes / 1e9:.1f} GB/s", flush=True)
    return rates


def work(load: Workload, model: ModelSpec, tokens: Tokens, kv_dtype: str) -> Work:
    """Of the whole load. ``kv_dtype``: of the KV cache, see ``kv_mode``."""
    text, prompt, cached = model.text, tokens.prompt, tokens.cached
    layers, head = _layer_weights(text), text.vocab_size * text.hidden_size
    answer, requests = load.output_tokens, load.requests
    context = prompt + answer / 2
    of_prompt = 2 * layers * (prompt - cached) + 2 * head + _attention(text, prompt - cached, (prompt + cached) / 2)
    of_answer = 2 * (layers + head) * (answer - 1) + _attention(text, answer - 1, context)
    of_pictures = _tower(model) * (load.image_pool or requests * load.images)
    steps = requests / load.concurrency * (answer - 1 - tokens.drafted)
    kv_nbytes = 2 * text.num_layers * text.num_kv_heads * text.head_dim * context * _KV_BYTES[kv_dtype]
    return Work(
        operations=requests * (of_prompt + of_answer) + of_pictures,
        nbytes=steps * (_WEIGHT_BYTES * (layers + head) + load.concurrency * kv_nbytes),
    )


def _layer_weights(text: TextSpec) -> int:
    heads = 2 * text.num_heads + 2 * text.num_kv_heads
    return text.num_layers * text.hidden_size * heads * text.head_dim + text.num_mlp_weights


def _attention(text: TextSpec, rows: float, keys: float) -> float:
    """Scores and weighted sums of ``rows`` that attend to ``keys`` tokens each."""
    return 4 * text.num_layers * text.num_heads * text.head_dim * rows * keys


def _tower(model: ModelSpec) -> float:
    """Of one picture; the classic tower of fixed size is all that the loads need."""
    vision = model.vision
    if vision is None:
        return 0.0
    if not isinstance(vision, ClipVision):
        raise NotImplementedError(f"the operations of a {type(vision).__name__} are not counted here")
    rows, size = vision.num_rows + 1, vision.hidden_size
    of_layers = vision.num_layers_needed * (
        2 * rows * (4 * size * size + 2 * size * vision.intermediate_size) + 4 * size * rows * rows
    )
    patches = 2 * rows * 3 * vision.patch_size**2 * size
    projector = 2 * rows * (size + model.text.hidden_size) * model.text.hidden_size
    return of_layers + patches + projector
