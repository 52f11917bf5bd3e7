// Numbers as people read them.

const UNITS = ["B", "kB", "MB", "GB", "TB"];

/** Bytes in decimal units: "2.6 GB". */
export function bytes(count) {
  let value = count;
  let unit = 0;
  while (value >= 999.5 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit > 0 && value < 99.5 ? value.toFixed(1) : Math.round(value)} ${UNITS[unit]}`;
}

/** A whole number with thin groups: "8,192". */
export function count(value) {
  return Math.round(value).toLocaleString("en");
}

/** Tokens per second and the like: two figures that matter. */
export function rate(value) {
  if (value === 0) return "0";
  return value >= 100 ? count(value) : value.toFixed(value >= 10 ? 1 : 2);
}

/** Seconds: "85 ms", "1.2 s", "3 min 20 s", "2 h 5 min". */
export function seconds(value) {
  if (value < 1) return `${Math.round(1000 * value)} ms`;
  if (value < 59.95) return `${value < 9.95 ? value.toFixed(1) : Math.round(value)} s`;
  if (value < 3570) return `${Math.floor(Math.round(value) / 60)} min ${Math.round(value) % 60} s`;
  const minutes = Math.round(value / 60);
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** A share of 1 in percent. */
export function percent(share) {
  return `${Math.round(100 * share)} %`;
}

/** Parameters of a model: "4.2 B". */
export function parameters(value) {
  return value >= 1e9 ? `${(value / 1e9).toFixed(1)} B` : `${Math.round(value / 1e6)} M`;
}

/** The middle one. */
export function median(values) {
  const sorted = [...values].sort((one, other) => one - other);
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}
