// The arena as it is: every extent in its place, coloured by state, hatched while it is leased.

import { useEffect, useRef, useState } from "preact/hooks";
import { bytes, plural } from "../shared/format.ts";
import { theme } from "../shared/theme.ts";
import { Card, Scrolled, useWidth } from "./Card.tsx";
import { arena } from "./feed.ts";
import { count, percent } from "./figures.ts";
import { at, type Arena, type ExtentState, pieces, usage } from "./model.ts";

const STATES: Record<ExtentState, string> = {
  embed: "embedding",
  data: "image",
  writing: "being written",
  reserved: "waits for its embedding",
  failed: "failed",
};
const ORDER = Object.keys(STATES) as ExtentState[];
const ROWS = 8;
const ROW = 22;
const GAP = 4;
const FADE_MS = 450;
/** Narrower extents could not be seen. */
const MIN_WIDTH = 1.5;

export function ArenaCard() {
  const shown = arena.value;
  if (!shown) return null;
  return (
    <Card id="arena" title="Arena" note={<>{bytes(shown.nbytes - shown.free_nbytes)} of {bytes(shown.nbytes)} in use ({percent(shown.nbytes - shown.free_nbytes, shown.nbytes)}), {plural(shown.num_leases, "lease")}, {plural(shown.num_holes, "hole")}</>}>
      <Drawing shown={shown} />
      <Scrolled label="Extents by state">
        <table>
          <thead><tr><th scope="col">State</th><th scope="col" class="number">Extents</th><th scope="col" class="number">Leased</th><th scope="col" class="number">Bytes</th><th scope="col" class="number">Share</th></tr></thead>
          <tbody>
            {usage(shown, ORDER).map((each) => (
              <tr>
                <th scope="row"><i class={`swatch ${each.state}`} aria-hidden="true" />{STATES[each.state]}</th>
                <td class="number">{count(each.extents)}</td><td class="number">{count(each.leased)}</td><td class="number">{bytes(each.nbytes)}</td><td class="number">{percent(each.nbytes, shown.nbytes)}</td>
              </tr>
            ))}
            <tr>
              <th scope="row"><i class="swatch hole" aria-hidden="true" />hole</th>
              <td class="number">{count(shown.num_holes)}</td><td class="number"></td><td class="number">{bytes(shown.free_nbytes)}</td><td class="number">{percent(shown.free_nbytes, shown.nbytes)}</td>
            </tr>
          </tbody>
        </table>
      </Scrolled>
      <p class="hint">Largest hole: {bytes(shown.largest_hole_nbytes)}. {shown.cell_nbytes > 0 && `There are ${count(shown.num_extents)} extents: they are shown in cells of ${bytes(shown.cell_nbytes)}.`}</p>
    </Card>
  );
}

function Drawing({ shown }: { shown: Arena }) {
  const { element, width } = useWidth<HTMLDivElement>();
  const canvas = useRef<HTMLCanvasElement>(null);
  const colors = useRef<HTMLDivElement>(null);
  const [pointed, setPointed] = useState("");
  useEffect(() => {
    if (!width || !canvas.current || !colors.current) return;
    return paint(canvas.current, colors.current, shown, width);
  }, [shown, width, theme.value]);
  const onMove = (event: PointerEvent) => {
    const row = Math.min(ROWS - 1, Math.max(0, Math.floor(event.offsetY / (ROW + GAP))));
    setPointed(described(shown, ((row + Math.min(0.999999, Math.max(0, event.offsetX / width))) * shown.nbytes) / ROWS));
  };
  const height = ROWS * (ROW + GAP) - GAP;
  return (
    <div ref={element} class="drawing">
      <canvas ref={canvas} style={{ width: `${width}px`, height: `${height}px` }} role="img" aria-label="Drawing of the arena. The table below says the same." onPointerMove={onMove} onPointerLeave={() => setPointed("")} />
      <div ref={colors} class="legend">
        {[...ORDER, "hole" as const].map((state) => <span><i class={`swatch ${state}`} aria-hidden="true" />{state === "hole" ? "hole" : STATES[state]}</span>)}
        <span><i class="swatch leased" aria-hidden="true" />leased</span>
        <span class="spring" />
        <span class="pointed">{pointed || "Point at an extent."}</span>
      </div>
    </div>
  );
}

function described(shown: Arena, byte: number): string {
  const found = at(shown, byte);
  if (!Array.isArray(found)) return `hole of ${bytes(found.hole)}`;
  const [offset, nbytes, state, leases] = found;
  return `${STATES[state]}, ${bytes(nbytes)} at ${bytes(offset)}, ${leases ? plural(leases, "lease") : "may be evicted"}`;
}

/** Fades from what is drawn to what is there now. Returns how to stop. */
function paint(canvas: HTMLCanvasElement, colors: Element, shown: Arena, width: number): () => void {
  const scale = devicePixelRatio || 1;
  const height = ROWS * (ROW + GAP) - GAP;
  const next = document.createElement("canvas");
  const sized = canvas.width === Math.round(width * scale) && canvas.height === Math.round(height * scale);
  next.width = Math.round(width * scale);
  next.height = Math.round(height * scale);
  draw(next, colors, shown, width, scale);
  if (!sized) {
    canvas.width = next.width;
    canvas.height = next.height;
  }
  const context = canvas.getContext("2d");
  if (!context) return () => undefined;
  const fades = sized && !matchMedia("(prefers-reduced-motion: reduce)").matches;
  const old = document.createElement("canvas");
  old.width = canvas.width;
  old.height = canvas.height;
  if (fades) old.getContext("2d")?.drawImage(canvas, 0, 0);
  const begun = performance.now();
  let frame = 0;
  const step = () => {
    const part = fades ? Math.min(1, (performance.now() - begun) / FADE_MS) : 1;
    context.globalAlpha = 1;
    context.clearRect(0, 0, canvas.width, canvas.height);
    if (part < 1) context.drawImage(old, 0, 0);
    context.globalAlpha = part;
    context.drawImage(next, 0, 0);
    if (part < 1) frame = requestAnimationFrame(step);
  };
  step();
  return () => cancelAnimationFrame(frame);
}

function draw(canvas: HTMLCanvasElement, colors: Element, shown: Arena, width: number, scale: number): void {
  const context = canvas.getContext("2d");
  if (!context) return;
  const color = (state: string) => getComputedStyle(colors.querySelector(`.swatch.${state}`) as Element).backgroundColor;
  const filled = Object.fromEntries(ORDER.map((state) => [state, color(state)]));
  context.scale(scale, scale);
  context.fillStyle = color("hole");
  for (let row = 0; row < ROWS; row++) {
    context.beginPath();
    context.roundRect(0, row * (ROW + GAP), width, ROW, 5);
    context.fill();
  }
  const hatch = hatching(context);
  for (const { x, y, width: length, extent } of pieces(shown, ROWS, width)) {
    const top = y * (ROW + GAP);
    // A slit between neighbours, where there is room for one.
    const drawn = Math.max(MIN_WIDTH, length > 4 ? length - 1 : length);
    context.fillStyle = filled[extent[2]] ?? "";
    context.beginPath();
    context.roundRect(x, top, drawn, ROW, Math.min(3, drawn / 3));
    context.fill();
    if (extent[3] > 0 && hatch) {
      context.fillStyle = hatch;
      context.fill();
    }
  }
}

function hatching(context: CanvasRenderingContext2D): CanvasPattern | null {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const lines = tile.getContext("2d");
  if (!lines) return null;
  lines.strokeStyle = "rgb(255 255 255 / 62%)";
  lines.lineWidth = 1.6;
  for (const offset of [-6, 0, 6]) {
    lines.moveTo(offset, 6);
    lines.lineTo(offset + 6, 0);
  }
  lines.stroke();
  return context.createPattern(tile, "repeat");
}
