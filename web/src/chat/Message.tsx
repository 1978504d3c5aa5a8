// One message of the conversation, and what can be done with it.

import { memo } from "preact/compat";
import { useEffect, useRef, useState } from "preact/hooks";
import { copy } from "../shared/clipboard.ts";
import { CheckIcon, CodeIcon, CopyIcon, PenIcon, RetryIcon, WarningIcon } from "../shared/icons.tsx";
import { Markdown } from "../shared/markdown.tsx";
import { focusRequested } from "./Composer.tsx";
import { isLive, type Message } from "./model.ts";
import { Pictures } from "./Pictures.tsx";
import { askAgain } from "./send.ts";
import { snippetOf } from "./SnippetDialog.tsx";
import { current, messages } from "./state.ts";
import { Timing } from "./Timing.tsx";

interface Props {
  message: Message;
  editing: boolean;
  onEdit: (id: string | null) => void;
}

export const MessageView = memo(({ message, editing, onEdit }: Props) =>
  message.role === "user" ? <Question message={message} editing={editing} onEdit={onEdit} /> : <AnswerView message={message} />,
);

function Question({ message, editing, onEdit }: Props) {
  return (
    <article class="message question" aria-label="You">
      <Pictures pictures={message.pictures} />
      {editing ? <Editor message={message} onDone={() => onEdit(null)} /> : message.text && <div class="bubble">{message.text}</div>}
      {!editing && (
        <div class="actions">
          <CopyButton text={message.text} />
          <button type="button" class="icon-button small" aria-label="Edit and resend" title="Edit and resend" onClick={() => onEdit(message.id)}><PenIcon /></button>
        </div>
      )}
    </article>
  );
}

function Editor({ message, onDone }: { message: Message; onDone: () => void }) {
  const [text, setText] = useState(message.text);
  const box = useRef<HTMLTextAreaElement>(null);
  useEffect(() => {
    box.current?.focus();
    box.current?.setSelectionRange(text.length, text.length);
  }, []);
  const done = () => {
    onDone();
    focusRequested.value += 1;
  };
  const send = () => {
    done();
    if (current.value && (text.trim() || message.pictures.length)) void askAgain(current.value, message, text.trim());
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.isComposing) return;
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      send();
    } else if (event.key === "Escape") {
      event.stopPropagation();
      done();
    }
  };
  return (
    <div class="editor">
      <textarea ref={box} value={text} rows={Math.min(8, text.split("\n").length + 1)} aria-label="Edited message" onInput={(event) => setText(event.currentTarget.value)} onKeyDown={onKeyDown} />
      <div class="row">
        <button type="button" class="quiet" onClick={done}>Cancel</button>
        <button type="button" class="primary" onClick={send}>Send again</button>
      </div>
    </div>
  );
}

function AnswerView({ message }: { message: Message }) {
  const live = isLive(message);
  return (
    <article class={live ? "message answer live" : "message answer"} aria-label="Answer" aria-busy={live}>
      {message.reasoning && (
        <details class="reasoning">
          <summary>{live && !message.text ? "Thinking…" : "Thoughts"}</summary>
          <Markdown text={message.reasoning} />
        </details>
      )}
      {message.status === "waiting" && <div class="waiting" aria-hidden="true"><i /><i /><i /></div>}
      <div class="markdown"><Markdown text={message.text} /></div>
      <Ending message={message} />
      {!live && <Timing message={message} />}
      {!live && <AnswerActions message={message} />}
    </article>
  );
}

/** Why the answer is not whole, if it is not. */
function Ending({ message }: { message: Message }) {
  if (message.status === "stopped") return <p class="ending">Stopped.</p>;
  if (message.status === "cut") return <p class="ending failed"><WarningIcon />The connection ended before the answer was complete.</p>;
  if (message.status === "error") return <p class="ending failed"><WarningIcon /><span>{message.error}</span></p>;
  return null;
}

function AnswerActions({ message }: { message: Message }) {
  const question = messages.value.findLast((one) => one.role === "user" && one.order < message.order);
  const retry = () => current.value && question && void askAgain(current.value, question);
  return (
    <div class="actions">
      <CopyButton text={message.text} />
      <button type="button" class="icon-button small" aria-label="Ask again" title="Ask again" onClick={retry}><RetryIcon /></button>
      <button type="button" class="icon-button small" aria-label="Copy as curl or Python" title="Copy as curl or Python" onClick={() => (snippetOf.value = message)}><CodeIcon /></button>
    </div>
  );
}

function CopyButton({ text }: { text: string }) {
  const [copied, setCopied] = useState(false);
  const onClick = async () => {
    setCopied(await copy(text));
    setTimeout(() => setCopied(false), 1500);
  };
  return (
    <button type="button" class="icon-button small" aria-label={copied ? "Copied" : "Copy"} title="Copy" onClick={onClick}>
      {copied ? <CheckIcon /> : <CopyIcon />}
    </button>
  );
}
