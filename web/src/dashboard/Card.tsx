// A part of the dashboard with a heading.

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

interface Props {
  id: string;
  title: string;
  note?: ComponentChildren;
  children: ComponentChildren;
}

export function Card({ id, title, note, children }: Props) {
  return (
    <section class="card" aria-labelledby={id}>
      <header><h2 id={id}>{title}</h2>{note && <div class="hint">{note}</div>}</header>
      {children}
    </section>
  );
}

/** A table that scrolls sideways where it does not fit; with the class "tall" also downwards. */
export function Scrolled({ label, class: more = "", children }: { label: string; class?: string; children: ComponentChildren }) {
  return <div class={`scrolled ${more}`} role="region" aria-label={label} tabIndex={0}>{children}</div>;
}

/** The width of an element, now. */
export function useWidth<E extends Element>() {
  const element = useRef<E>(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    if (!element.current) return;
    const observer = new ResizeObserver(([entry]) => entry && setWidth(Math.round(entry.contentRect.width)));
    observer.observe(element.current);
    return () => observer.disconnect();
  }, []);
  return { element, width };
}
