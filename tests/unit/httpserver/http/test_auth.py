"""The API key: where it may stand, and which paths need it."""

from __future__ import annotations

import pytest

from mmserve.httpserver.http.auth import ApiKeyAuth
from mmserve.runtime.errors import Unauthorized


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer secret"},
        {"authorization": "bearer  secret "},
        {"x-api-key": "secret"},
    ],
)
def test_the_key_is_accepted_in_either_header(headers: dict[str, str]) -> None:
    ApiKeyAuth("secret").check("/v1/models", headers)


@pytest.mark.parametrize(
    "headers", [{}, {"authorization": "Bearer no"}, {"authorization": "Basic secret"}, {"x-api-key": ""}]
)
def test_without_the_key_only_probes_are_accepted(headers: dict[str, str]) -> None:
    auth = ApiKeyAuth("secret")
    for path in ("/v1/models", "/metrics", "/docs", "/health/x"):
        with pytest.raises(Unauthorized):
            auth.check(path, headers)
    for path in ("/health", "/live", "/ready"):
        auth.check(path, headers)
    ApiKeyAuth(None).check("/v1/models", headers)
