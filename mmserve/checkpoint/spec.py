"""Description of a model, as plain data read from its checkpoint directory."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from mmserve.checkpoint.quantization.scheme import QuantizationScheme
from mmserve.checkpoint.vision.anyres import LlavaNextVision, LlavaOnevisionVision
from mmserve.checkpoint.vision.clip import ClipVision
from mmserve.checkpoint.vision.gemma3 import Gemma3Vision
from mmserve.checkpoint.vision.generic import GenericVision
from mmserve.checkpoint.vision.idefics3 import Idefics3Vision
from mmserve.checkpoint.vision.internvit import InternVit
from mmserve.checkpoint.vision.paddleocr_vl import PaddleOcrVision
from mmserve.checkpoint.vision.pixtral import Pixtral
from mmserve.checkpoint.vision.qwen_vl import Qwen2Vision, Qwen3Vision, Qwen25Vision

VisionSpec = (
    ClipVision
    | Gemma3Vision
    | GenericVision
    | Idefics3Vision
    | InternVit
    | LlavaNextVision
    | LlavaOnevisionVision
    | PaddleOcrVision
    | Pixtral
    | Qwen2Vision
    | Qwen25Vision
    | Qwen3Vision
)
"""Of any vision tower."""


class Rope(msgspec.Struct, frozen=True, kw_only=True):
    """Rotary positions (Hugging Face's ``rope_parameters``, or ``rope_theta`` and ``rope_scaling``)."""

    theta: float = 10_000.0
    kind: Literal["default", "linear", "llama3", "yarn", "longrope"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    """Of yarn, as are the two before."""
    divisors: tuple[float, ...] = ()
    """Of longrope: each pair's frequency is divided by its own number."""
    long_divisors: tuple[float, ...] = ()
    """In their place where the server's context is longer than the original one. Empty once they are chosen."""
    amplitude: float = 1.0
    """Of cosines and sines."""
    query_growth: float = 0.0
    """Queries at position p are multiplied with 1 + query_growth log(1 + p // original_max_position) (Llama 4)."""
    adjacent: bool = False
    """A pair is two adjacent numbers; otherwise one of the first half of the part that turns and one of the second."""
    fraction: float = 1.0
    """Part of each head that turns: its first numbers. The same in all layers of a model."""
    sections: tuple[int, ...] = ()
    """How many pairs of a head turn with the time, the row and the column of an image's token. Empty: tokens have one
    position."""
    interleaved: bool = False
    """The pairs of the sections alternate, instead of following each other."""


class OwnKv(msgspec.Struct, frozen=True, kw_only=True, tag="own_kv"):
    """Keys and values of every token, in the blocks of the KV cache."""


class SharedKv(msgspec.Struct, frozen=True, kw_only=True, tag="shared_kv"):
    """None of its own: it attends to the keys and values of an earlier layer."""

    layer: int


class RecurrentState(msgspec.Struct, frozen=True, kw_only=True, tag="recurrent"):
    """As large for a long sequence as for a short one, in place of keys and values."""

    kind: str
    """As config.json calls it."""


LayerState = OwnKv | SharedKv | RecurrentState
"""What a layer keeps of the tokens that it has computed. Only the first kind is served (``layer_states.check``)."""


class KvGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Layers whose KV blocks are of one shape and are kept equally long. They share the ids of blocks."""

    layers: tuple[int, ...]
    num_kv_heads: int
    head_dim: int


class LayerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What may differ between the layers of one decoder."""

    rope: Rope | None = Rope()
    """None: attention knows no positions in this layer."""
    window: int | None = None
    """A token attends to itself and the ``window - 1`` tokens before it; None: to all tokens before it."""
    whole_images: bool = False
    """A token of an image attends to the image's tokens after it, too."""
    experts: bool = False
    """Its MLP is a mixture of experts (``TextSpec.moe``)."""
    state: LayerState = OwnKv()


class MoeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A mixture of experts, which are gated MLPs without biases."""

    num_experts: int
    top_k: int
    """Experts that compute a token."""
    intermediate_size: int
    """Of each expert."""
    renormalize: bool
    """The weights of a token's experts sum to 1; otherwise they are the router's probabilities."""


class TextSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder with RMSNorm, grouped-query attention and a gated MLP."""

    hidden_size: int
    intermediate_size: int
    layers: tuple[LayerSpec, ...]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int
    rms_eps: float
    tie_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    """RMSNorm of each query and key head, before the rotation."""
    attention_out_bias: bool = False
    mlp_bias: bool = False
    activation: str = "silu"
    norm_offset: float = 0.0
    """Added to the weights of all norms."""
    sandwich_norms: bool = False
    """Norms after attention and after the MLP too, before their results are added to the residual stream."""
    embedding_scale: float | None = None
    """Token embeddings are multiplied with it, rounded to the dtype of the computation."""
    attention_scale: float | None = None
    """Of the products of queries and keys; None: 1 / sqrt(head_dim)."""
    moe: MoeSpec | None = None
    """Of the layers that have experts."""

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def kv_groups(self) -> tuple[KvGroup, ...]:
        """One: layers with a window keep all their blocks, too."""
        own = tuple(index for index, layer in enumerate(self.layers) if isinstance(layer.state, OwnKv))
        return (KvGroup(layers=own, num_kv_heads=self.num_kv_heads, head_dim=self.head_dim),)

    @property
    def attends_whole_images(self) -> bool:
        """An image must be computed in one step, as attention reads all of it."""
        return any(layer.whole_images for layer in self.layers)

    @property
    def intermediate_sizes(self) -> tuple[int, ...]:
        """Of the MLPs that the layers have: dense ones, experts, or both."""
        of_experts = () if self.moe is None else (self.moe.intermediate_size,)
        dense = not all(layer.experts for layer in self.layers)
        return ((self.intermediate_size,) if dense else ()) + of_experts

    @property
    def num_mlp_weights(self) -> int:
        """Of all dense MLPs and experts, without the routers."""
        with_experts = sum(layer.experts for layer in self.layers)
        experts = 0 if self.moe is None else with_experts * self.moe.num_experts * self.moe.intermediate_size
        return 3 * self.hidden_size * ((self.num_layers - with_experts) * self.intermediate_size + experts)


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A model as processes know it before weights are loaded."""

    family: str
    """A family of ``checkpoint.registry``, or ``transformers``: computed by its modules."""
    path: str
    """Checkpoint directory, resolved."""
    text: TextSpec
    vision: VisionSpec | None = None
    image_token_id: int | None = None
    """The token that stands for rows of a picture in a tokenized prompt."""
    image_token: str = "<image>"
    """Its text."""
    chat_template: str = ""
    """The family's own, for checkpoints whose template takes no pictures."""
    processor_options: dict[str, Any] = {}
    """Settings of the image processor that the user has changed (--mm-processor-kwargs)."""
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    checkpoint_dtype: str = "float32"
    quantization: QuantizationScheme | None = None
    """Of the checkpoint's linear layers."""
