/* The table of settings. */
const HEADS = [
  { key: "", text: "curve" }, { key: "label", text: "method and status" }, { key: "data", text: "data" },
  { key: "split", text: "heterogeneity" }, { key: "figure", text: "", num: true }, { key: "n", text: "n", num: true },
  { key: "rounds", text: "rounds", num: true }, { key: "bytes", text: "MB up", num: true },
  { key: "seconds", text: "time", num: true }, { key: "", text: "runs by seed" },
];

function drawTable() {
  const settings = sorted(visibleSettings());
  drawHeads();
  const best = bestOf(settings);
  $("rows").replaceChildren(...settings.map((setting) => settingRow(setting, best)));
  const runs = settings.reduce((sum, setting) => sum + setting.members.length, 0);
  const all = DATA.manifest.settings.length;
  const shown = settings.length === all ? plural(all, "setting") : `${settings.length} of ${plural(all, "setting")}`;
  const count = `${shown}, ${plural(runs, "run")}` + (state.selected.size ? `, ${state.selected.size} selected` : "");
  if ($("count").textContent !== count) $("count").textContent = count;
  const unit = suffixOf(state.metric) ? ` in ${suffixOf(state.metric)}` : "";
  $("caption").textContent = `${state.metric}${unit} at the ${state.at} round: mean ± sample std over seeds; n counts ` +
    "finished runs, one a seed. " + (modeOf(state.metric) ? `Bold: ${modeOf(state.metric) === "max" ? "largest" : "smallest"} of ` +
    "those shown on the same data with as many rounds. " : "Neither more nor less of it is better, so nothing is bold. ") +
    "Runs that differ in more than the seed are never averaged; of runs still going the figure so far is shown.";
}

function drawHeads() {
  $("heads").replaceChildren(...HEADS.map((head) => {
    const text = head.key === "figure" ? withUnit(state.metric) : head.text;
    if (!head.key) return el("th", { scope: "col" }, text);
    const here = state.sort.key === head.key;
    const order = here ? (sortsDown() ? "descending" : "ascending") : "none";
    const arrow = el("span", { class: "arrow", "aria-hidden": "true" }, here ? (sortsDown() ? "▾" : "▴") : "");
    const button = el("button", { type: "button", "data-sort": head.key, onclick: () => sortBy(head.key) }, text, arrow);
    return el("th", { scope: "col", "aria-sort": order, class: head.num ? "num" : null }, button);
  }));
}

function sortBy(key) {
  const again = state.sort.key === key;
  state.sort = { key, down: again ? !sortsDown() : key === "figure" ? null : ["n", "rounds"].includes(key) };
  redraw();
  document.querySelector(`[data-sort="${key}"]`).focus();
}

function settingRow(setting, best) {
  const cell = cellOf(setting);
  const isBest = cell.mean !== null && best.has(rivalsOf(setting)) &&
    number(cell.mean, state.metric) === number(best.get(rivalsOf(setting)), state.metric);
  const spread = cell.std === null || cell.std === undefined ? "" : ` ± ${number(cell.std, state.metric)}`;
  const figure = orSoFar(cell, (value) => number(value, state.metric) + spread);
  const picked = state.selected.has(setting.id);
  const box = el("input", { type: "checkbox", "aria-label": `select ${setting.label}, ${panelOf(setting)}`,
    onchange: (event) => select(setting.id, event.target.checked) });
  box.checked = picked;
  const name = el("span", { class: "name", title: setting.label }, swatch(setting.look),
    el("span", {}, el("span", { class: "label" }, setting.label), el("span", { class: "states" }, ...badges(setting))));
  const bytes = cellOf(setting, "comm/up_bytes", "final"), seconds = cellOf(setting, "time/total_s", "final");
  const done = Math.max(...setting.members.map((run) => run.rounds));
  const rounds = setting.rounds && setting.rounds !== done ? `${done} of ${setting.rounds}` : `${done}`;
  return el("tr", { "data-id": setting.id, class: picked ? "picked" : null,
    onmouseenter: () => light(setting.id), onmouseleave: () => light(null), onfocusin: () => light(setting.id), onfocusout: () => light(null) },
  el("td", {}, box), el("th", { scope: "row" }, name), el("td", {}, setting.data), el("td", {}, setting.split),
  el("td", { class: isBest ? "num best" : "num" }, figure, isBest ? el("span", { class: "sr" }, " (best)") : null),
  el("td", { class: "num" }, cell.n === setting.members.length ? `${cell.n}` : `${cell.n} of ${setting.members.length}`),
  el("td", { class: "num" }, rounds), el("td", { class: "num" }, orSoFar(bytes, megabytes)),
  el("td", { class: "num" }, orSoFar(seconds, duration)), el("td", {}, seedLinks(setting)));
}

/* A cell's mean as text; where no run has finished, what the running ones have so far. */
function orSoFar(cell, text) {
  if (cell.mean !== null || cell.so_far === null || cell.so_far === undefined) return text(cell.mean);
  return el("span", { class: "quiet" }, `${text(cell.so_far)} so far`);
}

function seedLinks(setting) {
  return el("span", { class: "seeds" }, ...setting.members.map((run) => {
    const worst = statesOf(run).find((name) => name !== "finished");
    const mark = worst ? ` ${STATES[worst].mark}` : "";
    const said = statesOf(run).map((name) => STATES[name].text).join(", ");
    return el("a", { href: `#run=${run.id}`, "aria-label": `run with seed ${run.seed}, ${said}` }, `${run.seed ?? "?"}${mark}`);
  }));
}

function badges(setting) {
  const counts = new Map();
  for (const run of setting.members) for (const name of statesOf(run)) counts.set(name, (counts.get(name) || 0) + 1);
  return Object.keys(STATES).filter((name) => counts.has(name) && !(name === "finished" && counts.size > 1))
    .map((name) => badge(name, counts.get(name)));
}

function select(id, on) {
  if (on) state.selected.add(id); else state.selected.delete(id);
  if (on && state.scope === "top") { state.scope = "selected"; $("scope").value = "selected"; }
  if (!state.selected.size && state.scope === "selected") { state.scope = "top"; $("scope").value = "top"; }
  const row = document.querySelector(`tr[data-id="${id}"]`);
  if (row) row.classList.toggle("picked", on);
  drawCurves();
  $("count").textContent = $("count").textContent.replace(/, \d+ selected$/, "") +
    (state.selected.size ? `, ${state.selected.size} selected` : "");
}
