// Asks for /status.json every second while the page is seen, and shows it.
const FORMAT = 1;
const PERIOD_MS = 1000;
const LONGEST_PERIOD_MS = 5000;
const PATIENCE_MS = 10000;
const SHORTEST_HISTORY_S = 60;
const RECENT_STEPS = 60;
const FEW_MODELS = 20;
const FEW_COMPARED = 24;

const at = (id) => document.getElementById(id);

// The whole service. `lines` are plotted, `value` and `note` are told.
const sum = (by) => Object.values(by).reduce((all, each) => all + each, 0);
const failed = (now) => now && now.client_per_s + now.server_per_s + now.shed_per_s;
const TILES = [
  { title: "requests/s", value: ({ now }) => number(now?.ok_per_s), note: ({ totals }) => `${count(totals.requests.ok ?? 0)} answered`,
    lines: [(point) => point.ok_per_s], scale: number },
  { title: "rows/s", value: ({ now }) => number(now?.rows_per_s), note: ({ now }) => `${number(now?.rows_per_batch)} rows/batch`,
    lines: [(point) => point.rows_per_s], scale: number },
  { title: "latency, p50", value: ({ now }) => duration(now?.latency.p50_s), note: ({ now }) => `p99 ${duration(now?.latency.p99_s)}`, noteClass: "note second",
    lines: [(point) => point.p50_s, (point) => point.p99_s], scale: duration },
  { title: "not answered/s", value: ({ now }) => number(failed(now)), bad: ({ now }) => failed(now) > 0,
    note: ({ totals: { requests } }) => `${count(sum(requests) - (requests.ok ?? 0))} in all, ${count(requests.shed ?? 0)} shed`,
    lines: [(point) => point.failed_per_s], scale: number },
  { title: "rows queued", value: ({ totals }) => count(totals.queue_rows), note: ({ totals }) => `requests in flight: ${count(totals.in_flight)}`,
    lines: [(point) => point.queue_rows], scale: number },
  { title: "devices busy", value: ({ now, workers }) => share(now && now.busy_s_per_s / Math.max(1, workers.length)),
    note: ({ now }) => `${share(now?.padding_ratio)} padding rows`,
    lines: [(point, { workers }) => point.busy_s_per_s / Math.max(1, workers.length)], scale: share },
].map((tile) => ({ ...tile, ...tileElements(tile) }));

function tileElements(tile) {
  const value = element("div", { class: "value" });
  const note = element("div", { class: tile.noteClass ?? "note" });
  const top = element("span");
  const plot = new Sparkline(tile.lines.length, `${tile.title} in the last minutes`);
  const from = element("span");
  const scale = element("div", { class: "scale" }, from, top);
  at("tiles").append(element("div", { class: "tile" }, element("h2", {}, tile.title), value, note, plot.node, scale));
  return { nodes: { value, note, from, top, plot } };
}

function showTiles(picture) {
  const oldest_s = picture.history[0]?.age_s ?? 0;
  const shown_s = Math.max(SHORTEST_HISTORY_S, oldest_s);
  const positions = picture.history.map((point) => 1 - point.age_s / shown_s);
  for (const tile of TILES) {
    setText(tile.nodes.value, tile.value(picture));
    setAttribute(tile.nodes.value, "class", tile.bad?.(picture) ? "value bad" : "value");
    setText(tile.nodes.note, tile.note(picture));
    const top = tile.nodes.plot.draw(positions, ...tile.lines.map((line) => picture.history.map((point) => line(point, picture))));
    setText(tile.nodes.from, `last ${Math.round(shown_s / 60)} min`);
    setText(tile.nodes.top, top > 0 ? `highest ${tile.scale(top)}` : "");
  }
}

const byName = (row) => `${row.name} ${row.backend}`;
const models = new Table(at("models-table"), "models", MODEL_COLUMNS, { key: byName, order: { column: 3, falling: true }, cards: true });
const compare = new Table(at("compare-table"), "side by side", COMPARE_COLUMNS, {
  key: ({ model }) => byName(model), cards: true,
  first: ({ model }, before) => model.group !== before?.model.group,
});
const workers = new Table(at("workers-table"), "workers", WORKER_COLUMNS, { key: (row) => row.slot });
const processes = new Table(at("processes-table"), "processes", PROCESS_COLUMNS, { key: (row) => row.process });
const reasons = new Table(at("reasons-table"), "why", REASON_COLUMNS, { key: (row) => `${row.what} ${row.reason}` });
let devices = null;
let last = null;
let showAll = false;

function showModels(picture) {
  const wanted = at("find").value.trim().toLowerCase().split(/\s+/);
  const found = picture.models.filter((model) => {
    const text = `${model.name} ${model.backend} ${model.kind} ${model.dtype} ${model.state}`;
    return wanted.every((word) => text.includes(word));
  });
  const few = found.length <= FEW_MODELS + 1;
  models.show(found, { limit: showAll || few ? Infinity : FEW_MODELS, nothing: "no model is like that" });
  setText(at("models-count"), found.length === picture.models.length ? `${found.length}` : `${found.length} of ${picture.models.length}`);
  at("more").hidden = few;
  setText(at("more"), showAll ? `the first ${FEW_MODELS} only` : `all ${found.length}`);
}

// Groups with two models or more that computed rows; those with the most rows first.
function compared(picture) {
  const groups = new Map();
  for (const model of picture.models) if (model.rows) groups.set(model.group, [...(groups.get(model.group) ?? []), model]);
  const rows = (group) => group.reduce((all, model) => all + model.rows, 0);
  return [...groups.values()].filter((group) => group.length > 1).sort((a, b) => rows(b) - rows(a)).flatMap((group) => {
    const base = group.find((model) => model.backend === "eager");
    const largest = Object.fromEntries(SIDE_BY_SIDE.map(([title, value]) =>
      [title, Math.max(...group.map((model) => value(model.since_start) ?? 0)) || 1]));
    return group.map((model) => ({ model, largest, base }));
  });
}

function showDevices(picture) {
  const withGpu = picture.devices.some((device) => device.memory_used_bytes !== null || device.power_watts !== null);
  if (!devices || devices.withGpu !== withGpu) {
    at("devices-table").replaceChildren();
    devices = new Table(at("devices-table"), "devices", withGpu ? DEVICE_COLUMNS : CPU_DEVICE_COLUMNS, { key: (row) => row.device });
    devices.withGpu = withGpu;
  }
  devices.show(picture.devices, { nothing: "no batch was computed yet" });
}

function showHeader(picture) {
  setState(picture.state, `pill is-${picture.state}`);
  const facts = [picture.grpc ? `gRPC ${picture.grpc}` : "", picture.version && `version ${picture.version}`, `up ${span(picture.up_s)}`];
  setText(at("facts"), facts.filter(Boolean).join(" · "));
  document.title = `Gatefuse: ${picture.state}, ${number(picture.now?.ok_per_s)} requests/s`;
}

function show(picture) {
  last = picture;
  at("main").hidden = false;
  setText(at("window"), picture.window_s ? String(Math.round(picture.window_s)) : "few");
  showTiles(picture);
  const side = compared(picture);
  at("compare").hidden = !side.length;
  compare.show(side, { limit: showAll ? Infinity : FEW_COMPARED });
  showModels(picture);
  workers.show(picture.workers, { nothing: "not placed yet" });
  showDevices(picture);
  at("processes").hidden = !picture.processes.length;
  processes.show(picture.processes);
  reasons.show(picture.reasons, { nothing: "nothing was refused, nothing replaced" });
}

// The service answers as a newer one than this page is from.
class Outdated extends Error {}

function silent(error) {
  const outdated = error instanceof Outdated;
  setText(at("alert"), outdated ? "The service was updated: load this page again."
    : `No answer from the service since ${new Date(answeredAt).toLocaleTimeString()} (${error.message}). Trying again.`);
  at("alert").hidden = false;
  setState(outdated ? "updated" : "no answer", "pill");
  document.title = `Gatefuse: ${at("state").textContent}`;
  for (const part of ["facts", "main"]) at(part).classList.add("stale");
}

function setState(text, css) {
  setAttribute(at("state"), "class", css);
  setText(at("state"), text);
}

let answeredAt = Date.now();
let period = PERIOD_MS;
let timer = 0;
let asking = false;

async function ask() {
  if (asking) return;
  asking = true;
  clearTimeout(timer);
  const picture = await picture_now();
  asking = false;
  if (!document.hidden) timer = setTimeout(ask, period);
  if (picture) {
    showHeader(picture);
    show(picture);
  }
}

// The picture, or null where there is none, which is told.
async function picture_now() {
  try {
    const answer = await fetch("status.json", { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const picture = await answer.json();
    if (picture.format !== FORMAT) throw new Outdated();
    answeredAt = Date.now();
    period = PERIOD_MS;
    at("alert").hidden = true;
    for (const part of ["facts", "main"]) at(part).classList.remove("stale");
    return picture;
  } catch (error) {
    period = Math.min(2 * period, LONGEST_PERIOD_MS);
    silent(error);
    return null;
  }
}

function again() {
  if (last) show(last);
}

MODEL_COLUMNS.forEach((column, index) => {
  if (column.value) at("order").append(element("option", { value: index }, column.title));
});
at("order").value = models.order.column;
at("order").addEventListener("change", (event) => {
  const column = Number(event.target.value);
  models.orderBy(column, !MODEL_COLUMNS[column].left);
});
models.reordered = () => { at("order").value = models.order.column; again(); };
at("find").addEventListener("input", again);
at("more").addEventListener("click", () => { showAll = !showAll; again(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) ask(); });
ask();
