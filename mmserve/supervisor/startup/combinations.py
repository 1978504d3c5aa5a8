"""Options that do not go together, or not with a model or a device. Pure.

Every function raises StartupError with one line that names the options and a remedy.
"""

from __future__ import annotations

from typing import Literal

from mmserve.checkpoint.spec import ModelSpec
from mmserve.config.config import Config
from mmserve.config.resolved.deployment import Dtype, KvDtype, activation_dtype, embed_row_nbytes, kv_dtype
from mmserve.runtime.errors import StartupError

_MAX_ROWS_NBYTES = 192 << 20
"""Less than a message between nodes may have (``ipc/links/curve.py``)."""


def check_nodes(config: Config, model: ModelSpec) -> None:
    """The embedding rows of a step must fit into a message to other nodes."""
    row_nbytes = embed_row_nbytes(model, "float32")
    if config.nnodes > 1 and config.max_num_batched_tokens * row_nbytes > _MAX_ROWS_NBYTES:
        raise StartupError(
            f"--max-num-batched-tokens {config.max_num_batched_tokens} is more than one message to another node can "
            f"hold the embeddings of: lower it to {_MAX_ROWS_NBYTES // row_nbytes} or less"
        )


def check_speculation(config: Config) -> None:
    option = "--speculative-model" if config.speculative_model is not None else f"--speculative {config.speculative}"
    if config.overlap_scheduling and option != "--speculative none":
        raise StartupError(
            f"{option} does not go with --overlap-scheduling: what follows a token is looked up before the next step "
            "is planned; leave one of them out"
        )


def check_draft(config: Config, model: ModelSpec, draft: ModelSpec, dtype: Dtype) -> None:
    if model.family == "transformers":
        raise StartupError(
            "--speculative-model does not go with a model that transformers' modules compute: leave it out"
        )
    if draft.quantization is not None and dtype != "float32":
        raise StartupError(
            f"--speculative-model {config.speculative_model} is quantised ({draft.quantization}), which is computed in "
            f"float32, and the served model in {dtype}: add --dtype float32, or choose another"
        )


def check_impl(config: Config, model: ModelSpec) -> None:
    if model.family != "transformers":
        return
    for option, is_set in ((f"--tp {config.tp}", config.tp > 1), ("--quantization", config.quantization != "none")):
        if is_set:
            raise StartupError(f"{option} does not go with a model that transformers' modules compute: leave it out")


def check_attention(config: Config, device: Literal["cpu", "cuda"]) -> None:
    if device == "cpu" and config.attention_backend != "auto":
        raise StartupError(
            f"--attention-backend {config.attention_backend} is for a GPU, and a CPU computes attention in one way: "
            "leave it out, or add --device cuda"
        )


def check_kv_dtype(config: Config, model: ModelSpec, device: Literal["cpu", "cuda"], dtype: Dtype) -> None:
    """What mmserve's own code on a CPU computes in float32 it also reads from bfloat16, and on a GPU all from fp8."""
    accepted: list[KvDtype] = [activation_dtype(model, device, dtype)]
    chosen = kv_dtype(config, dtype)
    if model.family != "transformers" and device == "cuda":
        accepted.append("fp8")
    elif model.family != "transformers" and accepted == ["float32"]:
        accepted.append("bfloat16")
    if chosen not in accepted:
        raise StartupError(
            f"--kv-cache-dtype {chosen} does not go with this model on {device} in {dtype}: leave it out, or choose "
            f"{' or '.join(accepted)}"
        )


def check_step(config: Config, model: ModelSpec, max_image_rows: int) -> None:
    """A step must have room for the longest run of an image's rows and a token of every other running sequence."""
    run_rows = model.vision.run_rows if model.vision is not None else None
    needed = min(max_image_rows, run_rows or max_image_rows) + config.max_num_seqs - 1
    if config.max_num_batched_tokens < needed:
        raise StartupError(
            f"--max-num-batched-tokens {config.max_num_batched_tokens} has no room for one image, or one tile of it, "
            f"which this model computes in one step: raise it to {needed}, or lower --max-num-seqs"
        )
