/* The table of settings. */
const HEADS = [
  { key: "", text: "curve" }, { key: "label", text: "method" }, { key: "data", text: "data" },
  { key: "split", text: "heterogeneity" }, { key: "figure", text: "", num: true }, { key: "n", text: "n", num: true },
  { key: "rounds", text: "rounds", num: true }, { key: "bytes", text: "MB up", num: true },
  { key: "seconds", text: "time", num: true }, { key: "", text: "runs by seed" }, { key: "", text: "status" },
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
  const unit = isShare(state.metric) ? " in percent" : "";
  $("caption").textContent = `${state.metric}${unit} at the ${state.at} round: mean ± sample std over seeds; n counts ` +
    "finished runs, one a seed. Bold: best of those shown on the same data. Runs that differ in more than the seed are " +
    "never averaged.";
}

function drawHeads() {
  const unit = isShare(state.metric) ? " %" : "";
  $("heads").replaceChildren(...HEADS.map((head) => {
    const text = head.key === "figure" ? state.metric + unit : head.text;
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
  const isBest = cell.mean !== null &&
    number(cell.mean, state.metric) === number(best.get(panelOf(setting)) ?? null, state.metric);
  const figure = number(cell.mean, state.metric) + (cell.std === null ? "" : ` ± ${number(cell.std, state.metric)}`);
  const picked = state.selected.has(setting.id);
  const box = el("input", { type: "checkbox", "aria-label": `select ${setting.label}, ${panelOf(setting)}`,
    onchange: (event) => select(setting.id, event.target.checked) });
  box.checked = picked;
  const name = el("span", { class: "name", title: setting.label }, swatch(setting.look), el("span", {}, setting.label));
  const bytes = cellOf(setting, "comm/up_bytes", "final").mean, seconds = cellOf(setting, "time/total_s", "final").mean;
  const rounds = Math.max(...setting.members.map((run) => run.rounds));
  return el("tr", { "data-id": setting.id, class: picked ? "picked" : null,
    onmouseenter: () => light(setting.id), onmouseleave: () => light(null), onfocusin: () => light(setting.id), onfocusout: () => light(null) },
  el("td", {}, box), el("th", { scope: "row" }, name), el("td", {}, setting.data), el("td", {}, setting.split),
  el("td", { class: isBest ? "num best" : "num" }, figure, isBest ? el("span", { class: "sr" }, " (best)") : null),
  el("td", { class: "num" }, cell.n === setting.members.length ? `${cell.n}` : `${cell.n} of ${setting.members.length}`),
  el("td", { class: "num" }, `${rounds}`), el("td", { class: "num" }, megabytes(bytes)),
  el("td", { class: "num" }, duration(seconds)), el("td", {}, seedLinks(setting)), el("td", {}, ...badges(setting)));
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
