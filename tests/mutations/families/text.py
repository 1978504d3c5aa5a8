"""Mutations of the text families."""

from __future__ import annotations

from tests.mutations.mutation import Family, Mutation

_ROPE_CONFIG = "checkpoint/config/rope_config.py"
_ROTARY = "model_backend/layers/rotary.py"
_ATTENTION = "model_backend/layers/attention.py"
_HEAD_TURN = "model_backend/layers/head_turn.py"
_DECODER = "model_backend/models/decoder.py"
_SDPA = "model_backend/attention/sdpa.py"
_PARITY = "model_backend/models/test_family_parity.py"
_NORMS = """\
    if turn.q_norm is not None and turn.k_norm is not None:
        ops.head_norm_(queries, turn.q_norm, turn.eps)
        ops.head_norm_(keys, turn.k_norm, turn.eps)
"""
_ROTATION = """\
    if turn.ropes is None or turn.cos is None or turn.sin is None:
        return
    parts = [(queries, turn.ropes.queries), (keys, turn.ropes.keys)]
    if turn.ropes.queries == turn.ropes.keys:  # together where they turn alike
        parts = [(heads[:, : num_heads + num_kv_heads], turn.ropes.keys)]
    for part, row in parts:
        ops.rotary_(part, turn.cos[row], turn.sin[row], turn.adjacent)
"""

WINDOW_ONE_MORE = Mutation(
    "a window has one token more",
    _SDPA,
    "hidden |= positions <= own - mask.window",
    "hidden |= positions < own - mask.window",
)
NORM_AFTER_ROTATION = Mutation(
    "heads are normalized after they have turned", _HEAD_TURN, _NORMS + _ROTATION, _ROTATION + _NORMS
)
KEYS_WITH_THE_QUERY_NORM = Mutation(
    "keys have the norm of queries", _HEAD_TURN, "(keys, turn.k_norm, turn.eps)", "(keys, turn.q_norm, turn.eps)"
)
FEWER_EXPERTS = Mutation(
    "a token has one expert less",
    "checkpoint/families/text/qwen3_moe.py",
    "top_k=self.num_experts_per_tok,",
    "top_k=self.num_experts_per_tok - 1,",
)
UNSORTED_WEIGHTS = Mutation(
    "the weights of experts are not sorted with their tokens",
    "model_backend/layers/moe.py",
    "weights.flatten()[pairs, None]",
    "weights.flatten()[:, None]",
)
GATE_AFTER_UP = Mutation(
    "stacked experts and fused MLPs hold up before gate",
    "model_backend/loader/stored_parts.py",
    '("gate_proj", "up_proj")',
    '("up_proj", "gate_proj")',
)
_YARN = (
    Mutation(
        "yarn's ramp is rounded to whole pairs where it should not be",
        _ROTARY,
        "if rope.truncate:",
        "if not rope.truncate:",
    ),
    Mutation(
        "yarn's ramp goes the other way",
        _ROTARY,
        "return frequencies / rope.factor * scaled + frequencies * (1 - scaled)",
        "return frequencies / rope.factor * (1 - scaled) + frequencies * scaled",
    ),
    Mutation(
        "yarn's amplitude is left out",
        _ROPE_CONFIG,
        "return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0",
        "return 1.0",
    ),
)


def _family(select: str, *mutations: Mutation, more_tests: tuple[str, ...] = ()) -> Family:
    return Family((*more_tests, _PARITY), f"({select}) and not show", mutations)


FAMILIES = {
    "llama": Family(
        ("model_backend/layers/test_rotary.py", "model_backend/models/test_llama_parity.py"),
        "llama",
        (
            Mutation(
                "llama3's frequencies are not blended",
                _ROTARY,
                "unscaled = ((waves_in_context - low) / (high - low)).clamp(0, 1)",
                "unscaled = (waves_in_context > low).float()",
            ),
            Mutation(
                "linear scaling multiplies",
                _ROTARY,
                'case "linear":\n            return frequencies / rope.factor',
                'case "linear":\n            return frequencies * rope.factor',
            ),
            Mutation(
                "adjacent numbers of a head turn together",
                _ATTENTION,
                "layer.rope is not None and layer.rope.adjacent",
                "layer.rope is not None",
            ),
            Mutation(
                "up is the gate",
                "model_backend/layers/mlp.py",
                'hidden, [Projection("gate_proj", inner), Projection("up_proj", inner)]',
                'hidden, [Projection("up_proj", inner), Projection("gate_proj", inner)]',
            ),
            Mutation("keys are values", _ATTENTION, '("k_proj", "v_proj")', '("v_proj", "k_proj")'),
            Mutation(
                "a token sees the next one",
                _SDPA,
                "image_ends if mask.whole_images else own + 1",
                "image_ends if mask.whole_images else own + 2",
            ),
            Mutation(
                "the scale of attention is that of heads twice as wide",
                "model_backend/attention/interface.py",
                "self.head_dim**-0.5 if",
                "(2 * self.head_dim) ** -0.5 if",
            ),
        ),
    ),
    "mistral": _family(
        "mistral and not ministral",
        WINDOW_ONE_MORE,
        Mutation(
            "no layer has a window",
            "checkpoint/families/text/mistral.py",
            "[True] * self.num_hidden_layers",
            "[False] * self.num_hidden_layers",
        ),
    ),
    "ministral": _family(
        "ministral and not ministral3",
        Mutation(
            "layer_types is not read",
            "checkpoint/families/text/ministral.py",
            "super().layers() if sliding is None else",
            "super().layers() if sliding else",
        ),
        Mutation(
            "the window is in the other layers",
            "checkpoint/config/text_config.py",
            '[kind == "sliding_attention" for kind in layer_types]',
            '[kind != "sliding_attention" for kind in layer_types]',
        ),
    ),
    "ministral3": _family(
        "ministral3",
        Mutation(
            "queries grow within the original context",
            _ROTARY,
            "positions[0] // original",
            "positions[0] / original",
        ),
        Mutation(
            "keys grow as queries do", _ROTARY, "return rope, replace(rope, query_growth=0.0)", "return rope, rope"
        ),
        *_YARN,
    ),
    "qwen2": _family(
        "qwen2 or config_as_published",
        Mutation(
            "rope_theta at the top of config.json is not read",
            "checkpoint/config/text_config.py",
            "self.rope_theta or self.default_theta",
            "self.default_theta",
        ),
        Mutation(
            "theta of rope_parameters is not read",
            _ROPE_CONFIG,
            "theta=self.rope_theta or default_theta",
            "theta=default_theta",
        ),
        Mutation(
            "every layer has the window",
            "checkpoint/families/text/qwen2.py",
            "self.sliding_window if self.use_sliding_window else None, sliding)",
            "self.sliding_window if self.use_sliding_window else None, [True] * len(sliding))",
        ),
        *_YARN,
    ),
    "qwen3": _family("qwen3 and not moe", NORM_AFTER_ROTATION, KEYS_WITH_THE_QUERY_NORM),
    "qwen3_moe": _family(
        "qwen3_moe or (qwen3 and moe) or experts",
        Mutation(
            "norm_topk_prob is not read",
            "checkpoint/families/text/qwen3_moe.py",
            "renormalize=self.norm_topk_prob",
            "renormalize=True",
        ),
        FEWER_EXPERTS,
        UNSORTED_WEIGHTS,
        GATE_AFTER_UP,
        NORM_AFTER_ROTATION,
        more_tests=("model_backend/loader/test_stored_parts.py",),
    ),
    "smollm3": _family(
        "smollm3",
        Mutation(
            "the other layers turn",
            "checkpoint/families/text/smollm3.py",
            "layer if rotate else replace(layer, rope=None)",
            "replace(layer, rope=None) if rotate else layer",
        ),
        Mutation(
            "all layers turn",
            "checkpoint/families/text/smollm3.py",
            "layer if rotate else replace(layer, rope=None)",
            "layer",
        ),
    ),
    "phi3": _family(
        "phi3 or longrope",
        Mutation(
            "qkv_proj holds keys before queries",
            "model_backend/loader/stored_parts.py",
            '("q_proj", "k_proj", "v_proj")',
            '("k_proj", "q_proj", "v_proj")',
        ),
        GATE_AFTER_UP,
        Mutation(
            "a long context has the divisors of short ones",
            _ROPE_CONFIG,
            "divisors=rope.long_divisors or rope.divisors",
            "divisors=rope.divisors",
        ),
        Mutation(
            "longrope's amplitude is not a square root",
            _ROPE_CONFIG,
            "math.sqrt(1 + math.log(factor) / math.log(original))",
            "1 + math.log(factor) / math.log(original)",
        ),
        Mutation(
            "the last numbers of a head turn",
            "model_backend/platforms/torch_ops.py",
            "turning = x[..., : 2 * cos.shape[-1]]",
            "turning = x[..., x.shape[-1] - 2 * cos.shape[-1] :]",
        ),
        more_tests=("model_backend/layers/test_rotary.py",),
    ),
    "ernie4_5": _family(
        "ernie4_5",
        Mutation(
            "a pair is of the two halves of a head",
            "checkpoint/families/text/ernie4_5.py",
            "adjacent=True",
            "adjacent=False",
        ),
    ),
    "gemma3_text": _family(
        "gemma3_text or gemma3",
        WINDOW_ONE_MORE,
        NORM_AFTER_ROTATION,
        Mutation(
            "the norms after attention and before the MLP are exchanged",
            _DECODER,
            """\
        self.after_attention_norm = norm("post_attention_layernorm") if spec.sandwich_norms else None
        self.mlp_norm = norm("pre_feedforward_layernorm" if""",
            """\
        self.after_attention_norm = norm("pre_feedforward_layernorm") if spec.sandwich_norms else None
        self.mlp_norm = norm("post_attention_layernorm" if""",
        ),
        Mutation(
            "the weights of norms are as they are stored",
            "checkpoint/families/text/gemma3_text.py",
            "norm_offset=1.0",
            "norm_offset=0.0",
        ),
        Mutation(
            "embeddings are as they are stored",
            "checkpoint/families/text/gemma3_text.py",
            "embedding_scale=self.hidden_size**0.5",
            "embedding_scale=None",
        ),
        Mutation(
            "the scale of attention follows from the heads",
            "checkpoint/families/text/gemma3_text.py",
            "attention_scale=self.query_pre_attn_scalar**-0.5",
            "attention_scale=self.head_size() ** -0.5",
        ),
        Mutation(
            "layers with a window have the rope of the others",
            "checkpoint/families/text/gemma3_text.py",
            "replace(layer, rope=local) if slides else layer",
            "replace(layer, rope=local) if not slides else layer",
        ),
    ),
}
