// Figures as text: the same as figures.py, which `gatefuse top` uses, with an n-dash for what is not known.
const NOTHING = "–";

function number(value) {
  if (value === null || value === undefined) return NOTHING;
  const size = Math.abs(value);
  if (size >= 100) return count(value);
  if (size >= 10) return value.toFixed(1);
  return value.toFixed(size >= 0.1 || !size ? 2 : 4);
}

function count(value) {
  return Math.round(value).toLocaleString("en-US");
}

function size(value) {
  if (value === null || value === undefined) return NOTHING;
  const units = ["B", "KB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) { value /= 1000; unit += 1; }
  return `${number(value)} ${units[unit]}`;
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return NOTHING;
  if (seconds < 1e-3) return `${number(seconds * 1e6)} µs`;
  return seconds < 1 ? `${number(seconds * 1e3)} ms` : `${number(seconds)} s`;
}

function share(value) {
  return value === null || value === undefined ? NOTHING : `${number(value * 100)} %`;
}

function span(seconds) {
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = parts.findIndex(([length]) => seconds >= length);
  if (first < 0) return "0 s";
  const [length, unit] = parts[first];
  const whole = Math.floor(seconds / length);
  const next = parts[first + 1];
  const rest = next ? Math.floor((seconds - whole * length) / next[0]) : 0;
  return rest ? `${whole} ${unit} ${rest} ${next[1]}` : `${whole} ${unit}`;
}
