// The events of one streamed answer, joined. Pure.

import { ApiError, errorIn } from "../shared/api.ts";
import type { Status, Timing, Usage } from "./model.ts";

/** What has arrived of an answer. It is complete only after its finish reason: a cut connection looks like an end. */
export class Answer {
  text = "";
  reasoning = "";
  finish = "";
  model = "";
  usage: Usage | undefined;
  timing: Timing | undefined;

  /** Take the data of one event. Throws ApiError if it is an error. */
  take(data: string): void {
    if (data === "[DONE]") return;
    const error = errorIn(data, 200);
    if (error !== null) throw error;
    const chunk = parsed(data);
    this.model = chunk.model ?? this.model;
    this.usage = chunk.usage ?? this.usage;
    this.timing = chunk.timing ?? this.timing;
    const choice = chunk.choices?.[0];
    this.text += choice?.delta?.content ?? "";
    this.reasoning += choice?.delta?.reasoning_content ?? "";
    this.finish = choice?.finish_reason ?? this.finish;
  }

  /** Of an answer whose connection has ended. */
  get status(): Status {
    return this.finish ? "done" : "cut";
  }
}

interface Chunk {
  model?: string;
  choices?: { delta?: { content?: string; reasoning_content?: string }; finish_reason?: string }[];
  usage?: Usage | null;
  timing?: Timing;
}

function parsed(data: string): Chunk {
  try {
    return JSON.parse(data) as Chunk;
  } catch {
    throw new ApiError(200, "the server's answer is not JSON");
  }
}
