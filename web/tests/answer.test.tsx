import assert from "node:assert/strict";
import { test } from "node:test";
import { Answer } from "../src/chat/answer.ts";
import { partsOf, tokensPerSecond } from "../src/chat/timing.ts";
import { ApiError } from "../src/shared/api.ts";

const chunk = (delta: object, rest: object = {}) => JSON.stringify({ model: "m", choices: [{ index: 0, delta, ...rest }] });

test("pieces are joined, and the last event brings usage and timing", () => {
  const answer = new Answer();
  answer.take(chunk({ role: "assistant", content: "" }));
  answer.take(chunk({ reasoning_content: "hm" }));
  answer.take(chunk({ content: "gre" }));
  answer.take(chunk({ content: "en" }));
  assert.equal(answer.status, "cut");
  answer.take(chunk({}, { finish_reason: "stop" }));
  const timing = { ttft_ms: 5, total_ms: 25, stages_ms: { decode: 20 } };
  const usage = { prompt_tokens: 9, completion_tokens: 3 };
  answer.take(JSON.stringify({ model: "m", choices: [], usage, timing }));
  answer.take("[DONE]");
  const { text, reasoning, finish, status } = answer;
  assert.deepEqual({ text, reasoning, finish, status }, { text: "green", reasoning: "hm", finish: "stop", status: "done" });
  assert.deepEqual([answer.usage, answer.timing], [usage, timing]);
  assert.equal(tokensPerSecond({ usage, timing } as never), 100);
});

test("a stream that ends without a finish reason is cut", () => {
  const answer = new Answer();
  answer.take(chunk({ content: "gre" }));
  answer.take("[DONE]");
  assert.equal(answer.status, "cut");
});

test("an error in the stream is raised with the server's words", () => {
  const error = JSON.stringify({ error: { message: "the request was not answered within 5 s", type: "timeout", param: null, code: "deadline" } });
  assert.throws(() => new Answer().take(error), (thrown) => thrown instanceof ApiError && thrown.message.includes("within 5 s") && thrown.kind === "deadline");
  assert.throws(() => new Answer().take("{"), ApiError);
});

test("the server's stages are grouped, and a part of another one is not counted twice", () => {
  const parts = partsOf({ body: 1, fetch: 2, hash: 3, alloc: 4, write: 3, image_decode: 5, encode: 6, queue: 0, decode: 8 });
  assert.deepEqual(parts.map(({ name, ms }) => [name, ms]), [["read", 3], ["hash", 3], ["alloc", 4], ["encode", 11], ["decode", 8]]);
});
