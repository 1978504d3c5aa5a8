import assert from "node:assert/strict";
import { test } from "node:test";
import { eventsOf, SseParser } from "../src/shared/sse.ts";

const STREAM = 'data: {"a":"é"}\n\n: a comment\r\ndata: one\r\ndata: two\r\n\r\nevent: x\ndata:three\n\ndata: unfinished\n';
const EVENTS = ['{"a":"é"}', "one\ntwo", "three"];

test("a stream cut at any byte gives the same events", async () => {
  const bytes = new TextEncoder().encode(STREAM);
  for (let at = 0; at <= bytes.length; at++) {
    const body = new ReadableStream({
      start(controller) {
        controller.enqueue(bytes.slice(0, at));
        controller.enqueue(bytes.slice(at));
        controller.close();
      },
    });
    const events: string[] = [];
    for await (const several of eventsOf(new Response(body))) events.push(...several);
    assert.deepEqual(events, EVENTS, `cut at ${at}`);
  }
});

test("events that arrive together are given together", () => {
  assert.deepEqual(new SseParser().push("data: 1\n\ndata: 2\n\ndata: 3"), ["1", "2"]);
});
