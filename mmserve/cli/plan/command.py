"""``mmserve plan``: its flags, the hardware that is planned for, and the report."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from mmserve.cli.serve import add_options
from mmserve.cli.tables import aligned, size
from mmserve.config.options import OPTIONS, resolve
from mmserve.runtime.errors import StartupError

if TYPE_CHECKING:
    from mmserve.checkpoint.spec import ModelSpec
    from mmserve.cli.plan.estimate import Estimate
    from mmserve.cli.plan.hardware import Hardware
    from mmserve.cli.plan.model_facts import ModelFacts
    from mmserve.config.config import Config

_OF_SERVE = (
    *("model_impl", "tp", "dtype", "quantization", "kernel_level", "kv_cache_dtype", "kv_cache_gb", "mm_cache_gb"),
    *("gpu_memory_utilization", "enforce_eager", "visual_batch_size", "max_model_len"),
    *("max_num_seqs", "max_num_batched_tokens", "speculative_model", "visual_workers", "http_workers"),
    *("mm_processor_kwargs", "arena_huge_pages", "pixel_budget_mb", "body_budget_mb", "fetch_budget_mb", "max_body_mb"),
)
_GIB = 1 << 30


def add_plan(commands: Any) -> None:
    """Add the command and its flags."""
    parser = commands.add_parser(
        "plan",
        help="say what a model needs, and how many requests fit on this machine or on a GPU",
        description="Say what a model needs, and how many requests fit, before it is loaded. Of a model of the hub "
        "that is not on this disk, config.json and the like are fetched, no weights.",
        allow_abbrev=False,
    )
    parser.add_argument("--model", required=True, help="packaged name, checkpoint directory, or hub id")
    parser.add_argument("--gpu", help="plan for --tp of these GPUs in place of this machine's CPU: h100, h200, ...")
    parser.add_argument("--memory-gb", type=float, metavar="X", help="GiB of memory, in place of what is free here")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_options(parser.add_argument_group("as in mmserve serve"), [OPTIONS[name] for name in _OF_SERVE])


def plan(arguments: argparse.Namespace) -> int:
    """Run the command; 1 if not even one context fits. Raises StartupError for what cannot be served."""
    # Imported here: these would slow down --help.
    import msgspec

    from mmserve.checkpoint.load import check_tp
    from mmserve.checkpoint.locate import locate
    from mmserve.cli.plan import model_facts
    from mmserve.cli.plan.estimate import estimate
    from mmserve.processors.registry import processor_for
    from mmserve.processors.settings import with_options
    from mmserve.supervisor.startup.plan import weight_dtype

    flags = {name: value for name, value in vars(arguments).items() if name in _OF_SERVE}
    config = resolve(flags, {}, None)
    hardware, fast_bfloat16 = _hardware(arguments)
    facts = model_facts.read(locate(arguments.model, weights=False), config.model_impl)
    check_tp(facts.model, config.tp)
    device = "cuda" if hardware.is_gpu else "cpu"
    dtype = weight_dtype(config, facts.model, device, fast_bfloat16=fast_bfloat16)
    if config.mm_processor_kwargs:
        facts = facts._replace(model=with_options(facts.model, config.mm_processor_kwargs))
    processor = processor_for(facts.model)
    rows = processor.max_rows if processor else 0
    found = estimate(config, facts, dtype, hardware, rows, _draft(config, facts.model))
    print(json.dumps(msgspec.to_builtins(found)) if arguments.json else render(arguments.model, found))
    return 0 if found.kv_tokens else 1


def _draft(config: Config, model: ModelSpec) -> ModelFacts | None:
    from mmserve.checkpoint.locate import locate
    from mmserve.cli.plan import model_facts
    from mmserve.supervisor.startup.find_draft import check_tokens

    name = config.speculative_model
    if name is None:
        return None
    draft = model_facts.read(locate(name, option="--speculative-model", weights=False))
    check_tokens(name, draft.model, model)
    return draft


def _hardware(arguments: argparse.Namespace) -> tuple[Hardware, bool]:
    """What is planned for, and whether it multiplies bfloat16 fast."""
    from mmserve.cli.plan import hardware
    from mmserve.supervisor.startup import machine

    if arguments.gpu is None:
        found = machine.look()
        memory = None if arguments.memory_gb is None else int(arguments.memory_gb * _GIB)
        return hardware.this_machine(found, memory), found.fast_bfloat16
    name = arguments.gpu.lower()
    if name not in hardware.GPU_NAMES:
        raise StartupError(f"--gpu {arguments.gpu} is not known; known are {', '.join(hardware.GPU_NAMES)}")
    card = hardware.gpu(name)
    if arguments.memory_gb is not None:
        card = card._replace(memory_nbytes=int(arguments.memory_gb * _GIB))
    return card, True


def render(name: str, found: Estimate) -> str:
    """The report as text for a terminal."""
    each = "" if found.tp == 1 else f" on each of {found.tp}"
    weights = found.text_weights_bytes + found.tower_weights_bytes + found.draft_weights_bytes
    rows = [
        ("hardware", f"{found.hardware}, {size(found.memory_bytes)}{each if found.hardware[:1].isalpha() else ''}"),
        ("weights", f"{size(weights)} in {found.dtype}" + _parts(found)),
        ("processes", f"{size(found.other_bytes)} with the activations of a step"),
        ("arena", f"{size(found.arena_bytes)} of shared memory for pictures"),
        ("traffic", f"at most {size(found.traffic_bytes)} more for bodies and pictures under way (--*-budget-mb)"),
        (
            "KV cache",
            f"{size(found.kv_bytes_per_token)} a token in {found.kv_dtype}; room for {found.kv_tokens:,} tokens",
        ),
    ]
    if found.picture_rows:
        largest = f"{found.picture_rows} tokens: {size(found.picture_kv_bytes)} of KV cache while its request is served"
        rows.append(("picture", f"the largest is {largest}, {size(found.picture_arena_bytes)} of the arena"))
    if not found.kv_tokens:
        rows.append(("result", _too_small(found)))
        return "\n".join(aligned(rows))
    rows += [
        ("requests", f"{fit.requests:,} at once with {fit.tokens:,} tokens each" + _pictures(fit.pictures))
        for fit in found.fits
    ]
    rows += [
        (
            "decoding",
            f"at most {speed.tokens_per_s:,.0f} tokens/s: {speed.sequences} at once with {speed.context:,} tokens each",
        )
        for speed in found.speeds
    ]
    rows.append(("command", " ".join(["mmserve serve --model", name, *found.flags])))
    return "\n".join(aligned(rows))


def _too_small(found: Estimate) -> str:
    lower = "--max-model-len" if found.hardware[:1].isalpha() else "--max-model-len, --mm-cache-gb or --max-body-mb"
    return (
        f"does not fit: one context of {found.context:,} tokens needs a memory of {size(found.least_memory_bytes)}; "
        f"lower {lower}, or give it more"
    )


def _parts(found: Estimate) -> str:
    named = ((found.tower_weights_bytes, "the vision tower"), (found.draft_weights_bytes, "the draft model"))
    return "".join(f", of it {size(nbytes)} for {name}" for nbytes, name in named if nbytes)


def _pictures(count: int) -> str:
    return f", {count} of the largest pictures included" if count else ""
