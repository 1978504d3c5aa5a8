"""Sampling defaults from generation_config.json."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmserve.httpserver.sampling_defaults import SamplingDefaults, read_sampling_defaults


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, SamplingDefaults()),
        ("not json", SamplingDefaults()),
        ('{"eos_token_id": 2, "transformers_version": "5"}', SamplingDefaults()),
        ('{"temperature": 0.6, "top_p": 0.9, "top_k": null}', SamplingDefaults(temperature=0.6, top_p=0.9)),
        ('{"do_sample": true, "top_k": 20}', SamplingDefaults(top_k=20)),
        ('{"do_sample": false}', SamplingDefaults(temperature=0.0)),
        ('{"do_sample": false, "temperature": 0.6}', SamplingDefaults(temperature=0.0)),
        ('{"max_new_tokens": 512, "max_length": 20}', SamplingDefaults(max_tokens=512)),
        ('{"temperature": 0.6, "max_new_tokens": 0}', SamplingDefaults()),
        ('{"repetition_penalty": 1.05, "min_p": 0.1}', SamplingDefaults(repetition_penalty=1.05, min_p=0.1)),
    ],
)
def test_only_values_set_in_generation_config_are_used(tmp_path: Path, content: str | None, expected: object) -> None:
    if content is not None:
        (tmp_path / "generation_config.json").write_text(content)
    assert read_sampling_defaults(str(tmp_path)) == expected
