"""Expansions stand where the template has written placeholders, and nowhere else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmserve.httpserver.prompt.image_texts import PlacesMismatch, expanded

PIECES = st.lists(st.tuples(st.sampled_from(["own", "user", "image"]), st.sampled_from(["", "a", "<i>", "<", "i>"])))


@given(PIECES)
def test_placeholders_of_users_stay_and_intervals_move_with_their_text(pieces: list[tuple[str, str]]) -> None:
    text, expected, user, expected_user, images = "", "", [], [], []
    for kind, content in pieces:
        if kind == "user":
            user.append((len(text), len(text) + len(content)))
            expected_user.append((len(expected), len(expected) + len(content)))
        elif kind == "image":
            images.append(f"\n{len(images)}: <i>,<i>\n" if len(images) % 2 else "")
        content = {"own": ".", "user": content, "image": "<i>"}[kind]
        text += content
        expected += images[-1] if kind == "image" else content
    assert expanded("<i>", text, images, user) == (expected, expected_user)


def test_a_placeholder_that_overlaps_a_users_text_is_no_place() -> None:
    assert expanded("<image>", "<image><image>", ["X"], [(1, 6)]) == ("<image>X", [(1, 6)])
    for images in ([], ["X", "Y"]):
        with pytest.raises(PlacesMismatch, match=f"1 of {len(images)} images"):
            expanded("<image>", "a <image>", images)
