import assert from "node:assert/strict";
import { test } from "node:test";
import { age, count, percent, perSecond, seconds, signed } from "../src/dashboard/figures.ts";
import { type Arena, at, difference, type Extent, extended, inStates, type Latency, line, pieces, type Point, rate, type Request, roundUp, type State, usage } from "../src/dashboard/model.ts";

const point = (time_s: number, rest: Partial<Point> = {}): Point => ({ time_s, seconds: 5, ...rest });
const state = (time_s: number, generation_tokens: number, history: Point[] = []) => ({ time_s, history, load: { generation_tokens } }) as unknown as State;
const latency = (count: number, p50_s: number | null): Latency => ({ count, mean_s: p50_s, p50_s, p95_s: p50_s, p99_s: p50_s });
const arena = (extents: Extent[], cell_nbytes = 0) => ({ nbytes: 100, extents, cell_nbytes }) as unknown as Arena;

test("an event adds its new points, and those older than an hour go", () => {
  const points = [point(1000), point(1005)];
  const times = (time_s: number, added: Point[]) => extended(points, state(time_s, 0, added)).map((each) => each.time_s);
  assert.deepEqual(times(1010, [point(1005), point(1010)]), [1000, 1005, 1010]);
  assert.deepEqual(times(4602, [point(4600)]), [1005, 4600]);
});

test("a rate is between two events, and there is none over a restart", () => {
  assert.equal(rate(state(10, 100), state(12, 160), "generation_tokens"), 30);
  assert.equal(rate(null, state(12, 160), "generation_tokens"), null);
  assert.equal(rate(state(10, 100), state(12, 60), "generation_tokens"), null);
  assert.equal(rate(state(10, 100), state(10, 100), "generation_tokens"), null);
});

test("paths are compared once both have enough values", () => {
  assert.equal(difference(latency(30, 0.4), latency(30, 0.3))?.toFixed(2), "-0.25");
  assert.equal(difference(latency(29, 0.4), latency(900, 0.3)), null);
  assert.equal(difference(latency(0, null), latency(90, 0.3)), null);
  assert.equal(difference(undefined, undefined), null);
});

test("the pieces of an extent have its length, over as many lines as it needs", () => {
  const found = pieces(arena([[5, 40, "embed", 0], [90, 10, "data", 1]]), 4, 250);
  assert.deepEqual(found.map(({ x, y, width }) => [x, y, width]), [[50, 0, 200], [0, 1, 200], [150, 3, 100]]);
});

test("a byte is in an extent or in a hole", () => {
  const some = arena([[5, 40, "embed", 0], [90, 10, "data", 1]]);
  assert.deepEqual(at(some, 4), { hole: 5 });
  assert.deepEqual(at(some, 44), [5, 40, "embed", 0]);
  assert.deepEqual(at(some, 45), { hole: 45 });
  assert.deepEqual(at(arena([[5, 40, "embed", 0]]), 60), { hole: 55 });
  assert.deepEqual(at(arena([[10, 2, "embed", 0]], 10), 19), [10, 2, "embed", 0]);
});

test("extents are added up by state", () => {
  const found = usage(arena([[0, 5, "embed", 0], [5, 10, "embed", 2], [20, 1, "data", 1]]), ["embed", "writing"]);
  assert.deepEqual(found, [{ state: "embed", extents: 2, nbytes: 15, leased: 1 }, { state: "writing", extents: 0, nbytes: 0, leased: 0 }]);
});

test("requests are counted by state, most first, and an open state is named", () => {
  const requests = ([null, "decoding", "queued", "decoding"] as const).map((state) => ({ state }) as Request);
  assert.equal(inStates(requests), "2 decoding, 1 unknown, 1 queued");
  assert.equal(inStates([]), "");
});

test("a line is broken where nothing was measured, and a value alone is a dot", () => {
  const points = [1, 2, undefined, 4, undefined].map((ttft_p50_s, index) => point(index, ttft_p50_s === undefined ? {} : { ttft_p50_s }));
  const found = line(points, (each) => each.ttft_p50_s, (time_s) => 10 * time_s, (value) => value);
  assert.deepEqual(found, { path: "M0.0 1.0L10.0 2.0", dots: [[30, 4]] });
});

test("the top of a chart is round and not below the values", () => {
  assert.deepEqual([0, 0.013, 0.2, 3.4, 99, 100.05, 640].map(roundUp), [1, 0.02, 0.2, 4, 100, 100, 800]);
});

test("figures are short", () => {
  assert.deepEqual([seconds(0.0123), seconds(null), count(1234), count(45_600), count(7_890_000)], ["12 ms", "–", "1,234", "45.6 k", "7.89 M"]);
  assert.deepEqual([percent(1, 3), percent(0, 0), perSecond(null), perSecond(3.21), perSecond(1234)], ["33 %", "–", "–", "3.2", "1,234"]);
  assert.deepEqual([age(59.9), age(61), age(3720), age(90_000), signed(-0.254), signed(0), signed(0.1)], ["59 s", "1 min", "1 h 2 min", "1 d 1 h", "−25 %", "±0 %", "+10 %"]);
});
