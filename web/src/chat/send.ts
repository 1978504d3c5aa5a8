// Sends a conversation and shows the answer while it arrives.

import { signal } from "@preact/signals";
import { ApiError, request } from "../shared/api.ts";
import { newId } from "../shared/format.ts";
import { eventsOf } from "../shared/sse.ts";
import { alert, say } from "../shared/status.ts";
import { Answer } from "./answer.ts";
import { bodyOf, OptionError, urlOf } from "./body.ts";
import { type Conversation, type Message, type Picture, titleOf } from "./model.ts";
import { change, cutAt, ensureCurrent, knownServer, messagesIn, put } from "./state.ts";

/** The first piece is shown at once, then what came in this time together. */
const REDRAW_MS = 60;
/** How often an answer is stored while it is written. */
const KEEP_MS = 1000;

/** Answers that are being written, by conversation. */
export const running = signal<ReadonlyMap<string, AbortController>>(new Map());

export function stop(conversation: string): void {
  running.value.get(conversation)?.abort();
}

/** Ask in the conversation that is shown. */
export async function ask(text: string, pictures: Picture[]): Promise<void> {
  const conversation = ensureCurrent();
  const earlier = messagesIn(conversation.id);
  const question: Message = { id: newId(), conversation: conversation.id, order: nextOrder(earlier), role: "user", text, pictures, created: Date.now() };
  put([question]);
  const title = earlier.length ? conversation.title : titleOf(text, pictures);
  await answer(change(conversation, { title, updated: Date.now() }));
}

/** Ask anew from a question on: with another text, or for another answer. */
export async function askAgain(conversation: Conversation, question: Message, text = question.text): Promise<void> {
  stop(conversation.id);
  cutAt(conversation.id, question.order + 1);
  put([{ ...question, text }]);
  const title = question.order === 0 ? titleOf(text, question.pictures) : conversation.title;
  await answer(change(conversation, { title, updated: Date.now() }));
}

async function answer(conversation: Conversation): Promise<void> {
  const asked = messagesIn(conversation.id);
  const abort = new AbortController();
  setRunning(conversation.id, abort);
  let shown: Message = {
    id: newId(), conversation: conversation.id, order: nextOrder(asked), role: "assistant", text: "", pictures: [],
    created: Date.now(), status: "waiting",
  };
  put([shown]);
  say("Answering");
  const update = (changes: Partial<Message>, keep = true) => put([(shown = { ...shown, ...changes })], keep);
  const received = new Answer();
  try {
    await stream(conversation, asked, received, abort.signal, update);
    update({ ...partsOf(received), status: received.status });
    if (received.status === "cut") alert("The connection ended before the answer was complete.");
    else say("The answer is complete.");
  } catch (error) {
    if (abort.signal.aborted) {
      update({ ...partsOf(received), status: "stopped" });
      say("Stopped.");
    } else {
      const message = described(error);
      update({ ...partsOf(received), status: "error", error: message });
      alert(message);
    }
  } finally {
    if (running.value.get(conversation.id) === abort) setRunning(conversation.id, null);
  }
}

async function stream(
  conversation: Conversation,
  asked: Message[],
  received: Answer,
  signal: AbortSignal,
  update: (changes: Partial<Message>, keep?: boolean) => void,
): Promise<void> {
  const body = await bodyOf((await knownServer()).model, conversation.options, asked, urlOf);
  const response = await request("v1/chat/completions", body, signal);
  let drawn = 0;
  let kept = Date.now();
  let timer: ReturnType<typeof setTimeout> | undefined;
  const draw = () => {
    timer = undefined;
    drawn = Date.now();
    const keep = drawn - kept > KEEP_MS;
    if (keep) kept = drawn;
    update({ ...partsOf(received), status: "streaming" }, keep);
  };
  try {
    for await (const events of eventsOf(response)) {
      for (const data of events) received.take(data);
      if (received.text || received.reasoning) timer ??= setTimeout(draw, Math.max(0, drawn + REDRAW_MS - Date.now()));
    }
  } finally {
    clearTimeout(timer);
  }
}

/** The fields of a message that the answer has by now. */
function partsOf(received: Answer): Partial<Message> {
  const { text, reasoning, finish, model, usage, timing } = received;
  return {
    text,
    ...(reasoning ? { reasoning } : {}),
    ...(finish ? { finish } : {}),
    ...(model ? { model } : {}),
    ...(usage ? { usage } : {}),
    ...(timing ? { timing } : {}),
  };
}

function described(error: unknown): string {
  if (error instanceof ApiError) return error.status > 200 ? `${error.message} (${error.status}${error.kind ? ` ${error.kind}` : ""})` : error.message;
  if (error instanceof OptionError) return error.message;
  if (error instanceof TypeError) return "The connection to the server was lost.";
  return error instanceof Error ? error.message : String(error);
}

function nextOrder(list: Message[]): number {
  return (list.at(-1)?.order ?? -1) + 1;
}

function setRunning(conversation: string, abort: AbortController | null): void {
  const next = new Map(running.value);
  if (abort) next.set(conversation, abort);
  else next.delete(conversation);
  running.value = next;
}
