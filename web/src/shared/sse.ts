// Server-sent events out of the body of a response.

/** Takes text in pieces of any size, and gives the data of each event that is complete. */
export class SseParser {
  #rest = "";
  #data: string[] = [];

  push(text: string): string[] {
    const complete: string[] = [];
    const lines = (this.#rest + text).split("\n");
    this.#rest = lines.pop() ?? "";
    for (const raw of lines) {
      const line = raw.endsWith("\r") ? raw.slice(0, -1) : raw;
      if (line === "") {
        if (this.#data.length) complete.push(this.#data.join("\n"));
        this.#data = [];
      } else if (line.startsWith("data:")) {
        this.#data.push(line.slice(line.startsWith("data: ") ? 6 : 5));
      }
    }
    return complete;
  }
}

/** The data of each event of a response, in lists of those that arrived together. */
export async function* eventsOf(response: Response): AsyncGenerator<string[]> {
  if (response.body === null) return;
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  const parser = new SseParser();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    yield parser.push(decoder.decode(value, { stream: true }));
  }
}
