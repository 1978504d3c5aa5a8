// Where a question is written: its text, its pictures, send and stop.

import { signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { plural, visible } from "../shared/format.ts";
import { LinkIcon, PictureIcon, SendIcon, StopIcon } from "../shared/icons.tsx";
import { alert } from "../shared/status.ts";
import { attached, attachFiles, attachUrl, detach, filesOf, isChecked } from "./attachments.ts";
import { draftOf, keepDraft } from "./drafts.ts";
import { Pictures } from "./Pictures.tsx";
import { ask, running, stop } from "./send.ts";
import { currentId, server } from "./state.ts";

/** Set to put the focus back into the box. */
export const focusRequested = signal(0);
/** Set by Up in an empty box: the last question is to be edited. */
export const editLast = signal(0);

export function Composer() {
  const [text, setText] = useState("");
  const box = useRef<HTMLTextAreaElement>(null);
  const busy = running.value.has(currentId.value);
  const blocked = whyBlocked(text);
  useLayoutEffect(() => setText(draftOf(currentId.value)), [currentId.value]);
  useLayoutEffect(() => fit(box.current), [text]);
  useEffect(() => box.current?.focus(), [focusRequested.value]);

  // At once: the page may be closed before an effect runs.
  const write = (changed: string) => {
    setText(changed);
    keepDraft(currentId.value, changed);
  };

  const send = () => {
    if (busy) return;
    if (blocked) return void (blocked === EMPTY || alert(blocked));
    const pictures = attached.value;
    attached.value = [];
    write("");
    void ask(text.trim(), pictures);
    box.current?.focus();
  };

  const onKeyDown = (event: KeyboardEvent) => {
    if (event.isComposing) return;
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      send();
    } else if (event.key === "ArrowUp" && !text && !attached.value.length) {
      event.preventDefault();
      editLast.value += 1;
    }
  };

  const onPaste = (event: ClipboardEvent) => {
    const files = event.clipboardData ? filesOf(event.clipboardData) : [];
    if (!files.length) return;
    event.preventDefault();
    attachFiles(files);
  };

  return (
    <form class="composer" onSubmit={(event) => (event.preventDefault(), send())} aria-label="Question">
      <Pictures pictures={attached.value} onRemove={(id) => (detach(id), box.current?.focus())} />
      <textarea
        ref={box}
        rows={1}
        value={text}
        placeholder={server.value?.max_images === null ? "Ask something" : "Ask something, or paste a picture"}
        aria-label="Message"
        onInput={(event) => write(event.currentTarget.value)}
        onKeyDown={onKeyDown}
        onPaste={onPaste}
      />
      <div class="row">
        <AttachButtons />
        <span class="hint" aria-hidden="true">{pictureTokens()}</span>
        {busy ? (
          <button type="button" class="send" aria-label="Stop" title="Stop (Esc)" onClick={() => stop(currentId.value)}><StopIcon /></button>
        ) : (
          <button type="submit" class="send" aria-label="Send" title="Send (Enter)" aria-disabled={Boolean(blocked)}><SendIcon /></button>
        )}
      </div>
    </form>
  );
}

function AttachButtons() {
  const files = useRef<HTMLInputElement>(null);
  const [asking, setAsking] = useState(false);
  if (server.value?.max_images === null) return <span class="hint">No pictures: this model has no eyes.</span>;
  return (
    <>
      <input
        ref={files}
        class="visually-hidden"
        type="file"
        accept="image/*"
        multiple
        aria-label="Pictures"
        tabIndex={-1}
        onChange={(event) => {
          attachFiles(event.currentTarget.files ?? []);
          event.currentTarget.value = "";
        }}
      />
      <button type="button" class="icon-button" aria-label="Add pictures" title="Add pictures" onClick={() => files.current?.click()}><PictureIcon /></button>
      <button type="button" class="icon-button" aria-label="Add a picture by its URL" title="Add a picture by its URL" aria-expanded={asking} onClick={() => setAsking(!asking)}><LinkIcon /></button>
      {asking && <UrlField onDone={() => setAsking(false)} />}
    </>
  );
}

/** Not a form of its own: it stands in the form of the question. */
function UrlField({ onDone }: { onDone: () => void }) {
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => field.current?.focus(), []);
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key !== "Enter" && event.key !== "Escape") return;
    event.preventDefault();
    event.stopPropagation();
    const url = field.current?.value.trim();
    if (event.key === "Enter" && url) attachUrl(url);
    onDone();
    focusRequested.value += 1;
  };
  return <input ref={field} class="url" type="url" placeholder="https://… then Enter; the server fetches it" aria-label="URL of a picture" onKeyDown={onKeyDown} />;
}

const EMPTY = "empty";

/** Why nothing can be sent now. */
function whyBlocked(text: string): string {
  for (const picture of attached.value) {
    if (picture.error) return `Remove ${visible(picture.name)} first: ${picture.error}`;
    if (!isChecked(picture)) return `${visible(picture.name)} is still being read.`;
  }
  return text.trim() || attached.value.length ? "" : EMPTY;
}

function pictureTokens(): string {
  const counted = attached.value.flatMap((picture) => picture.size ?? []);
  const tokens = counted.reduce((sum, size) => sum + size.tokens, 0);
  return counted.length > 1 ? `${plural(tokens, "token")} in ${counted.length} pictures` : "";
}

/** As high as its text, up to the limit of the style sheet. */
function fit(box: HTMLTextAreaElement | null): void {
  if (!box) return;
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight}px`;
}
