// The chat page.

import { useEffect, useState } from "preact/hooks";
import { Announcer } from "../shared/Announcer.tsx";
import { DownloadIcon, MenuIcon, PictureIcon, SlidersIcon } from "../shared/icons.tsx";
import { KeyDialog } from "../shared/KeyDialog.tsx";
import { ThemeButton } from "../shared/ThemeButton.tsx";
import { attachFiles, filesOf } from "./attachments.ts";
import { Composer } from "./Composer.tsx";
import { Log } from "./Log.tsx";
import { EnlargedPicture } from "./Pictures.tsx";
import { running, stop } from "./send.ts";
import { Settings, settingsOpen } from "./Settings.tsx";
import { Sidebar, sidebarOpen } from "./Sidebar.tsx";
import { SnippetDialog } from "./SnippetDialog.tsx";
import { current, currentId, messages, server } from "./state.ts";
import { exportConversations } from "./transfer.ts";

export function App() {
  const dropping = useDrop();
  useEscape();
  return (
    <>
      <Sidebar />
      <main class={messages.value.length ? "chat" : "chat empty"}>
        <Header />
        <Log />
        <div class="dock">
          <Composer />
          <p class="hint keys">Enter sends · Shift+Enter breaks the line · Esc stops · Up edits the last question</p>
        </div>
      </main>
      {dropping && <div class="drop" aria-hidden="true"><PictureIcon />Drop pictures here</div>}
      <Settings />
      <SnippetDialog />
      <EnlargedPicture />
      <KeyDialog />
      <Announcer />
    </>
  );
}

function Header() {
  const conversation = current.value;
  return (
    <header class="top">
      <button type="button" class="icon-button only-narrow" aria-label="Conversations" aria-expanded={sidebarOpen.value} onClick={() => (sidebarOpen.value = true)}><MenuIcon /></button>
      <h1 class={conversation ? "" : "visually-hidden"}><bdi>{conversation?.title ?? "mmserve"}</bdi></h1>
      {server.value && <span class="model" title="Served model">{server.value.model}</span>}
      <span class="spring" />
      {conversation && <button type="button" class="icon-button" aria-label="Export this conversation" title="Export this conversation" onClick={() => void exportConversations([conversation])}><DownloadIcon /></button>}
      <ThemeButton />
      <button type="button" class="icon-button" aria-label="Settings" title="Settings" onClick={() => (settingsOpen.value = true)}><SlidersIcon /></button>
    </header>
  );
}

/** Esc stops the answer of the conversation that is shown. Dialogs take the key for themselves. */
function useEscape(): void {
  useEffect(() => {
    const onKeyDown = (event: KeyboardEvent) => {
      if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
      if (sidebarOpen.value) sidebarOpen.value = false;
      else if (running.value.has(currentId.value)) stop(currentId.value);
    };
    document.addEventListener("keydown", onKeyDown);
    return () => document.removeEventListener("keydown", onKeyDown);
  }, []);
}

/** Pictures may be dropped anywhere. Returns whether some are held over the page. */
function useDrop(): boolean {
  const [dropping, setDropping] = useState(false);
  useEffect(() => {
    const hasFiles = (event: DragEvent) => event.dataTransfer?.types.includes("Files") ?? false;
    const onOver = (event: DragEvent) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      setDropping(true);
    };
    const onLeave = (event: DragEvent) => event.relatedTarget === null && setDropping(false);
    const onDrop = (event: DragEvent) => {
      setDropping(false);
      if (!event.dataTransfer || !hasFiles(event)) return;
      event.preventDefault();
      attachFiles(filesOf(event.dataTransfer));
    };
    document.addEventListener("dragover", onOver);
    document.addEventListener("dragleave", onLeave);
    document.addEventListener("drop", onDrop);
    return () => {
      document.removeEventListener("dragover", onOver);
      document.removeEventListener("dragleave", onLeave);
      document.removeEventListener("drop", onDrop);
    };
  }, []);
  return dropping;
}
