"""API keys: where a key may stand, which paths need one, what each opens."""

from __future__ import annotations

import hmac

import pytest

from mmserve.config.api_keys import AREAS, ApiKey, digest_of
from mmserve.httpserver.http.auth import ApiKeyAuth
from mmserve.runtime.errors import Forbidden, Unauthorized

KEYS = (
    ApiKey("boss", digest_of("secret"), AREAS),
    ApiKey("alice", digest_of("secret-a"), frozenset({"api"})),
    ApiKey("prometheus", digest_of("secret-p"), frozenset({"metrics"})),
)
AUTH = ApiKeyAuth(KEYS)


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer secret"},
        {"authorization": "bearer  secret "},
        {"x-api-key": "secret"},
        {"x-api-key": "secret", "authorization": "Bearer none"},
        {"x-api-key": "secret", "authorization": "Basic none"},
    ],
)
def test_a_key_is_accepted_in_either_header(headers: dict[str, str]) -> None:
    assert AUTH.check("/v1/models", headers) == "boss"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer no"},
        {"authorization": "Basic secret"},
        {"authorization": "Bearer "},
        {"x-api-key": ""},
        {"x-api-key": "secre"},
        {"x-api-key": "secret-aa"},
        {"x-api-key": "boss"},
    ],
)
def test_without_a_key_only_probes_are_accepted(headers: dict[str, str]) -> None:
    for path in ("/v1/models", "/metrics", "/docs", "/health/x", "/admin/alloc", "//health", ""):
        with pytest.raises(Unauthorized):
            AUTH.check(path, headers)
    for path in ("/", "/health", "/live", "/ready"):
        assert AUTH.check(path, headers) is None
    assert ApiKeyAuth(()).check("/v1/models", headers) is None


def test_a_key_opens_its_areas() -> None:
    opens = {"secret-a": {"/v1/models", "/docs", "/other"}, "secret-p": {"/metrics", "/metrics/"}}
    for key, paths in opens.items():
        for path in ("/v1/models", "/docs", "/other", "/metrics", "/metrics/", "/admin/alloc", "/admin"):
            if path in paths:
                assert AUTH.check(path, {"x-api-key": key})
            else:
                with pytest.raises(Forbidden):
                    AUTH.check(path, {"x-api-key": key})


def test_a_key_is_compared_with_every_other_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """CVE-2025-59425: comparing keys with == tells how long the common prefix is."""
    compared: list[bytes] = []
    compare = hmac.compare_digest

    def counting(left: bytes, right: bytes) -> bool:
        assert len(left) == len(right) == 32
        compared.append(right)
        return compare(left, right)

    monkeypatch.setattr(hmac, "compare_digest", counting)
    for given in ("secret", "s"):
        compared.clear()
        if given == "secret":
            AUTH.check("/v1/models", {"x-api-key": given})
        else:
            with pytest.raises(Unauthorized):
                AUTH.check("/v1/models", {"x-api-key": given})
        assert compared == [key.digest for key in KEYS]
