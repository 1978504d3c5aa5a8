// What the server sends (/admin/state), and what is computed from it.

export interface Latency {
  count: number;
  mean_s: number | null;
  p50_s: number | null;
  p95_s: number | null;
  p99_s: number | null;
}

export type ExtentState = "reserved" | "writing" | "data" | "embed" | "failed";
/** Offset, bytes, state, leases. */
export type Extent = [number, number, ExtentState, number];

export interface Arena {
  nbytes: number;
  num_extents: number;
  num_leases: number;
  num_holes: number;
  free_nbytes: number;
  largest_hole_nbytes: number;
  cell_nbytes: number;
  extents: Extent[];
}

export interface Process {
  name: string;
  title: string;
  pid: number;
  state: string;
  uptime_s: number;
  restarts: number;
  heartbeat_age_s: number | null;
  busy: boolean;
  rss_bytes: number | null;
  pss_bytes: number | null;
}

export interface Load {
  requests_in_flight: number;
  sequences_running: number;
  slots: number;
  sequences_waiting: number;
  kv_blocks_held: number;
  kv_blocks_cached: number;
  kv_blocks_free: number;
  preemptions: number;
  images_waiting: number;
  images_decoding: number;
  prompt_tokens: number;
  generation_tokens: number;
  prefix_hit_tokens: number;
  prefix_query_tokens: number;
}

export interface Arm {
  requests: number;
  images: number;
  cached_images: number;
  waiting: number;
  stages: Record<string, Latency>;
}

export interface LastHour {
  seconds: number;
  prompt_tokens: number;
  generation_tokens: number;
  ttft: Latency;
  itl: Latency;
  e2e: Latency;
  stages: Record<string, Latency>;
  arms: Record<string, Arm>;
}

export interface Point {
  time_s: number;
  seconds: number;
  prompt_tokens?: number;
  generation_tokens?: number;
  requests?: number;
  ttft_p50_s?: number;
  ttft_p95_s?: number;
  ttft_p99_s?: number;
  itl_p50_s?: number;
  itl_p95_s?: number;
  itl_p99_s?: number;
}

export type RequestStage = "reading" | "waiting" | "encoding" | "queued" | "prefill" | "decoding";

/** One request in flight. Its state is null while the router does not tell it. */
export interface Request {
  id: string;
  age_s: number;
  state: RequestStage | null;
  prompt_tokens: number;
  output_tokens: number;
  images: number;
}

export interface State {
  time_s: number;
  phase: string;
  detail: string;
  reasons: string[];
  uptime_s: number;
  processes: Process[];
  load: Load;
  /** The oldest, oldest first. */
  requests: Request[];
  last_hour: LastHour;
  history: Point[];
  /** Left out where it is as before. */
  arena?: Arena | null;
  missing: string[];
  model: string;
  version: string;
  alloc: { has_v2: boolean; concurrent_alloc_fraction: number };
}

const HOUR_S = 3600;
/** Fewer values tell nothing about a difference. */
const ENOUGH = 30;

/** The points of the last hour, with those that an event brought. */
export function extended(points: Point[], event: State): Point[] {
  const last = points.at(-1)?.time_s ?? -Infinity;
  return [...points, ...event.history.filter((point) => point.time_s > last)].filter((point) => point.time_s > event.time_s - HOUR_S);
}

/** How fast a total of the load grows between two events, a second; null if the server was started again. */
export function rate(before: State | null, now: State | null, total: "prompt_tokens" | "generation_tokens"): number | null {
  if (!before || !now || now.time_s <= before.time_s) return null;
  const grown = now.load[total] - before.load[total];
  return grown < 0 ? null : grown / (now.time_s - before.time_s);
}

/** How much v2's median differs from v1's, in parts of it; null: too few values. */
export function difference(v1: Latency | undefined, v2: Latency | undefined): number | null {
  if (!v1?.p50_s || v2?.p50_s == null || Math.min(v1.count, v2.count) < ENOUGH) return null;
  return v2.p50_s / v1.p50_s - 1;
}

/** How many requests are in each state, in words, most first. */
export function inStates(requests: readonly Request[]): string {
  const counts = new Map<string, number>();
  for (const { state } of requests) counts.set(state ?? "unknown", (counts.get(state ?? "unknown") ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1]).map(([state, number]) => `${number} ${state}`).join(", ");
}

export interface Usage {
  state: ExtentState;
  extents: number;
  nbytes: number;
  leased: number;
}

/** Extents and bytes of each state. In cells it is an estimate. */
export function usage(arena: Arena, states: readonly ExtentState[]): Usage[] {
  return states.map((state) => {
    const found = arena.extents.filter((extent) => extent[2] === state);
    return { state, extents: found.length, nbytes: found.reduce((sum, extent) => sum + extent[1], 0), leased: found.filter((extent) => extent[3] > 0).length };
  });
}

export interface Piece {
  x: number;
  y: number;
  width: number;
  extent: Extent;
}

/** Where the extents are if the arena is written in ``rows`` lines of a width. An extent may go over several lines. */
export function pieces(arena: Arena, rows: number, width: number): Piece[] {
  const rowBytes = arena.nbytes / rows;
  const found: Piece[] = [];
  for (const extent of arena.extents) {
    const end = extent[0] + extent[1];
    for (let row = Math.floor(extent[0] / rowBytes); row < rows && row * rowBytes < end; row++) {
      const start = Math.max(extent[0], row * rowBytes);
      const x = ((start - row * rowBytes) / rowBytes) * width;
      const length = ((Math.min(end, (row + 1) * rowBytes) - start) / rowBytes) * width;
      if (length > 0) found.push({ x, y: row, width: length, extent });
    }
  }
  return found;
}

/** The extent at a byte, or the hole around it. */
export function at(arena: Arena, byte: number): Extent | { hole: number } {
  let start = 0;
  for (const extent of arena.extents) {
    if (byte < extent[0]) return { hole: extent[0] - start };
    if (byte < extent[0] + Math.max(extent[1], arena.cell_nbytes)) return extent;
    start = extent[0] + extent[1];
  }
  return { hole: arena.nbytes - start };
}

/** A round number at or above the largest value, for the top of a chart. */
export function roundUp(value: number): number {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return power * ([1, 2, 4, 5, 8, 10].find((step) => step * power >= value * 0.999) ?? 10);
}

export interface Line {
  /** Of an SVG path; parts are apart where a value is missing. */
  path: string;
  /** Values with none beside them. */
  dots: [number, number][];
}

/** A line through values in time order. ``x`` and ``y`` place a time and a value. */
export function line(points: readonly Point[], value: (point: Point) => number | null | undefined, x: (time_s: number) => number, y: (value: number) => number): Line {
  const parts: [number, number][][] = [];
  let open: [number, number][] | null = null;
  for (const point of points) {
    const found = value(point);
    if (found == null) {
      open = null;
      continue;
    }
    if (!open) parts.push((open = []));
    open.push([x(point.time_s), y(found)]);
  }
  const place = ([px, py]: [number, number]) => `${px.toFixed(1)} ${py.toFixed(1)}`;
  return {
    path: parts.filter((part) => part.length > 1).map((part) => `M${part.map(place).join("L")}`).join(""),
    dots: parts.filter((part) => part.length === 1).map((part) => part[0] as [number, number]),
  };
}
