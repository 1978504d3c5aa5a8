import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { test } from "node:test";
import { bodyOf, OptionError, sampling } from "../src/chat/body.ts";
import { DEFAULT_OPTIONS, type Message } from "../src/chat/model.ts";
import { curl, python } from "../src/chat/snippets.ts";

const NAME = "it's $(rm -rf) \"a\".png";
const message = (role: "user" | "assistant", text: string, pictures: Message["pictures"] = []): Message =>
  ({ id: role + text, conversation: "c", order: 0, role, text, pictures, created: 0 });
const PICTURE = { id: "p", name: NAME, blob: new Blob(["x"], { type: "image/png" }) };
const CHAT = [message("user", "What's in it? `id`", [PICTURE]), message("assistant", "a \"dog\""), message("user", "sure?\nreally")];

test("a body has the system prompt, the pictures before their question, and only options that are set", async () => {
  const options = { ...DEFAULT_OPTIONS, system: "Be short.", temperature: "0", seed: " 7 " };
  const body = await bodyOf("m", options, [...CHAT, message("assistant", "")], async () => "data:image/png;base64,eA==");
  assert.deepEqual(body, {
    model: "m",
    messages: [
      { role: "system", content: "Be short." },
      { role: "user", content: [{ type: "image_url", image_url: { url: "data:image/png;base64,eA==" } }, { type: "text", text: "What's in it? `id`" }] },
      { role: "assistant", content: 'a "dog"' },
      { role: "user", content: "sure?\nreally" },
    ],
    temperature: 0,
    seed: 7,
    stream: true,
    stream_options: { include_usage: true, include_timing: true },
  });
});

test("an option that cannot be sent is named", () => {
  const refused = (changes: object, option: string) =>
    assert.throws(() => sampling({ ...DEFAULT_OPTIONS, ...changes }), (error) => error instanceof OptionError && error.option === option);
  refused({ temperature: "warm" }, "temperature");
  refused({ maxTokens: "1e999" }, "maxTokens");
  refused({ schema: "{" }, "schema");
  refused({ schema: "[]" }, "schema");
  assert.deepEqual(sampling(DEFAULT_OPTIONS), {});
});

test("the shell gives curl the same body, with the picture's file and no key", async () => {
  const made = await curl("http://127.0.0.1:8000/", "m", { ...DEFAULT_OPTIONS, temperature: "0" }, CHAT, true);
  assert.match(made, /-H "Authorization: Bearer \$MMSERVE_API_KEY"/);
  // In place of the picture's file its name is read, and what curl would send is shown.
  const run = made.replace(/< ('(?:[^']|'\\'')*')/g, "<<< $1");
  const shown = execFileSync("bash", ["-c", `curl() { cat; }; ${run}`], { encoding: "utf8" });
  const body = JSON.parse(shown);
  assert.equal(body.temperature, 0);
  assert.equal(body.messages[0].content[0].image_url.url, `data:image/png;base64,${btoa(`${NAME}\n`)}`);
  assert.equal(body.messages[0].content[1].text, "What's in it? `id`");
  assert.equal(body.messages[2].content, "sure?\nreally");
});

test("Python reads the picture's file and the key from the environment", async () => {
  const options = { ...DEFAULT_OPTIONS, schema: '{"type": "object", "additionalProperties": false}' };
  const made = await python("http://127.0.0.1:8000/", "m", options, CHAT, true);
  assert.match(made, /base_url="http:\/\/127\.0\.0\.1:8000\/v1", api_key=os\.environ\["MMSERVE_API_KEY"\]/);
  assert.match(made, /picture\("it's \$\(rm -rf\) \\"a\\"\.png", "image\/png"\)/);
  assert.match(made, /"additionalProperties": False/);
  execFileSync("python3", ["-c", "import ast, sys; ast.parse(sys.stdin.read())"], { input: made });
  assert.doesNotMatch(await python("http://h/", "m", DEFAULT_OPTIONS, [message("user", "hi")], false), /environ|Path/);
});
