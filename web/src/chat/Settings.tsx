// Settings of the conversation and of the page.

import { signal } from "@preact/signals";
import { useRef, useState } from "preact/hooks";
import { apiKey, keyWanted, useKey } from "../shared/api.ts";
import { Dialog } from "../shared/Dialog.tsx";
import { DownloadIcon, TrashIcon, UploadIcon } from "../shared/icons.tsx";
import { say } from "../shared/status.ts";
import { type Theme, theme } from "../shared/theme.ts";
import { OptionError, sampling } from "./body.ts";
import { plural } from "../shared/format.ts";
import { conversations, options, removeAll, server, setOptions } from "./state.ts";
import type { Options } from "./model.ts";
import { exportConversations, importConversations } from "./transfer.ts";
import { whole } from "./whole.ts";

export const settingsOpen = signal(false);

export function Settings() {
  return settingsOpen.value && (
    <Dialog title="Settings" shape="sheet" onClose={() => (settingsOpen.value = false)}>
      <AnswerSettings />
      <PageSettings />
      <ChatFiles />
      {server.value && <p class="note">mmserve {server.value.version}, {server.value.model}, context of {plural(server.value.max_model_len, "token")}</p>}
    </Dialog>
  );
}

function AnswerSettings() {
  const wrong = problem(options.value);
  return (
    <section aria-labelledby="answers">
      <h3 id="answers">Answers in this conversation</h3>
      <Field option="system" label="System prompt" hint="What the model is told before the first question." lines={4} />
      <div class="columns">
        <Field option="temperature" label="Temperature" hint="0: the likeliest token" wrong={wrong} />
        <Field option="maxTokens" label="Max tokens" hint="of an answer" wrong={wrong} />
        <Field option="seed" label="Seed" hint="same seed, same answer" wrong={wrong} />
      </div>
      <Field option="schema" label="JSON schema" hint="The answer is JSON that fits it." lines={5} code wrong={wrong} />
    </section>
  );
}

interface FieldProps {
  option: keyof Options;
  label: string;
  hint: string;
  lines?: number;
  code?: boolean;
  wrong?: OptionError | null;
}

function Field({ option, label, hint, lines, code, wrong }: FieldProps) {
  const error = wrong?.option === option ? wrong.message : "";
  const shared = {
    id: option,
    class: code ? "code-input" : undefined,
    value: options.value[option],
    "aria-describedby": `${option}-hint`,
    "aria-invalid": error ? true : undefined,
    onInput: (event: Event & { currentTarget: HTMLInputElement | HTMLTextAreaElement }) => setOptions({ [option]: event.currentTarget.value }),
  };
  return (
    <div class="field">
      <label for={option}>{label}</label>
      {lines ? <textarea rows={lines} spellcheck={!code} {...shared} /> : <input inputMode="decimal" placeholder="default" autocomplete="off" {...shared} />}
      <span id={`${option}-hint`} class={error ? "hint wrong" : "hint"}>{error || hint}</span>
    </div>
  );
}

function problem(values: Options): OptionError | null {
  try {
    sampling(values);
    return null;
  } catch (error) {
    return error instanceof OptionError ? error : null;
  }
}

function PageSettings() {
  return (
    <section aria-labelledby="page">
      <h3 id="page">This page</h3>
      <div class="field">
        <label for="theme">Colours</label>
        <select id="theme" value={theme.value} onChange={(event) => (theme.value = event.currentTarget.value as Theme)}>
          <option value="auto">As the system</option>
          <option value="light">Light</option>
          <option value="dark">Dark</option>
        </select>
      </div>
      <label class="check">
        <input type="checkbox" checked={whole.value} onChange={(event) => (whole.value = event.currentTarget.checked)} />
        Show answers when they are complete
      </label>
      <div class="row">
        <button type="button" class="quiet" onClick={() => (keyWanted.value = "")}>{apiKey.value ? "Change the API key" : "Enter an API key"}</button>
        {apiKey.value && <button type="button" class="quiet" onClick={() => useKey("", false)}>Forget the key</button>}
      </div>
    </section>
  );
}

function ChatFiles() {
  const file = useRef<HTMLInputElement>(null);
  const [told, setTold] = useState("");
  const [sure, setSure] = useState(false);
  const onImport = async (chosen: File | undefined) => {
    if (!chosen) return;
    try {
      setTold(`${plural(await importConversations(chosen), "conversation")} added.`);
    } catch (error) {
      setTold(`${chosen.name}: ${error instanceof Error ? error.message : String(error)}`);
    }
  };
  const onDelete = () => {
    if (!sure) return setSure(true);
    removeAll();
    setSure(false);
    say("All conversations are deleted.");
  };
  return (
    <section aria-labelledby="chats">
      <h3 id="chats">Conversations</h3>
      <p class="hint">They are in this browser only. An export holds their texts and pictures, never a key.</p>
      <div class="row">
        <button type="button" class="quiet" disabled={!conversations.value.length} onClick={() => void exportConversations(conversations.value)}><DownloadIcon />Export all</button>
        <button type="button" class="quiet" onClick={() => file.current?.click()}><UploadIcon />Import</button>
        <button type="button" class="quiet danger" disabled={!conversations.value.length} onClick={onDelete}><TrashIcon />{sure ? "Really delete all?" : "Delete all"}</button>
      </div>
      <input ref={file} class="visually-hidden" type="file" accept="application/json" aria-label="File of conversations" tabIndex={-1}
        onChange={(event) => {
          void onImport(event.currentTarget.files?.[0]);
          event.currentTarget.value = "";
        }} />
      <p class="hint" role="status">{told}</p>
    </section>
  );
}
