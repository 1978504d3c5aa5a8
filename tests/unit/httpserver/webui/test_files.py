"""Files of the web page: small, complete, from this server alone, and sent with the strict policy."""

from __future__ import annotations

import gzip
import re

import pytest
from starlette.requests import Request

from mmserve.httpserver.webui.files import ASSETS, PAGES, WebFiles, wants_page

MAX_NBYTES = 200_000
FILES = WebFiles.read()


def request(**headers: str) -> Request:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "GET", "path": "/", "headers": pairs})


def test_everything_a_browser_loads_is_small() -> None:
    loaded = [file for path, file in FILES.by_path.items() if not path.endswith(".txt")]
    assert sum(len(file.compressed) for file in loaded) <= MAX_NBYTES


@pytest.mark.parametrize("page", PAGES)
def test_a_page_refers_to_files_that_are_there_and_has_no_script_or_style_in_it(page: str) -> None:
    text = FILES.by_path[page].content.decode()
    references = re.findall(r'(?:src|href)="([^"]*)"', text)
    # Relative, for a server behind a proxy's path.
    assert {f"/{reference}" for reference in references} <= FILES.by_path.keys()
    assert any(reference.endswith(".js") for reference in references)
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?! type=\"module\" src=)", text)


def test_scripts_and_styles_load_nothing_from_elsewhere() -> None:
    for path, file in FILES.by_path.items():
        text = file.content.decode()
        if path.endswith((".js", ".css")):
            assert not re.search(r"@import|url\(\s*['\"]?http|importScripts|sourceMappingURL", text), path


def test_a_file_is_sent_compressed_to_who_takes_that_and_not_again_to_who_has_it() -> None:
    file = FILES.by_path[f"{ASSETS}chat.js"]
    plain, packed = file.response(request()), file.response(request(accept_encoding="br, gzip"))
    assert plain.body == file.content
    assert gzip.decompress(bytes(packed.body)) == file.content
    assert packed.headers["content-encoding"] == "gzip"
    assert len({plain.headers["etag"], packed.headers["etag"]}) == 2
    for encoding, answer in (("", plain), ("gzip", packed)):
        again = file.response(request(accept_encoding=encoding, if_none_match=f'W/"other", {answer.headers["etag"]}'))
        assert (again.status_code, again.body) == (304, b"")
        assert again.headers["etag"] == answer.headers["etag"]
    other = file.response(request(accept_encoding="gzip", if_none_match=plain.headers["etag"]))
    assert other.status_code == 200


def test_the_policy_allows_files_of_this_server_and_nothing_else() -> None:
    policy = FILES.by_path["/"].response(request()).headers["content-security-policy"]
    rules = {name: set(values) for name, *values in (rule.split() for rule in policy.split(";"))}
    assert rules["default-src"] == rules["frame-ancestors"] == rules["base-uri"] == rules["form-action"] == {"'none'"}
    assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == {"'self'"}
    assert rules["img-src"] == {"'self'", "blob:", "data:"}
    assert rules["require-trusted-types-for"] == {"'script'"}
    assert rules["trusted-types"] == {"'none'"}


def test_a_browser_wants_the_page_and_a_program_does_not() -> None:
    assert wants_page(request(accept="text/html,application/xhtml+xml,*/*;q=0.8"))
    assert not wants_page(request(accept="*/*"))
    assert not wants_page(request())
