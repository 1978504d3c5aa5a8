// Thumbnails of pictures, with what each costs.

import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { bytes, plural, visible } from "../shared/format.ts";
import { CloseIcon, LinkIcon, WarningIcon } from "../shared/icons.tsx";
import { Dialog } from "../shared/Dialog.tsx";
import type { Picture } from "./model.ts";

const enlarged = signal<Picture | null>(null);

interface Props {
  pictures: Picture[];
  onRemove?: (id: string) => void;
}

export function Pictures({ pictures, onRemove }: Props) {
  if (!pictures.length) return null;
  return (
    <ul class="pictures" aria-label="Pictures">
      {pictures.map((picture) => <Thumbnail key={picture.id} picture={picture} onRemove={onRemove} />)}
    </ul>
  );
}

function Thumbnail({ picture, onRemove }: { picture: Picture; onRemove: ((id: string) => void) | undefined }) {
  const source = useObjectUrl(picture.blob);
  const name = visible(picture.name);
  return (
    <li class={picture.error ? "picture refused" : "picture"}>
      <button type="button" class="thumbnail" onClick={() => (enlarged.value = picture)} disabled={!source} aria-label={describe(picture)} title={name}>
        {source && !picture.error ? <img src={source} alt="" /> : picture.error ? <WarningIcon /> : <LinkIcon />}
      </button>
      <span class="caption">
        <bdi class="name">{name}</bdi>
        {picture.error ? <span class="reason">{picture.error}</span> : <span class="facts">{cost(picture, onRemove !== undefined)}</span>}
      </span>
      {onRemove && (
        <button type="button" class="remove" aria-label={`Remove ${name}`} title="Remove" onClick={() => onRemove(picture.id)}><CloseIcon /></button>
      )}
    </li>
  );
}

function cost(picture: Picture, asked: boolean): string {
  if (picture.size) return plural(picture.size.tokens, "token");
  return asked ? "counting…" : "";
}

function describe({ name, size, blob, error }: Picture): string {
  const facts = size ? [`${size.width} × ${size.height}`, plural(size.tokens, "token")] : [];
  if (blob) facts.push(bytes(blob.size));
  if (error) facts.push(`refused: ${error}`);
  return [visible(name), ...facts].join(", ");
}

/** The picture that was clicked, as large as the page allows. */
export function EnlargedPicture() {
  const picture = enlarged.value;
  return picture && <Enlarged picture={picture} />;
}

function Enlarged({ picture }: { picture: Picture }) {
  const source = useObjectUrl(picture.blob);
  return (
    <Dialog title={visible(picture.name)} onClose={() => (enlarged.value = null)}>
      {source && <img class="enlarged" src={source} alt={visible(picture.name)} />}
      <p class="facts">{describe(picture)}</p>
    </Dialog>
  );
}

/** A URL for the blob, for as long as the element is on the page. */
function useObjectUrl(blob: Blob | undefined): string | undefined {
  const [url, setUrl] = useState<string>();
  useEffect(() => {
    if (!blob) return;
    const made = URL.createObjectURL(blob);
    setUrl(made);
    return () => URL.revokeObjectURL(made);
  }, [blob]);
  return url;
}
