// What each table shows.
const shape = (row) => {
  const columns = row.columns ? count(row.columns).replaceAll(",", "") : "any width";
  return row.intermediate ? `${columns}×${row.intermediate}` : columns;
};
const now = (field) => (row) => row.now?.[field] ?? null;
const latency = (name) => (row) => row.now?.latency[name] ?? null;

function nameAndWhat(cell, row) {
  const part = kept(cell, () => {
    const [name, what] = [element("span"), element("span", { class: "what" })];
    return { node: element("div", {}, name, what), name, what };
  });
  setText(part.name, row.name);
  setText(part.what, `${row.kind} ${row.dtype} ${shape(row)}`);
}

function backendTag(cell, row) {
  const part = kept(cell, () => element("span"));
  setAttribute(part, "class", `tag ${row.backend}`);
  setText(part, row.backend);
}

function recentPlot(cell, row) {
  const plot = kept(cell, () => new Sparkline(1, `requests a second of ${row.name} in the last minute`));
  const values = row.recent_per_s;
  plot.draw(values.map((_, index) => 1 - (values.length - 1 - index) / (RECENT_STEPS - 1)), values);
}

function modelState(cell, row) {
  pill(cell, row.state);
  cell.title = row.reason || `${row.replicas_ready} of ${row.replicas} workers ready`;
}

const figure = (title, value, format, hint) => ({ title, value, hint, text: (row) => format(value(row)) });

const MODEL_COLUMNS = [
  { title: "model", left: true, value: (row) => row.name, fill: nameAndWhat,
    hint: "and its kind, type of weights and compute, width of a row × of the intermediate" },
  { title: "backend", left: true, value: (row) => row.backend, fill: backendTag },
  { title: "state", left: true, value: (row) => row.state, fill: modelState },
  figure("requests/s", now("requests_per_s"), number, "answered with rows"),
  { title: "last minute", fill: recentPlot, css: "plot", hint: "requests a second" },
  figure("rows/s", now("rows_per_s"), number),
  figure("p50", latency("p50_s"), duration, "from when a request is accepted until its rows are back"),
  figure("p99", latency("p99_s"), duration, "of the same"),
  figure("queued", (row) => row.queue_rows, count, "rows that wait now"),
  figure("rows/batch", now("rows_per_batch"), number),
  figure("padding", now("padding_ratio"), share, "of the rows that were computed"),
  figure("launches/row", now("launches_per_row"), number),
  figure("bytes/row", now("bytes_per_row"), size, "of device memory, modelled"),
  figure("answered", (row) => row.requests, count, "requests since the start"),
];

const SIDE_BY_SIDE = [
  ["launches/row", (work) => work.launches_per_row, number],
  ["bytes/row", (work) => work.bytes_per_row, size],
  ["device time/row", (work) => work.device_s_per_row, duration],
];

function barColumn([title, value, format]) {
  return {
    title: `${title}`, css: "figure",
    fill(cell, { model, largest, base }) {
      const text = kept(cell, () => {
        const said = element("span");
        const versus = element("span", { class: "versus" });
        const bar = new Bar();
        return { node: element("div", { class: "measure" }, versus, " ", said, bar.node), said, versus, bar };
      });
      const mine = value(model.since_start);
      const other = base && base !== model && alike(base, model) ? value(base.since_start) : null;
      setText(text.said, format(mine));
      setText(text.versus, mine && other ? times(other / mine) : "");
      text.bar.draw(mine === null ? 0 : mine / largest[title], model.backend);
    },
  };
}

// Launches and bytes for a row fall as batches grow: models whose batches differ are not compared.
const ALIKE = 1.25;

function alike(one, other) {
  const ratio = one.since_start.rows_per_batch / other.since_start.rows_per_batch;
  return ratio <= ALIKE && ratio >= 1 / ALIKE;
}

function times(ratio) {
  if (ratio >= 1.005) return `${number(ratio)}× less`;
  return ratio <= 0.995 ? `${number(1 / ratio)}× more` : "the same";
}

const COMPARE_COLUMNS = [
  { title: "model", left: true, text: ({ model }) => model.name },
  { title: "backend", left: true, fill: (cell, { model }) => backendTag(cell, model) },
  { title: "rows/batch", text: ({ model }) => number(model.since_start.rows_per_batch) },
  ...SIDE_BY_SIDE.map(barColumn),
  { title: "p50", text: ({ model }) => duration(model.since_start.latency.p50_s) },
  { title: "p99", text: ({ model }) => duration(model.since_start.latency.p99_s) },
  { title: "rows", text: ({ model }) => count(model.rows) },
];

const WORKER_COLUMNS = [
  { title: "worker", left: true, text: (row) => String(row.slot) },
  { title: "state", left: true, fill: (cell, row) => pill(cell, row.state) },
  { title: "device", left: true, text: (row) => row.device },
  { title: "models", text: (row) => count(row.models) },
  { title: "restarts", text: (row) => count(row.restarts) },
];

const memory = (row) => row.memory_used_bytes === null ? NOTHING
  : `${size(row.memory_used_bytes)} of ${size(row.memory_total_bytes)}`;
const optional = (value, unit) => value === null ? NOTHING : `${number(value)} ${unit}`;
const DEVICE_COLUMNS = [
  { title: "device", left: true, text: (row) => row.device },
  { title: "busy", text: (row) => share(row.busy_ratio), hint: "share of the time that batches were computed" },
  { title: "utilization", text: (row) => share(row.utilization_ratio), hint: "as NVML tells it: some kernel was there" },
  { title: "memory", text: memory },
  { title: "power", text: (row) => optional(row.power_watts, "W") },
  { title: "heat", text: (row) => optional(row.temperature_celsius, "°C") },
  { title: "throttled", left: true, text: (row) => row.throttled.join(", ") || "no" },
  { title: "ECC errors", text: (row) => row.ecc_errors === null ? NOTHING : count(row.ecc_errors) },
];
const CPU_DEVICE_COLUMNS = DEVICE_COLUMNS.slice(0, 2);

const PROCESS_COLUMNS = [
  { title: "process", left: true, text: (row) => row.process },
  { title: "pid", text: (row) => row.pid === null ? NOTHING : String(row.pid) },
  { title: "CPU", text: (row) => share(row.cpu_ratio), hint: "of one core" },
  { title: "memory", text: (row) => size(row.resident_bytes) },
  { title: "open files", text: (row) => row.open_fds === null ? NOTHING : count(row.open_fds) },
  { title: "loop lag", text: (row) => duration(row.event_loop_lag_s), hint: "largest lag of the event loop" },
];

const REASON_COLUMNS = [
  { title: "what", left: true, text: (row) => row.what },
  { title: "why", left: true, text: (row) => row.reason },
  { title: "total", text: (row) => count(row.total) },
  { title: "per second", text: (row) => number(row.per_s) },
];
