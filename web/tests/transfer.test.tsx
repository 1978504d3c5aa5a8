import assert from "node:assert/strict";
import { test } from "node:test";
import { bytes, duration, shortened, visible } from "../src/shared/format.ts";
import { nameOf } from "../src/chat/attachments.ts";
import { titleOf } from "../src/chat/model.ts";
import { parseExport } from "../src/chat/transfer.ts";

const EXPORT = {
  format: "mmserve-conversations",
  version: 1,
  conversations: [{
    id: "old", title: "t", created: 1, updated: 2, options: { system: "s", unknown: 1, seed: 5 },
    messages: [
      { id: "a", role: "user", text: "hi", pictures: [{ name: "a.png", url: "data:image/png;base64,eA==", size: { width: 1, height: 2, tokens: 3 } }] },
      { id: "b", role: "assistant", text: "ho", pictures: [], status: "streaming", model: "m", error: { nested: true } },
      { id: "c", role: "user", text: "x", pictures: [{ name: 5, url: "javascript:alert(1)" }] },
    ],
  }],
};

test("what is imported has new ids, known fields of the right type, and no answer that is still written", () => {
  const [{ conversation, messages } = assert.fail()] = parseExport(JSON.stringify(EXPORT));
  assert.notEqual(conversation.id, "old");
  assert.deepEqual(conversation.options, { system: "s", temperature: "", maxTokens: "", seed: "", schema: "" });
  assert.deepEqual(messages.map((one) => [one.conversation === conversation.id, one.order, one.role]), [[true, 0, "user"], [true, 1, "assistant"], [true, 2, "user"]]);
  assert.deepEqual(messages[0]?.pictures[0]?.size, { width: 1, height: 2, tokens: 3 });
  assert.deepEqual([messages[1]?.status, messages[1]?.model, messages[1]?.error], ["cut", "m", undefined]);
  assert.deepEqual([messages[2]?.pictures[0]?.name, messages[2]?.pictures[0]?.url], ["picture", ""]);
});

test("a file that is something else is refused with the reason", () => {
  for (const [text, reason] of [["x", /not JSON/], ["[]", /no conversations/], ['{"format":"mmserve-conversations","version":9}', /version/], ['{"format":"mmserve-conversations","version":1,"conversations":[1]}', /damaged/]] as const) {
    assert.throws(() => parseExport(text), reason);
  }
});

test("hidden characters of a name are spelled out", () => {
  assert.equal(visible("a\u202egnp.exe"), "a‹U+202E›gnp.exe");
  assert.equal(visible("é 图.png"), "é 图.png");
});

test("numbers and names are short", () => {
  assert.deepEqual([bytes(999), bytes(1500), bytes(12_345_678)], ["999 B", "1.5 kB", "12 MB"]);
  assert.deepEqual([duration(0.25), duration(12.4), duration(1500), duration(90_000)], ["0.3 ms", "12 ms", "1.50 s", "1 min 30 s"]);
  assert.equal(shortened("abcdef", 4), "abc…");
  assert.equal(titleOf("\n first\nsecond", []), "first");
  assert.deepEqual(["https://a.example/b%20c.png?x", "https://a.example", "data:image/png;base64,x", "%"].map(nameOf), ["b c.png", "a.example", "picture", "%"]);
});
