// The conversations in this browser.

import { signal } from "@preact/signals";
import { useRef } from "preact/hooks";
import { CloseIcon, Mark, NewChatIcon, TrashIcon } from "../shared/icons.tsx";
import { say } from "../shared/status.ts";
import { notKept } from "./database.ts";
import { focusRequested } from "./Composer.tsx";
import { running, stop } from "./send.ts";
import { conversations, currentId, open, remove } from "./state.ts";

/** On a narrow screen the list lies over the page. */
export const sidebarOpen = signal(false);

function show(id: string): void {
  void open(id);
  sidebarOpen.value = false;
  focusRequested.value += 1;
}

export function Sidebar() {
  return (
    <>
      {sidebarOpen.value && <div class="backdrop" onClick={() => (sidebarOpen.value = false)} />}
      <aside class={sidebarOpen.value ? "sidebar open" : "sidebar"} aria-label="Conversations">
        <div class="brand">
          <Mark /><span>mmserve</span>
          <button type="button" class="icon-button only-narrow" aria-label="Close the list" onClick={() => (sidebarOpen.value = false)}><CloseIcon /></button>
        </div>
        <button type="button" class="new" onClick={() => show("")}><NewChatIcon />New chat</button>
        <nav aria-label="Conversations"><ConversationList /></nav>
        <p class="note">{notKept.value || "Chats are kept in this browser only."}</p>
      </aside>
    </>
  );
}

function ConversationList() {
  const element = useRef<HTMLUListElement>(null);
  const onRemove = (id: string, index: number) => {
    stop(id);
    remove(id);
    say("The conversation is deleted.");
    // The focus goes on to the next one, or back to the question.
    requestAnimationFrame(() => {
      const left = element.current?.querySelectorAll<HTMLButtonElement>(".title") ?? [];
      if (left.length) left[Math.min(index, left.length - 1)]?.focus();
      else focusRequested.value += 1;
    });
  };
  return (
    <ul ref={element}>
      {conversations.value.map((one, index) => (
        <li key={one.id} class={one.id === currentId.value ? "current" : undefined}>
          <button type="button" class="title" aria-current={one.id === currentId.value ? "page" : undefined} title={one.title}
            onClick={() => show(one.id)}>
            {running.value.has(one.id) && <span class="dot" role="img" aria-label="answering" />}
            <bdi>{one.title}</bdi>
          </button>
          <button type="button" class="icon-button small" aria-label={`Delete ${one.title}`} title="Delete" onClick={() => onRemove(one.id, index)}><TrashIcon /></button>
        </li>
      ))}
    </ul>
  );
}
