"""Log-probabilities beside the text: each with the chunk in which its token begins, none lost, none twice, and their
bytes are the text's."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmserve.httpserver.api.openai.logprobs import logprobs_for
from mmserve.httpserver.output.answer_delta import AnswerDelta
from mmserve.httpserver.output.detokenizer import Detokenizer
from mmserve.httpserver.output.vocabulary import Spelling, Vocabulary
from mmserve.messages.logprobs import pack
from mmserve.messages.reply import TokenReply
from mmserve.messages.sampling import SamplingParams
from tests.fakes.http.http_services import EOS
from tests.fakes.ranks.calls import generate_call
from tests.unit.httpserver.output.test_detokenizer import BYTES, FALLBACK, VOCABULARY, deltas, joined, replies

UNKNOWN = 399


def asked(ids: list[int], cuts: list[int], finish: str = "stop") -> list[TokenReply]:
    """The tokens in replies that end at ``cuts``; each token's log-probability is its place in the answer, negated."""
    place, made = 0, []
    for reply in replies(ids, cuts, finish):
        packed = [pack([(id, -float(place + index)), (0, -0.5)]) for index, id in enumerate(reply.token_ids)]
        made.append(msgspec.structs.replace(reply, logprobs=tuple(packed)))
        place += len(packed)
    return made


def places(made: list[AnswerDelta]) -> list[list[int]]:
    """Of each delta: which tokens of the answer it brings."""
    return [[-int(token.decode()[0].logprob) for token in delta.logprobs] for delta in made]


def in_all(made: list[AnswerDelta]) -> list[int]:
    return [place for found in places(made) for place in found]


def data(made: list[AnswerDelta]) -> bytes:
    return b"".join(token.decode()[0].spelling.data or b"" for delta in made for token in delta.logprobs)


@given(st.text(), st.lists(st.integers(0, 1000)))
def test_bytes_joined_are_the_text(text: str, cuts: list[int]) -> None:
    ids = BYTES.encode(text).ids
    made = deltas(Detokenizer(VOCABULARY, 0, ()), asked([*ids, EOS], cuts))
    assert all(data(made[:end]) == joined(made[:end]).encode() for end in range(len(made)))
    assert data(made) == joined(made).encode() == text.encode()
    assert in_all(made) == list(range(len(ids))), "one a token, the stop token is not of the message"


@given(st.text(alphabet="abc the é你🎉"), st.lists(st.integers(0, 1000)))
def test_bytes_joined_are_the_text_where_a_leading_space_goes(text: str, cuts: list[int]) -> None:
    ids = FALLBACK.encode(text).ids
    if FALLBACK.token_to_id("<unk>") in ids:
        return
    made = deltas(Detokenizer(Vocabulary(FALLBACK), 0, ()), asked(ids, cuts, "length"))
    assert data(made) == joined(made).encode()
    assert in_all(made) == list(range(len(ids)))


anything = st.lists(st.one_of(st.integers(0, EOS), st.sampled_from([*b"aab", 0xE4, 0xBD, 0xA0, UNKNOWN])))


@given(anything, st.lists(st.integers(0, 1000)), st.lists(st.text("ab你", min_size=1, max_size=3), max_size=3))
def test_each_entry_comes_once_in_order_with_the_start_of_its_text(
    ids: list[int], cuts: list[int], stops: list[str]
) -> None:
    made = deltas(Detokenizer(VOCABULARY, 0, tuple(stops)), asked(ids, cuts))
    whole = deltas(Detokenizer(VOCABULARY, 0, tuple(stops)), asked(ids, []))
    found = in_all(made)
    text_places = [place for place, id in enumerate(ids) if VOCABULARY.is_text(id)]
    assert found == text_places[: len(found)]
    assert found == in_all(whole), "however they are grouped"
    if sum(delta.num_tokens for delta in made) == len(ids) and not stops:
        assert found == text_places
    for delta in made[:-1]:
        assert bool(delta.text) or not delta.logprobs, "nothing comes before its text"


def test_held_back_text_keeps_its_entries() -> None:
    made = deltas(Detokenizer(VOCABULARY, 0, ("two!",)), asked(list(b"a twist"), list(range(7)), "length"))
    by_text = [(delta.text, found) for delta, found in zip(made, places(made), strict=True) if found]
    assert by_text == [("a", [0]), (" ", [1]), ("twi", [2, 3, 4]), ("s", [5]), ("t", [6])]


def test_entries_of_text_cut_by_a_stop_string_are_dropped() -> None:
    made = deltas(Detokenizer(VOCABULARY, 0, ("two",)), asked(list(b"one two three"), [5, 6]))
    assert (joined(made), data(made)) == ("one ", b"one ")


def test_a_partly_shown_token_keeps_its_entry() -> None:
    tokens = [FALLBACK.token_to_id(piece) for piece in ("▁the", "▁a", "b")]
    made = deltas(Detokenizer(Vocabulary(FALLBACK), 0, ("he",)), asked(tokens, [1, 2]))
    assert (joined(made), data(made)) == ("t", b"the")


def test_an_incomplete_character_keeps_its_tokens_together_and_comes_broken_at_the_end() -> None:
    text = Detokenizer(VOCABULARY, 0, ())
    made = [text.push(reply) for reply in asked([0x61, 0xE4, 0xBD, 0xA0, 0xE5], [1, 2, 3, 4], "length")]
    assert places(made) == [[0], [], [], [1, 2, 3], [4]]
    assert [delta.text for delta in made] == ["a", "", "", "你", "\ufffd"]
    assert data(made) == b"a\xe4\xbd\xa0\xe5"


def test_there_are_no_entries_unless_requested() -> None:
    made = deltas(Detokenizer(VOCABULARY, 0, ("x",)), replies(list(b"text"), [1]))
    assert [delta.logprobs for delta in made] == [()] * len(made)


@pytest.mark.parametrize(
    ("piece", "first", "after"),
    [
        ("▁the", Spelling("the", b"the"), Spelling(" the", b" the")),
        ("▁", Spelling("", b""), Spelling(" ", b" ")),
        ("b", Spelling("b", b"b"), Spelling("b", b"b")),
        ("<0x0A>", Spelling("\n", b"\n"), Spelling("\n", b"\n")),
        ("<0xE4>", Spelling("\ufffd", b"\xe4"), Spelling("\ufffd", b"\xe4")),
    ],
)
def test_spelling_of_sentencepiece_tokens(piece: str, first: Spelling, after: Spelling) -> None:
    vocabulary, token_id = Vocabulary(FALLBACK), FALLBACK.token_to_id(piece)
    assert (vocabulary.spell(token_id, first=True), vocabulary.spell(token_id, first=False)) == (first, after)


@pytest.mark.parametrize("first", [True, False])
def test_spelling_of_bytes_and_of_special_tokens(first: bool) -> None:
    spellings = [VOCABULARY.spell(token_id, first=first).data for token_id in range(256)]
    assert spellings == [bytes([byte]) for byte in range(256)]
    assert VOCABULARY.spell(EOS, first=first) == Spelling("</s>", None)
    assert VOCABULARY.spell(UNKNOWN, first=first) == Spelling("token_id:399", None)


def test_on_the_wire() -> None:
    entry = pack([(0xE4, -0.25), (ord("a"), -0.125), (EOS, float("-inf"))])
    delta = Detokenizer(VOCABULARY, 0, ()).push(
        TokenReply(id="x", token_ids=(0xE4,), logprobs=(entry,), finish="length")
    )
    call = generate_call(sampling=SamplingParams(max_tokens=1, logprobs=2))
    assert msgspec.json.decode(msgspec.json.encode(logprobs_for(call, delta.logprobs))) == {
        "content": [
            {
                "token": "\ufffd",
                "logprob": -0.25,
                "bytes": [0xE4],
                "top_logprobs": [
                    {"token": "a", "logprob": -0.125, "bytes": [97]},
                    {"token": "</s>", "logprob": -9999.0, "bytes": None},
                ],
            }
        ],
        "refusal": None,
    }
