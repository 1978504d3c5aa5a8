// A modal dialog. The browser keeps the focus inside and gives it back.

import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { CloseIcon } from "./icons.tsx";

interface Props {
  title: string;
  onClose: () => void;
  children: ComponentChildren;
  /** "sheet": at the side of the page and as high as it. */
  shape?: "sheet" | "box";
}

export function Dialog({ title, onClose, children, shape = "box" }: Props) {
  const element = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const dialog = element.current;
    dialog?.showModal();
    return () => dialog?.close();
  }, []);
  return (
    <dialog
      ref={element}
      class={shape}
      aria-label={title}
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
      onClick={(event) => event.target === element.current && onClose()}
    >
      <div class="dialog-content">
        <header>
          <h2>{title}</h2>
          <button type="button" class="icon-button" aria-label="Close" onClick={onClose}><CloseIcon /></button>
        </header>
        {children}
      </div>
    </dialog>
  );
}
