// Numbers as the tiles and tables show them.

import { duration } from "../shared/format.ts";

export const NONE = "–";

export function seconds(value: number | null | undefined): string {
  return value == null ? NONE : duration(1000 * value);
}

export function count(value: number): string {
  return value >= 1e6 ? `${(value / 1e6).toFixed(value < 1e7 ? 2 : 1)} M` : value >= 1e4 ? `${(value / 1e3).toFixed(value < 1e5 ? 1 : 0)} k` : value.toLocaleString("en");
}

export function perSecond(value: number | null): string {
  return value === null ? NONE : value < 10 && value > 0 ? value.toFixed(1) : Math.round(value).toLocaleString("en");
}

export function percent(part: number, whole: number): string {
  return whole > 0 ? `${Math.round((100 * part) / whole)} %` : NONE;
}

export function age(value_s: number): string {
  if (value_s < 60) return `${Math.floor(value_s)} s`;
  if (value_s < 3600) return `${Math.floor(value_s / 60)} min`;
  if (value_s < 86_400) return `${Math.floor(value_s / 3600)} h ${Math.floor((value_s % 3600) / 60)} min`;
  return `${Math.floor(value_s / 86_400)} d ${Math.floor((value_s % 86_400) / 3600)} h`;
}

export function signed(part: number): string {
  const rounded = Math.round(100 * part);
  return `${rounded > 0 ? "+" : rounded < 0 ? "−" : "±"}${Math.abs(rounded)} %`;
}
