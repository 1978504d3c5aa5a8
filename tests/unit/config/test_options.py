"""Options: a flag overrides the environment, the file and the default; errors name the option."""

from __future__ import annotations

import contextlib
import importlib.util
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmserve.config.config import Config
from mmserve.config.options import OPTIONS, OptionError, resolve


def _file(tmp_path: Path, text: str, name: str = "options.yaml") -> str:
    (tmp_path / name).write_text(text)
    return str(tmp_path / name)


def test_defaults() -> None:
    assert resolve({}, {}, None) == Config()


def test_every_field_has_a_flag_a_group_a_help_line_and_a_variable() -> None:
    assert list(OPTIONS) == list(Config.__struct_fields__)
    for option in OPTIONS.values():
        assert option.group
        assert option.help
        assert option.flag == "--" + option.name.replace("_", "-")
        assert option.env == "MMSERVE_" + option.name.upper()


def test_precedence(tmp_path: Path) -> None:
    file = _file(tmp_path, "tp: 2\nport: 1\nseed: 1\nhost: 0.0.0.0")
    config = resolve({"seed": "3"}, {"MMSERVE_PORT": "2", "MMSERVE_SEED": "2"}, file)
    assert (config.host, config.tp, config.port, config.seed) == ("0.0.0.0", 2, 2, 3)


def test_toml_and_dashes(tmp_path: Path) -> None:
    file = _file(tmp_path, 'max-num-seqs = 7\nallowed_media_domains = ["a.org", "b.org"]', "options.toml")
    config = resolve({}, {}, file)
    assert config.max_num_seqs == 7
    assert config.allowed_media_domains == ("a.org", "b.org")


def test_the_file_can_be_named_by_the_environment(tmp_path: Path) -> None:
    assert resolve({}, {"MMSERVE_CONFIG": _file(tmp_path, "tp: 4")}, None).tp == 4


def test_an_empty_file_and_null_values_say_nothing(tmp_path: Path) -> None:
    assert resolve({}, {}, _file(tmp_path, "")) == Config()
    assert resolve({}, {}, _file(tmp_path, "max_model_len: null")) == Config()


@pytest.mark.parametrize(("text", "value"), [("true", True), ("false", False), ("1", True), ("0", False)])
def test_booleans_from_the_environment(text: str, value: bool) -> None:
    assert resolve({}, {"MMSERVE_ENABLE_CONCURRENT_ALLOC": text}, None).enable_concurrent_alloc is value


def test_lists_from_flags_are_split_at_commas() -> None:
    assert resolve({"allowed_media_domains": "a.org, b.org,"}, {}, None).allowed_media_domains == ("a.org", "b.org")


@pytest.mark.parametrize(
    ("environ", "text", "says"),
    [
        ({"MMSERVE_MAX_NUM_SEQ": "1"}, "", "MMSERVE_MAX_NUM_SEQ is no option; did you mean MMSERVE_MAX_NUM_SEQS?"),
        ({"MMSERVE_PORT_NUMBER": "1"}, "", "MMSERVE_PORT_NUMBER is no option; did you mean MMSERVE_PORT?"),
        (
            {"MMSERVE_SEED": str(2**63)},
            "",
            "MMSERVE_SEED=9223372036854775808: seed must be a whole number from 0 to 9,223",
        ),
        ({"MMSERVE_KV_CACHE_GB": "1e308"}, "", "MMSERVE_KV_CACHE_GB=1e308: kv_cache_gb must be"),
        ({"MMSERVE_TP": "x"}, "", "MMSERVE_TP=x: tp must be a whole number from 1 to 64"),
        ({}, "prot: 80", "prot is no option; did you mean port?"),
        ({}, "tp: 0", "tp: 0: tp must be a whole number from 1 to 64"),
        ({}, "tp: [1]", "tp must be a whole number"),
        ({}, "- tp", "must hold one 'option: value' a line"),
        ({}, "tp: {", "cannot be read"),
    ],
)
def test_an_invalid_option_is_named_in_one_line(environ: dict[str, str], text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError) as refused:
        resolve({}, environ, _file(tmp_path, text))
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_api_key_is_not_repeated_in_errors() -> None:
    with pytest.raises(OptionError) as refused:
        resolve({}, {"MMSERVE_API_KEY": ""}, None)
    assert "MMSERVE_API_KEY=..." in str(refused.value)


@pytest.mark.parametrize("name", ["missing.yaml", "options.json", "."])
def test_a_file_that_cannot_be_used_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "options.json").write_text("{}")
    with pytest.raises(OptionError, match="--config"):
        resolve({}, {}, str(tmp_path / name))


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"max_num_batched_tokens": "64", "max_num_seqs": "65"}, "raise it or lower the other"),
        ({"port": "9000", "health_port": "9000"}, "choose another"),
        ({"allowed_local_media_path": "/no/such/place"}, "is not a directory"),
        ({"concurrent_alloc_fraction": "0.5", "enable_concurrent_alloc": False}, "leave one of them out"),
        ({"fault_injection": True, "host": "0.0.0.0"}, "on this machine"),
        ({"fault_injection": True, "host": "server.example"}, "on this machine"),
    ],
)
def test_combinations_that_cannot_work(flags: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        resolve(flags, {}, None)


@pytest.mark.parametrize("written", ["8", "image=8", "image = 8, video=0", '{"image": 8, "video": 0}', '{"image":8}'])
def test_the_limit_of_images_is_taken_as_other_servers_write_it(written: str, tmp_path: Path) -> None:
    assert resolve({"limit_mm_per_prompt": written}, {}, None).limit_mm_per_prompt == 8
    file = tmp_path / "config.yaml"
    file.write_text("limit-mm-per-prompt: {image: 8}\n")
    assert resolve({}, {}, str(file)).limit_mm_per_prompt == 8


@pytest.mark.parametrize("written", ["video=1", "image=8,video=1", "image=x", "image", "{", '{"image": -1}', "{}"])
def test_other_limits_of_media_are_refused(written: str) -> None:
    with pytest.raises(OptionError, match=r"limit_mm_per_prompt must be .*image=8"):
        resolve({"limit_mm_per_prompt": written}, {}, None)


def test_settings_of_the_image_processor_are_a_json_object(tmp_path: Path) -> None:
    expected = {"max_pixels": 5, "size": {"longest_edge": 9}}
    text = '{"max_pixels": 5, "size": {"longest_edge": 9}}'
    assert resolve({"mm_processor_kwargs": text}, {}, None).mm_processor_kwargs == expected
    assert resolve({}, {"MMSERVE_MM_PROCESSOR_KWARGS": text}, None).mm_processor_kwargs == expected
    file = tmp_path / "options.yaml"
    file.write_text("mm_processor_kwargs: {max_pixels: 5, size: {longest_edge: 9}}\n")
    assert resolve({}, {}, str(file)).mm_processor_kwargs == expected
    for wrong in ("", "max_pixels", "[1]", '{"a": 1'):
        with pytest.raises(OptionError, match="must be a JSON object"):
            resolve({"mm_processor_kwargs": wrong}, {}, None)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_faults_may_be_injected_on_loopback(host: str) -> None:
    assert resolve({"fault_injection": True, "host": host}, {}, None).fault_injection


def test_a_hash_whose_package_is_missing_gets_an_error_with_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert resolve({"mm_hash": "sha256"}, {}, None).mm_hash == "sha256"
    with pytest.raises(OptionError, match=r"pip install 'mmserve\[blake3\]', or choose sha256"):
        resolve({"mm_hash": "blake3"}, {}, None)


def test_a_receiver_of_traces_needs_packages_and_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("localhost:4318", "ftp://localhost", "http://", "http://[::1", "http://localhost:port"):
        with pytest.raises(OptionError, match="--otlp-traces-endpoint is no URL of HTTP"):
            resolve({"otlp_traces_endpoint": text}, {}, None)

    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    for find_spec in (missing, lambda name: None):
        monkeypatch.setattr(importlib.util, "find_spec", find_spec)
        with pytest.raises(OptionError, match=r"pip install 'mmserve\[otel\]'"):
            resolve({"otlp_traces_endpoint": "http://localhost:4318"}, {}, None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    for text in ("http://localhost:4318", "https://collector.example/otlp/v1/traces"):
        assert resolve({"otlp_traces_endpoint": text}, {}, None).otlp_traces_endpoint == text


def test_a_fraction_is_from_0_to_1() -> None:
    for text in ("0", "0.25", "1"):
        assert resolve({"concurrent_alloc_fraction": text}, {}, None).concurrent_alloc_fraction == float(text)
    for text in ("-0.1", "1.01", "nan", "half"):
        with pytest.raises(OptionError, match="must be a number from 0 to 1"):
            resolve({"concurrent_alloc_fraction": text}, {}, None)


@given(st.dictionaries(st.sampled_from(sorted(OPTIONS)), st.text(max_size=8)))
def test_any_text_is_taken_or_refused(flags: dict[str, str]) -> None:
    with contextlib.suppress(OptionError):
        assert isinstance(resolve(flags, {}, None), Config)


def test_a_kubernetes_service_of_our_name_is_no_option() -> None:
    """Its address comes in variables of every container in the namespace."""
    linked = {
        "MMSERVE_SERVICE_HOST": "10.0.0.1",
        "MMSERVE_SERVICE_PORT": "8000",
        "MMSERVE_SERVICE_PORT_HTTP": "8000",
        "MMSERVE_PORT": "tcp://10.0.0.1:8000",
        "MMSERVE_PORT_8000_TCP": "tcp://10.0.0.1:8000",
        "MMSERVE_PORT_8000_TCP_PROTO": "tcp",
        "MMSERVE_PORT_8000_TCP_PORT": "8000",
        "MMSERVE_PORT_8000_TCP_ADDR": "10.0.0.1",
        "MMSERVE_HTTP_SERVICE_HOST": "10.0.0.2",
        "MMSERVE_HEALTH_PORT": "tcp://10.0.0.3:81",
        "MMSERVE_SVC_PORT_80_UDP_ADDR": "10.0.0.4",
    }
    assert resolve({}, linked | {"MMSERVE_SEED": "7"}, None) == resolve({"seed": "7"}, {}, None)


def test_a_list_of_numbers_may_be_written_with_commas() -> None:
    option = OPTIONS["visual_devices"]
    assert option.parse("1, 2", "here") == (1, 2)
    for wrong in ("a", "-1", "1.5"):
        with pytest.raises(OptionError, match="here: visual_devices must be a list of whole numbers"):
            option.parse(wrong, "here")
