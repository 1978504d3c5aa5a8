"""Detokenization: the same text for any grouping, UTF-8 held back, special tokens dropped, usage up to the stop."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from mmserve.httpserver.call import TokenView
from mmserve.httpserver.output.answer_delta import AnswerDelta
from mmserve.httpserver.output.detokenizer import Detokenizer, IncrementalDecoder
from mmserve.httpserver.output.parsing.pieces import Text
from mmserve.httpserver.output.vocabulary import Marker, Vocabulary
from mmserve.messages.logprobs import NO_TOKEN, pack
from mmserve.messages.reply import FinishReason, TokenReply
from mmserve.messages.sampling import SamplingParams
from tests.fakes.http.http_services import EOS, byte_tokenizer

BYTES = byte_tokenizer()
VOCABULARY = Vocabulary(BYTES)


def byte_fallback_tokenizer() -> Tokenizer:
    """As Llama 2's: words begin with a mark for the space, other characters are spelled in bytes."""
    pieces = ["▁", "▁a", "a", "b", "▁the", "c"]
    vocab = {"<unk>": 0} | {f"<0x{byte:02X}>": byte + 1 for byte in range(256)}
    vocab |= {piece: 257 + index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


FALLBACK = byte_fallback_tokenizer()


def replies(ids: list[int], cuts: list[int], finish: str = "stop") -> list[TokenReply]:
    """The tokens in replies that end at ``cuts``."""
    bounds = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    groups = [tuple(ids[start:end]) for start, end in pairwise(bounds)]
    return [
        TokenReply(id="x", token_ids=group, finish=finish if index == len(groups) - 1 else None)  # type: ignore[arg-type]
        for index, group in enumerate(groups)
    ]


def deltas(text: Detokenizer, tokens: list[TokenReply]) -> list[AnswerDelta]:
    """The deltas of the replies, up to the first with ``finish``."""
    made = []
    for reply in tokens:
        made.append(text.push(reply))
        if made[-1].finish:
            break
    return made


def joined(made: list[AnswerDelta]) -> str:
    return "".join(delta.text for delta in made)


@given(st.text(), st.lists(st.integers(0, 1000)))
def test_any_text_is_complete_for_any_grouping(text: str, cuts: list[int]) -> None:
    made = deltas(Detokenizer(VOCABULARY, 0, ()), replies(BYTES.encode(text).ids, cuts))
    assert joined(made) == text
    assert not any("\ufffd" in delta.text for delta in made) or "\ufffd" in text


@given(st.text(alphabet="abc the é你🎉"), st.lists(st.integers(0, 1000)))
def test_byte_fallback_and_leading_spaces(text: str, cuts: list[int]) -> None:
    ids = FALLBACK.encode(text).ids
    made = deltas(Detokenizer(Vocabulary(FALLBACK), 0, ()), replies(ids, cuts))
    assert joined(made) == FALLBACK.decode(ids)


@given(
    st.lists(st.one_of(st.integers(0, EOS), st.integers(300, 400))),
    st.lists(st.integers(0, 1000)),
    st.lists(st.integers(0, 1000)),
    st.lists(st.text(min_size=1, max_size=3), max_size=3),
)
def test_any_tokens_give_the_same_text_for_any_grouping(
    ids: list[int], cuts: list[int], other_cuts: list[int], stops: list[str]
) -> None:
    one = deltas(Detokenizer(VOCABULARY, 0, tuple(stops)), replies(ids, cuts))
    other = deltas(Detokenizer(VOCABULARY, 0, tuple(stops)), replies(ids, other_cuts))
    assert joined(one) == joined(other)
    assert sum(delta.num_tokens for delta in one) == sum(delta.num_tokens for delta in other)
    assert one[-1].finish == other[-1].finish == "stop"


def test_an_incomplete_character_is_held_back_and_replaced_at_the_end() -> None:
    text = Detokenizer(VOCABULARY, 0, ())
    assert text.push(TokenReply(id="x", token_ids=(0xE4, 0xBD))).text == ""
    assert text.push(TokenReply(id="x", token_ids=(0xA0, 0xE5))).text == "你"
    assert text.push(TokenReply(id="x", finish="length")) == AnswerDelta(0, (Text("\ufffd"),), 0, "length", 0)


def test_invalid_utf8_is_held_back_for_a_bounded_number_of_tokens() -> None:
    text = Detokenizer(VOCABULARY, 0, ())
    made = [text.push(TokenReply(id="x", token_ids=(0xFF,))).text for _ in range(100)]
    assert len("".join(made)) > 80


def test_special_and_unknown_tokens_are_counted_but_not_shown() -> None:
    text = Detokenizer(VOCABULARY, 0, ())
    delta = text.push(TokenReply(id="x", token_ids=(ord("a"), EOS, 399, ord("b"), EOS), finish="stop"))
    assert (delta.text, delta.num_tokens) == ("ab", 5)


@pytest.mark.parametrize("group", [1, 2, 5, 100])
def test_usage_and_text_end_with_the_stop_string(group: int) -> None:
    ids = list(b"one two three")
    made = deltas(Detokenizer(VOCABULARY, 2, ("two",)), replies(ids, list(range(0, len(ids), group)), "length"))
    assert joined(made) == "one "
    assert sum(delta.num_tokens for delta in made) == len("one two")
    assert (made[-1].finish, made[-1].index) == ("stop", 2)


def test_a_possible_start_of_a_stop_string_is_shown_at_the_end() -> None:
    made = deltas(Detokenizer(VOCABULARY, 0, ("two!",)), replies(list(b"one two"), [3], "length"))
    assert (joined(made), made[-1].finish) == ("one two", "length")


def test_stop_strings_apply_from_min_tokens_on() -> None:
    made = deltas(
        Detokenizer(VOCABULARY, 0, (".",), SamplingParams(max_tokens=9, min_tokens=3)),
        replies(list(b"a.b.c"), [1, 2, 3, 4]),
    )
    assert joined(made) == "a.b"


@pytest.mark.parametrize("num_bytes", [1, 2, 3])
@pytest.mark.parametrize("before", ["", "a", "🎉", "你"])
def test_invalid_utf8_leaves_the_character_before_it_intact(before: str, num_bytes: int) -> None:
    ids = FALLBACK.encode(before).ids + [byte + 1 for byte in "🎉".encode()[:num_bytes]]
    shown = joined(deltas(Detokenizer(Vocabulary(FALLBACK), 0, ()), replies(ids, [*range(len(ids))], "length")))
    assert shown == before + "\ufffd" * num_bytes


def test_a_stray_byte_between_characters_is_one_replacement_character() -> None:
    ids = [byte + 1 for byte in "🎉".encode()] + [0xF0 + 1] + FALLBACK.encode("b").ids
    shown = joined(deltas(Detokenizer(Vocabulary(FALLBACK), 0, ()), replies(ids, [*range(len(ids))])))
    assert shown.strip("b ") == "🎉\ufffd"


def test_markers_come_between_the_texts_around_them() -> None:
    """Only the special tokens asked for; the same characters from ordinary tokens are text."""
    vocabulary = Vocabulary(BYTES)
    marker = str(BYTES.id_to_token(EOS))
    assert vocabulary.markers([marker, "a", "nothing"]) == {EOS: Marker(marker)}
    decoder = IncrementalDecoder(vocabulary, vocabulary.markers([marker]))
    tokens = [*"é".encode(), EOS, "é".encode()[0], EOS, *marker.encode()]
    read = [decoder.read(token) for token in tokens]
    assert [found for found in read if found != ("", None)] == [
        ("é", None),
        ("", Marker(marker)),
        ("\ufffd", Marker(marker)),
        *((char, None) for char in marker),
    ]


def test_special_tokens_that_are_no_markers_stay_hidden() -> None:
    decoder = IncrementalDecoder(VOCABULARY, {})
    assert [decoder.read(token) for token in [97, EOS, 98]] == [("a", None), ("", None), ("b", None)]
    assert VOCABULARY.special_names == {BYTES.id_to_token(EOS)}


@pytest.mark.parametrize(
    ("last", "finish", "text", "reason"),
    [
        (ord("!"), "stop", "one", ord("!")),
        (EOS, "stop", "one", None),
        (ord("."), "stop", "one", None),
        (ord("!"), "length", "one!", None),
        (ord("x"), "stop", "one", "x"),
    ],
    ids=["client's token", "special token", "model's token", "length", "string"],
)
def test_the_reason_of_a_stop_and_no_text_of_the_token(
    last: int, finish: FinishReason, text: str, reason: int | str | None
) -> None:
    sampling = SamplingParams(max_tokens=9, eos_token_ids=(EOS, ord(".")), stop_token_ids=(ord("!"), ord(".")))
    made = Detokenizer(VOCABULARY, 0, ("y", "x"), sampling)
    delta = made.push(TokenReply(id="x", token_ids=(*b"one", last), finish=finish))
    assert (delta.text, delta.stop_reason, delta.num_tokens) == (text, reason, 4)


def test_rows_of_the_prompt_become_entries_and_its_first_token_has_none() -> None:
    made = Detokenizer(VOCABULARY, 0, (), SamplingParams(max_tokens=9, prompt_logprobs=1))
    image = pack([(NO_TOKEN, 0.0), (NO_TOKEN, 0.0)])
    text = pack([(ord("a"), -1.0), (NO_TOKEN, 0.0)])
    first = made.push(TokenReply(id="x", prompt_logprobs=text + image))
    second = made.push(TokenReply(id="x", prompt_logprobs=text, finish="length", embedding=b"1234"))
    assert [entry and entry.decode()[0].spelling.text for entry in first.prompt_logprobs] == [None, "a", None]
    assert [entry and entry.decode() for entry in second.prompt_logprobs] == [
        ((VOCABULARY.spell(97, first=False), -1.0, 97), [])
    ]
    assert (first.num_tokens, first.text, second.finish, second.embedding) == (0, "", "length", b"1234")


def test_a_prompt_of_one_token_has_one_entry() -> None:
    made = Detokenizer(VOCABULARY, 0, (), SamplingParams(max_tokens=9, prompt_logprobs=1))
    assert made.push(TokenReply(id="x", finish="length")).prompt_logprobs == (None,)


@pytest.mark.parametrize("group", [1, 3, 100])
def test_special_tokens_are_shown_on_request(group: int) -> None:
    ids = [*b"one", EOS, *b"two", EOS]
    text = Detokenizer(VOCABULARY, 0, (), view=TokenView(skip_special_tokens=False))
    assert joined(deltas(text, replies(ids, list(range(0, len(ids), group)), "length"))) == "one</s>two</s>"


def test_shown_special_tokens_have_log_probabilities() -> None:
    reply = TokenReply(id="x", token_ids=(97, EOS), logprobs=(pack([(97, -1.0)]), pack([(EOS, -2.0)])), finish="length")
    shown = Detokenizer(VOCABULARY, 0, (), view=TokenView(skip_special_tokens=False)).push(reply)
    assert [token.decode()[0].spelling.text for token in shown.logprobs] == ["a", "</s>"]
    assert len(Detokenizer(VOCABULARY, 0, ()).push(reply).logprobs) == 1


@pytest.mark.parametrize("group", [1, 2, 5, 100])
def test_a_stop_string_can_be_part_of_the_text(group: int) -> None:
    ids = list(b"one two three")
    made = deltas(
        Detokenizer(VOCABULARY, 0, ("two", "o th"), view=TokenView(include_stop=True)),
        replies(ids, list(range(0, len(ids), group)), "length"),
    )
    assert joined(made) == "one two"
    assert (made[-1].finish, made[-1].stop_reason) == ("stop", "two")


@pytest.mark.parametrize(("included", "expected"), [(True, "abc"), (False, "ab")])
def test_a_stop_token_is_part_of_the_text_on_request(included: bool, expected: str) -> None:
    sampling = SamplingParams(max_tokens=9, stop_token_ids=(ord("c"),))
    text = Detokenizer(VOCABULARY, 0, (), sampling, view=TokenView(include_stop=included))
    assert joined(deltas(text, replies(list(b"abc"), []))) == expected


@given(st.lists(st.integers(0, 255), max_size=8), st.lists(st.integers(0, 1000)), st.sampled_from([(), ("a",)]))
def test_the_token_ids_are_those_that_are_counted(ids: list[int], cuts: list[int], stops: tuple[str, ...]) -> None:
    made = deltas(Detokenizer(VOCABULARY, 0, stops, view=TokenView(token_ids=True)), replies(ids, cuts))
    token_ids = [token_id for delta in made for token_id in delta.token_ids]
    assert token_ids == ids[: sum(delta.num_tokens for delta in made)]
