// The page: takes the whole picture once, then one change a second, and puts both on the screen.
import { choose, count, eventText, seconds, share, word } from "./words.js";
import { Chart } from "./charts.js";

const $ = (id) => document.getElementById(id);
const POINTS = 900, EVENTS = 200, RATE_OVER = 10;
const MARKS = { ready: "", launching: "…", ejected: "✕", draining: "↓", stopped: "■", tripped: "⊘" };
const LARGE = 24, MEDIUM = 160;
const page = { seen: null, tiles: [], chosen: null, state: "all", outcomes: [], charts: [] };

function element(name, className, text) {
  const one = document.createElement(name);
  if (className) one.className = className;
  if (text !== undefined) one.textContent = text;
  return one;
}

// Text that changes is written only when it does, so that readers and selections are left alone.
function say(one, text) { if (one.textContent !== text) one.textContent = text; }

// --- the stream ---

function listen() {
  const stream = new EventSource("stream");
  stream.addEventListener("whole", (event) => { whole(JSON.parse(event.data)); link(true); });
  stream.addEventListener("beat", (event) => { beat(JSON.parse(event.data)); link(true); });
  stream.onerror = () => {
    link(false);
    if (stream.readyState === EventSource.CLOSED) setTimeout(listen, 3000);
  };
}

function link(live) {
  $("link").className = live ? "soft" : "lost";
  say($("link"), live ? word("live") : word("lost"));
  page.live = live;
}

function whole(picture) {
  page.seen = picture;
  page.outcomes = [{ at: picture.at_s, counts: picture.outcomes }];
  page.charts = [];
  $("charts").replaceChildren();
  const { ttft_s, itl_s } = picture.slo;
  const chart = (title, names, format, more) => {
    const columns = names.map(([name, label]) => ({ name, word: "s_" + (label ?? name) }));
    page.charts.push(new Chart($("charts"), title, columns, format, more));
  };
  chart("c_traffic", [["completed"], ["refused"], ["turned_away"], ["failed"], ["cancelled"]], count, { stack: true });
  chart("c_ttft", [["ttft_p50_s", "p50"], ["ttft_p99_s", "p99"]], seconds, { limit: ttft_s, least: 0.001 });
  chart("c_gap", [["gap_p99_s", "p99"]], seconds, { limit: itl_s, least: 0.001 });
  chart("c_queue", [["in_flight"], ["queued"]], count);
  chart("c_tokens", [["output_tokens", "output"], ["prompt_tokens", "prompt"]], count);
  chart("c_kv", [["kv_mean", "mean"], ["kv_max", "max"]], share, { top: 1 });
  buildTiles();
  words();
}

function beat(change) {
  const seen = page.seen;
  if (!seen) return;
  for (const [number, row] of change.rows) { seen.rows[number] = row; drawTile(number); }
  for (const name of ["at_s", "status", "queued", "in_flight", "outcomes", "tenants"]) seen[name] = change[name];
  Object.keys(seen.history).forEach((name, number) => {
    const column = seen.history[name];
    column.push(change.point[number]);
    if (column.length > POINTS) column.shift();
  });
  page.outcomes.push({ at: change.at_s, counts: change.outcomes });
  if (page.outcomes.length > RATE_OVER + 1) page.outcomes.shift();
  seen.events = [...seen.events, ...change.events].slice(-EVENTS);
  for (const event of change.events) addEvent(event);
  draw(change.rows.length > 0);
}

// --- what is drawn every second ---

function draw(moved) {
  drawStatus();
  drawFigures();
  if (moved) drawStates();
  if (!document.hidden) for (const one of page.charts) one.draw(page.seen.history, POINTS, page.seen.beat_s);
  drawEnds();
  drawTenants();
  drawDetails();
}

const last = (name) => page.seen.history[name].at(-1) ?? null;

function drawStatus() {
  const { status } = page.seen;
  $("status").className = "pill " + status;
  say($("status"), word("status_" + status));
  document.title = status === "ok" ? "Tidegate" : `(${word("title_bad")}) Tidegate`;
}

function drawFigures() {
  const seen = page.seen, rows = seen.rows;
  const asked = ["completed", "refused", "turned_away", "failed", "cancelled"].reduce((sum, name) => sum + last(name), 0);
  const refused = asked ? last("refused") / asked : 0;
  const ready = rows.filter((row) => seen.states[row[0]] === "ready").length;
  const ttft = last("ttft_p99_s"), gap = last("gap_p99_s"), kv = last("kv_max");
  const figures = [
    ["f_requests", count(asked), word("per_s"), false],
    ["f_refused", share(refused), word("of_asked"), refused > 0.05],
    ["f_ttft", seconds(ttft), word("promised", seconds(seen.slo.ttft_s)), ttft > seen.slo.ttft_s],
    ["f_gap", seconds(gap), word("promised", seconds(seen.slo.itl_s)), gap > seen.slo.itl_s],
    ["f_queue", count(seen.queued), word("of", seen.queue_max), seen.queued > 0.8 * seen.queue_max],
    ["f_flight", count(seen.in_flight), "", false],
    ["f_ready", count(ready), word("of", rows.length), ready < rows.length],
    ["f_kv", share(kv), word("mean", share(last("kv_mean"))), kv > seen.kv_high],
    ["f_tokens", count(last("output_tokens")), word("prompt_s", count(last("prompt_tokens"))), false],
  ];
  const list = $("figures");
  while (list.children.length < figures.length) {
    const card = element("div");
    card.append(element("dt"), element("dd"), element("dd", "beside"));
    list.append(card);
  }
  figures.forEach(([name, value, beside, bad], number) => {
    const card = list.children[number];
    card.className = bad ? "bad" : "";
    say(card.children[0], word(name));
    say(card.children[1], value);
    say(card.children[2], beside);
  });
}

function fillTable(table, rows, empty) {
  const body = $(table).tBodies[0];
  if (!rows.length) {
    const row = element("tr"), cell = element("td", "empty", empty);
    cell.colSpan = 9;
    row.append(cell);
    body.replaceChildren(row);
    return;
  }
  while (body.rows.length > rows.length) body.lastChild.remove();
  rows.forEach(([kind, head, ...cells], number) => {
    let row = body.rows[number];
    if (!row || row.cells.length !== cells.length + 1) {
      const made = element("tr");
      const first = element("th");
      first.scope = "row";
      made.append(first, ...cells.map(() => element("td")));
      if (row) row.replaceWith(made); else body.append(made);
      row = made;
    }
    row.className = kind;
    [head, ...cells].forEach((text, index) => say(row.cells[index], text));
  });
}

function drawEnds() {
  const first = page.outcomes[0], now = page.outcomes.at(-1), passed = Math.max(now.at - first.at, 1);
  const rows = Object.entries(page.seen.outcomes).sort((one, other) => other[1] - one[1]).map(([name, total]) => {
    const rate = Math.max(0, total - (first.counts[name] ?? 0)) / passed;
    return [page.seen.kinds[name], word("o_" + name), rate ? count(rate) : "0", count(total)];
  });
  fillTable("ends", rows, word("no_requests"));
}

function drawTenants() {
  const rows = page.seen.tenants.map((one) => {
    const left = one.limits.map((limit) => `${count(limit.left)} / ${count(limit.per_minute)}`).join(" · ");
    return ["", one.name, count(one.requests_s), count(one.tokens_s), count(one.prompt_tokens + one.output_tokens), left || word("no_limit")];
  });
  fillTable("tenants", rows, word("none"));
}

function addEvent(event) {
  const list = $("events"), row = element("li"), when = new Date(event.at_s * 1000);
  const time = element("time", "", when.toLocaleTimeString(document.documentElement.lang, { hour12: false }));
  time.dateTime = when.toISOString();
  row.append(time, element("span", event.level, eventText(event)));
  list.querySelector(".empty")?.remove();
  list.prepend(row);
  while (list.children.length > EVENTS) list.lastChild.remove();
}

// --- the map ---

function buildTiles() {
  const { instances } = page.seen, models = [...new Set(instances.map((one) => one.model))];
  const size = instances.length <= LARGE ? "large" : instances.length <= MEDIUM ? "medium" : "small";
  const pools = new Map();
  $("tiles").replaceChildren();
  for (const model of models) {
    const title = element("h3", "", model), pool = element("div", "pool " + size);
    pool.setAttribute("role", "group");
    pool.setAttribute("aria-label", model);
    $("tiles").append(title, pool);
    pools.set(model, pool);
  }
  page.tiles = instances.map((one, number) => {
    const tile = element("button", "tile");
    tile.type = "button";
    tile.tabIndex = number ? -1 : 0;
    tile.title = one.name;
    tile.setAttribute("aria-controls", "details");
    tile.append(element("span", "name", one.name), element("span", "kv"), element("span", "work"), element("span", "mark"));
    tile.addEventListener("click", () => openDetails(number));
    pools.get(one.model).append(tile);
    return tile;
  });
  page.seen.rows.forEach((_, number) => drawTile(number));
  if (page.chosen >= instances.length) page.chosen = null;
}

function drawTile(number) {
  const tile = page.tiles[number], [state, kv, running, waiting] = page.seen.rows[number];
  const name = page.seen.states[state], silent = name === "ready" && kv === null;
  const working = name === "ready" || name === "draining" || name === "tripped", fill = working ? Math.round((kv ?? 0) * 100) : 0;
  const high = working && kv > page.seen.kv_high;
  tile.className = `tile ${name}${silent ? " unknown" : ""}${fill ? "" : " dry"}${high ? " high" : ""}`;
  tile.style.setProperty("--fill", fill + "%");
  tile.setAttribute("aria-expanded", String(page.chosen === number));
  tile.setAttribute("aria-label", word("tile", page.seen.instances[number].name, word(name), kv === null ? word("unknown") : share(kv), count(running), count(waiting)));
  say(tile.children[1], name === "tripped" || !working ? word(name) : kv === null ? "?" : share(kv));
  say(tile.children[2], working ? word("work", count(running), count(waiting)) : "");
  say(tile.children[3], MARKS[name] || (high ? "!" : ""));
}

function drawStates() {
  const { states, rows } = page.seen, counts = { all: rows.length };
  for (const row of rows) counts[states[row[0]]] = (counts[states[row[0]]] ?? 0) + 1;
  const box = $("states"), wanted = ["all", ...states.filter((name) => counts[name] || page.state === name)];
  if ([...box.children].map((one) => one.dataset.state).join() !== wanted.join()) {
    const held = document.activeElement?.dataset?.state;
    box.replaceChildren(...wanted.map((name) => {
      const chip = element("button");
      chip.type = "button";
      chip.dataset.state = name;
      chip.addEventListener("click", () => { page.state = name; drawStates(); filter(); });
      return chip;
    }));
    if (held) box.querySelector(`[data-state="${held}"]`)?.focus();
  }
  for (const chip of box.children) {
    chip.setAttribute("aria-pressed", String(chip.dataset.state === page.state));
    say(chip, `${word(chip.dataset.state)} ${counts[chip.dataset.state] ?? 0}`);
  }
  filter();
}

function filter() {
  const wanted = $("find").value.trim().toLowerCase();
  const { instances, rows, states } = page.seen;
  page.tiles.forEach((tile, number) => {
    const named = !wanted || instances[number].name.toLowerCase().includes(wanted) || instances[number].url.includes(wanted);
    const hidden = !(named && (page.state === "all" || states[rows[number][0]] === page.state));
    if (tile.hidden !== hidden) tile.hidden = hidden;
  });
  const shown = page.tiles.filter((tile) => !tile.hidden);
  if (shown.length && !shown.some((tile) => tile.tabIndex === 0)) rove(shown[0], false);
}

function rove(tile, focus = true) {
  for (const one of page.tiles) if (one.tabIndex === 0) one.tabIndex = -1;
  tile.tabIndex = 0;
  if (focus) tile.focus();
}

$("tiles").addEventListener("keydown", (event) => {
  const shown = page.tiles.filter((tile) => !tile.hidden), at = shown.indexOf(document.activeElement);
  if (at < 0) return;
  if (event.key === "Escape") { closeDetails(); return; }
  const top = shown[at].offsetTop;
  const across = Math.max(1, shown.filter((tile) => tile.offsetTop === top && tile.parentNode === shown[at].parentNode).length);
  const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across, Home: -shown.length, End: shown.length }[event.key];
  if (!step) return;
  event.preventDefault();
  rove(shown[Math.max(0, Math.min(shown.length - 1, at + step))]);
});

function openDetails(number) {
  const before = page.chosen;
  page.chosen = before === number ? null : number;
  if (before !== null) drawTile(before);
  drawTile(number);
  rove(page.tiles[number]);
  $("details").replaceChildren();
  drawDetails();
}

function closeDetails() {
  if (page.chosen !== null) openDetails(page.chosen);
}

function drawDetails() {
  const box = $("details");
  box.hidden = page.chosen === null;
  if (box.hidden) return;
  const one = page.seen.instances[page.chosen], [state, kv, running, waiting, flight, age, claimed] = page.seen.rows[page.chosen];
  const told = [
    ["d_model", one.model], ["d_state", word(page.seen.states[state])], ["d_url", one.url], ["d_kind", one.kind],
    ["d_kv", kv === null ? word("unknown") : share(kv)], ["d_claimed", claimed === null ? word("unknown") : share(claimed)],
    ["d_running", running === null ? word("unknown") : count(running)], ["d_waiting", waiting === null ? word("unknown") : count(waiting)],
    ["d_flight", count(flight)], ["d_age", age === null ? word("unknown") : age ? word("old", age) : word("fresh")],
  ];
  if (!box.children.length) {
    const list = element("dl"), close = element("button", "", word("close"));
    for (const [name] of told) list.append(element("dt", "", word(name)), element("dd"));
    close.type = "button";
    close.addEventListener("click", closeDetails);
    box.append(element("h3", "", one.name), list, close);
  }
  told.forEach(([, value], number) => say(box.children[1].children[2 * number + 1], value));
}

// --- language and theme ---

function words() {
  choose($("language").value);
  if (!page.seen) return;
  link(page.live ?? true);
  for (const one of page.charts) one.words();
  page.seen.rows.forEach((_, number) => drawTile(number));
  $("details").replaceChildren();
  $("events").replaceChildren(element("li", "empty", word("no_events")));
  page.seen.events.forEach(addEvent);
  draw(true);
}

function theme() {
  const wanted = $("theme").value;
  const dark = wanted === "dark" || (wanted === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.classList.toggle("dark", dark);
}

function remember(id, first, changed) {
  const asked = new URLSearchParams(location.search).get(id);
  const known = [...$(id).options].map((option) => option.value);
  const before = asked ?? localStorage.getItem("tidegate." + id) ?? first;
  $(id).value = known.includes(before) ? before : first;
  $(id).addEventListener("change", () => { localStorage.setItem("tidegate." + id, $(id).value); changed(); });
  changed();
}

remember("language", navigator.language.startsWith("zh") ? "zh" : "en", words);
remember("theme", "auto", theme);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", theme);
$("find").addEventListener("input", () => { if (page.seen) filter(); });
addEventListener("resize", () => { if (page.seen) draw(false); });
document.addEventListener("visibilitychange", () => { if (page.seen) draw(false); });
listen();
