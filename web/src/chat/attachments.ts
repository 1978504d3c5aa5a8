// Pictures of the question that is being written. The server says what each costs, or why it refuses it.

import { signal } from "@preact/signals";
import { ApiError, json } from "../shared/api.ts";
import { newId } from "../shared/format.ts";
import { alert, say } from "../shared/status.ts";
import { urlOf } from "./body.ts";
import type { Picture, PictureSize } from "./model.ts";
import { server } from "./state.ts";

export const attached = signal<Picture[]>([]);

/** The server has judged it. */
export const isChecked = (picture: Picture) => Boolean(picture.size ?? picture.error);

export function attachFiles(files: Iterable<File>): void {
  for (const file of files) attach({ id: newId(), name: file.name || "picture", blob: file });
}

export function attachUrl(url: string): void {
  attach({ id: newId(), name: nameOf(url), url });
}

export function detach(id: string): void {
  attached.value = attached.value.filter((picture) => picture.id !== id);
}

function attach(picture: Picture): void {
  const refusal = whyNoMore();
  if (refusal) return alert(refusal);
  attached.value = [...attached.value, picture];
  void check(picture);
}

function whyNoMore(): string {
  const { value } = server;
  if (value === null) return "";
  if (value.max_images === null) return `${value.model} takes no pictures: it is a model for text.`;
  return attached.value.length < value.max_images ? "" : `The server takes at most ${value.max_images} pictures in one conversation.`;
}

async function check(picture: Picture): Promise<void> {
  const found = await judged(picture);
  attached.value = attached.value.map((one) => (one.id === picture.id ? { ...one, ...found } : one));
  if (found.error) alert(`${picture.name}: ${found.error}`);
  else if (found.size) say(`${picture.name} is attached, ${found.size.tokens} tokens.`);
}

async function judged(picture: Picture): Promise<{ size?: PictureSize; error?: string }> {
  try {
    const content = [{ type: "image_url", image_url: { url: await urlOf(picture) } }];
    const { images } = await json<{ images: PictureSize[] }>("tokenize", { messages: [{ role: "user", content }] });
    return images[0] ? { size: images[0] } : { error: "the server does not see a picture in it" };
  } catch (error) {
    return { error: error instanceof ApiError || error instanceof Error ? error.message : String(error) };
  }
}

/** The last part of a URL's path, or its host. */
export function nameOf(url: string): string {
  try {
    const { pathname, hostname, protocol } = new URL(url);
    if (protocol === "data:") return "picture";
    return decodeURIComponent(pathname.split("/").pop() ?? "") || hostname;
  } catch {
    return url;
  }
}

/** Files of a paste or a drop. A folder is refused by name. */
export function filesOf(data: DataTransfer): File[] {
  const files: File[] = [];
  for (const item of data.items) {
    if (item.kind !== "file") continue;
    const file = item.getAsFile();
    if (item.webkitGetAsEntry?.()?.isDirectory) alert(`${file?.name ?? "This"} is a folder: drop the pictures in it.`);
    else if (file) files.push(file);
  }
  return files;
}
