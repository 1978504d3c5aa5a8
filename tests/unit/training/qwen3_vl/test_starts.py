"""What the model begins with: the packaged tower in another shape, heads that count, heads that see sides."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from training.pictures import labels
from training.pictures.world import SHAPES
from training.qwen3_vl import pictures, shape, text, transplant, warm
from training.qwen3_vl.questions import SIDES
from training.qwen3_vl.several.rows import lesson
from training.tokens import Coder


def test_turned_queries_and_keys_have_the_same_products() -> None:
    generator = torch.Generator().manual_seed(1)
    query, key = nn.Linear(64, 64), nn.Linear(64, 64)
    x, y = torch.randn(5, 64, generator=generator), torch.randn(7, 64, generator=generator)
    found = transplant.turned(query, key, 2)
    with torch.no_grad():
        before = [part.unflatten(-1, (2, 32)).transpose(0, 1) for part in (query(x), key(y))]
        turned = [
            (given @ found[n].T + found[n + 1]).unflatten(-1, (2, 32)).transpose(0, 1) for n, given in ((0, x), (2, y))
        ]
    torch.testing.assert_close(turned[0] @ turned[1].mT, before[0] @ before[1].mT, atol=1e-4, rtol=1e-4)


def test_the_numbers_that_turn_least_come_first() -> None:
    config = shape.config().vision_config
    size = config.hidden_size // config.num_heads
    angles = 10000 ** (-torch.arange(size // 4) / (size // 4))
    ordered = angles.repeat(4)[transplant.slow(size)]
    assert (ordered.diff() >= 0).all()


@torch.no_grad()
def test_a_side_word_gets_the_class_of_the_outermost_shape_of_the_newest_picture() -> None:
    coder = Coder.at(shape.PACKAGED / "tokenizer.json")
    model = shape.network()
    warm.start(model, shape.PACKAGED, coder)
    batch = lesson(7, 48, coder, [pictures.scene(seed) for seed in range(30)]).batch
    basis = torch.from_numpy(labels.basis())
    added: list[torch.Tensor] = []
    model.model.language_model.layers[0].self_attn.register_forward_hook(lambda _, __, out: added.append(out[0]))
    text.logits_of(model, batch, text.streams(text.codes(batch, None), nn.Identity(), basis, 0.0))
    kinds = added[0].flatten(0, 1) @ basis[labels.GROUPS["kind"]][1:7].T
    tokens, targets = torch.from_numpy(batch.rows.tokens).flatten(), batch.rows.targets.flatten()
    words = {token for word in SIDES for token in warm.single(word, coder)}
    names = {coder.ids(name)[0]: number for number, name in enumerate(SHAPES)}
    for kind in ("side", "newest side"):
        asked = [first for about, first, _ in batch.rows.answers if about == kind]
        places = [next(at for at in range(first, 0, -1) if int(tokens[at]) in words) for first in asked]
        found = [int(kinds[place].argmax()) for place in places]
        right = [number == names[targets[first]] for first, number in zip(asked, found, strict=True)]
        assert len(right) > 10
        assert sum(right) >= 0.9 * len(right)
