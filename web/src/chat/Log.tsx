// The conversation. It follows the answer until the reader scrolls up.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { DownIcon } from "../shared/icons.tsx";
import { editLast, focusRequested } from "./Composer.tsx";
import { MessageView } from "./Message.tsx";
import { isLive } from "./model.ts";
import { currentId, messages, options } from "./state.ts";
import { Welcome } from "./Welcome.tsx";
import { whole } from "./whole.ts";

/** The end counts as seen when it is this near, in pixels. */
const NEAR_END = 60;

export function Log() {
  const element = useRef<HTMLDivElement>(null);
  const [atEnd, setAtEnd] = useState(true);
  const [editing, setEditing] = useState<string | null>(null);
  const shown = messages.value;
  const live = shown.some(isLive);

  useEditLast(setEditing);
  useLayoutEffect(() => {
    if (atEnd) scrollToEnd(element.current);
  }, [shown, atEnd]);
  useEffect(() => {
    setAtEnd(true);
    setEditing(null);
  }, [currentId.value]);
  // A question of one's own is always shown.
  const last = shown.at(-1);
  useEffect(() => {
    if (last?.status === "waiting") setAtEnd(true);
  }, [last?.id]);

  return (
    <>
      <div
        ref={element}
        class="log"
        role="log"
        aria-label="Conversation"
        aria-live="off"
        aria-busy={live}
        tabIndex={0}
        onScroll={(event) => {
          const { scrollHeight, scrollTop, clientHeight } = event.currentTarget;
          setAtEnd(scrollHeight - scrollTop - clientHeight < NEAR_END);
        }}
      >
        <div class="column">
          {!shown.length && <Welcome />}
          {shown.length > 0 && options.value.system.trim() && <p class="system"><b>System</b> {options.value.system}</p>}
          {shown.map((message) => (
            <MessageView key={message.id} message={whole.value && isLive(message) ? { ...message, text: "", status: "waiting" } : message} editing={editing === message.id} onEdit={setEditing} />
          ))}
        </div>
      </div>
      {!atEnd && shown.length > 0 && (
        <button type="button" class="to-end" aria-label="To the end" title="To the end" onClick={() => (setAtEnd(true), (focusRequested.value += 1))}><DownIcon /></button>
      )}
    </>
  );
}

/** Up in the empty box edits the last question. */
function useEditLast(setEditing: (id: string) => void): void {
  const seen = useRef(editLast.value);
  useEffect(() => {
    if (seen.current === editLast.value) return;
    seen.current = editLast.value;
    const question = messages.value.findLast((one) => one.role === "user");
    if (question) setEditing(question.id);
  }, [editLast.value]);
}

function scrollToEnd(element: HTMLDivElement | null): void {
  if (element) element.scrollTop = element.scrollHeight;
}
