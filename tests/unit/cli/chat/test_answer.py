"""One answer, read from events."""

from __future__ import annotations

import pytest

from mmserve.cli.chat.answer import Answer, printable
from mmserve.client.completions import Finished, Reasoning, Text


def test_pieces_are_passed_on_and_kept() -> None:
    printed: list[str] = []
    thought: list[str] = []
    answer = Answer()
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    events = iter([Reasoning("hm"), Text("A "), Text("cat."), Finished("stop", usage)])
    answer.read(events, printed.append, thought.append)
    assert (printed, thought) == (["A ", "cat."], ["hm"])
    assert (answer.text, answer.reasoning, answer.reason) == ("A cat.", "hm", "stop")
    assert 0 < answer.ttft_s <= answer.end_s
    assert "7 tokens in the prompt, 4 of them cached, 3 in the answer" in answer.stats()


def test_what_has_come_before_an_interruption_is_kept() -> None:
    answer = Answer()

    def events():
        yield Text("A ")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        answer.read(events(), lambda text: None)
    assert (answer.text, answer.reason) == ("A ", "")
    assert answer.end_s > 0


@pytest.mark.parametrize(
    "attack", ["\x1b]52;c;ZXZpbA==\x07", "\x1b[2J", "\x9b31m", "\x1b]8;;http://evil\x1b\\click", "\r\x08\x7f\x00"]
)
def test_an_answer_cannot_command_the_terminal(attack: str) -> None:
    printed: list[str] = []
    Answer().read(iter([Text(f"a{attack}b\n\tc"), Finished("stop")]), printed.append)
    assert all(character in "\n\t" or character.isprintable() for character in "".join(printed))
    assert printable("ä\n\tß 中 🙂") == "ä\n\tß 中 🙂"
