"""What a person does on the page, for tests."""

from __future__ import annotations

import base64
from pathlib import Path

from playwright.sync_api import Locator, Page, expect

PICTURE = (Path(__file__).parents[3] / "examples" / "picture.png").read_bytes()
"""A green circle and other shapes."""

_EVENT = """(element, {kind, files}) => {
  const data = new DataTransfer();
  for (const {name, type, base64} of files) {
    data.items.add(new File([Uint8Array.from(atob(base64), c => c.charCodeAt(0))], name, {type}));
  }
  const options = {bubbles: true, cancelable: true};
  element.dispatchEvent(kind === "paste"
    ? new ClipboardEvent("paste", {clipboardData: data, ...options})
    : new DragEvent("drop", {dataTransfer: data, ...options}));
}"""

_COPY_PICTURE = """async (base64) => {
  const bytes = Uint8Array.from(atob(base64), c => c.charCodeAt(0));
  await navigator.clipboard.write([new ClipboardItem({"image/png": new Blob([bytes], {type: "image/png"})})]);
}"""


def paste(page: Page, picture: bytes) -> None:
    """Ctrl+V with a PNG in the clipboard. The context has the permissions of MAY_PASTE."""
    page.evaluate(_COPY_PICTURE, base64.b64encode(picture).decode())
    page.get_by_label("Message").focus()
    page.keyboard.press("Control+V")


def give(page: Page, kind: str, **files: bytes) -> None:
    """A paste or drop event with files: names, with ``_`` for the dot, and contents."""
    given = [
        {"name": name.replace("_", "."), "type": "image/png", "base64": base64.b64encode(content).decode()}
        for name, content in files.items()
    ]
    page.get_by_label("Message").evaluate(_EVENT, {"kind": kind, "files": given})


def ask(page: Page, text: str) -> None:
    """Send a question, once its pictures are counted."""
    page.get_by_label("Message").fill(text)
    expect(page.get_by_role("button", name="Send", exact=True)).to_have_attribute("aria-disabled", "false")
    page.keyboard.press("Enter")


def answers(page: Page) -> Locator:
    """Those that are not being written any more."""
    return page.locator(".answer:not(.live)")


def new_chat(page: Page) -> None:
    page.get_by_role("button", name="New chat").click()
