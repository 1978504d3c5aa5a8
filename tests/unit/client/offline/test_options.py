"""Keyword arguments of LLM as arguments of mmserve serve."""

from __future__ import annotations

import pytest

from mmserve.client.offline.options import checked
from mmserve.config.options import OptionError


def test_options_become_flags() -> None:
    config, arguments = checked(
        {
            "max_num_seqs": 7,
            "prefault": True,
            "jump_forward": False,
            "allowed_media_domains": ["a.example", "b.example"],
            "mm_processor_kwargs": {"size": 3},
            "max_model_len": None,
        }
    )
    assert config.max_num_seqs == 7
    assert arguments == [
        *("--max-num-seqs", "7", "--prefault", "--no-jump-forward"),
        *("--allowed-media-domains", "a.example,b.example", "--mm-processor-kwargs", '{"size": 3}'),
    ]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_num_seq": 3}, "max_num_seq is no option; did you mean max_num_seqs?"),
        ({"max-num-seqs": 3}, "max-num-seqs is no option"),
        ({"tp": 0}, "tp must be a whole number from 1 to 64"),
        ({"port": 8000}, "port is not an option of LLM"),
        ({"api_key": "x"}, "api_key is not an option of LLM"),
    ],
)
def test_an_option_that_cannot_work_is_refused(options: dict[str, object], says: str) -> None:
    with pytest.raises(OptionError, match=says.replace("?", r"\?")):
        checked(options)


def test_the_environment_counts_as_for_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMSERVE_MAX_NUM_SEQS", "5")
    assert checked({})[0].max_num_seqs == 5
    assert checked({"max_num_seqs": 6})[0].max_num_seqs == 6
