"""Whether one request's images can ever pass: each form that they take, all of them at once, against its budget."""

from __future__ import annotations

from collections.abc import Sequence

from mmserve.budget import MIB
from mmserve.deployment import Budgets
from mmserve.errors import TooLarge
from mmserve.ipc.arena import extent_nbytes
from mmserve.messages.cache import AllocItem


def check_can_pass(budgets: Budgets, items: Sequence[AllocItem], decoded_nbytes: Sequence[int]) -> None:
    """Raises TooLarge, naming the limit. ``decoded_nbytes``: of each item; content that comes twice counts once."""
    distinct = {item.key: (item, nbytes) for item, nbytes in zip(items, decoded_nbytes, strict=True)}.values()
    data = sum(extent_nbytes(item.data_nbytes) for item, _ in distinct)
    embeds = sum(extent_nbytes(item.embed_nbytes) for item, _ in distinct)
    pixels = sum(nbytes for _, nbytes in distinct)
    for form, nbytes, limit, flag in (
        ("are", data, budgets.data_nbytes, "--data-budget-mb"),
        ("decode to", pixels, budgets.pixel_nbytes, "--pixel-budget-mb"),
        ("have embeddings of", embeds, budgets.embed_nbytes, "--embed-budget-mb"),
    ):
        if nbytes > limit:
            raise TooLarge(
                f"the images of this request {form} {nbytes / MIB:.1f} MiB in all; "
                f"this server takes {limit / MIB:.1f} MiB at once ({flag})"
            )
