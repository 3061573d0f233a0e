/* The page of one run: its facts, its curves by kind, its partition, its configuration. */
const KINDS = [
  { name: "Accuracy", of: (key) => isShare(key) && !key.startsWith("clients/") },
  { name: "Loss", of: (key) => key.endsWith("/loss") },
  { name: "Optimum", of: (key) => key.startsWith("opt/") },
];
const COSTS = new Set(["comm", "time", "clients"]);

function showRun(id) {
  const run = DATA.runs.get(id), page = $("run");
  $("overview").hidden = true; page.hidden = false;
  if (!run) {
    page.replaceChildren(back(), el("p", { class: "card" }, "This run is not in the page."));
    return;
  }
  const setting = DATA.settings.get(run.setting);
  page.replaceChildren(back(), runHead(run, setting), el("div", { class: "pair", id: "run-plots" }),
    ...picturesCard(run), partitionCard(run), el("div", { class: "pair", id: "run-costs" }), configCard(run));
  drawRunPlots(run);
  drawPartition(run);
}

/* After news: only what a round changes, so that what the reader opened or typed stays. */
function refreshRun(id) {
  const run = DATA.runs.get(id), head = $("run-facts");
  if (!run || !head) { showRun(id); return; }
  keepFocus(() => head.replaceWith(runHead(run, DATA.settings.get(run.setting))));
  drawRunPlots(run);
}

function back() {
  return el("nav", { "aria-label": "Breadcrumb" }, el("a", { href: "#", id: "back" }, "← all settings"));
}

function runHead(run, setting) {
  const monitor = run.monitor ? run.monitor.key : "";
  const shown = ["test/acc", "val/acc", "opt/gap", "train/loss"].filter((key) => run.final[key] !== undefined);
  const facts = { data: panelOf(setting), seed: run.seed ?? "–", rounds: `${run.rounds} of ${run.facts.rounds ?? "?"}` };
  for (const key of shown) {
    const unit = isShare(key) ? " %" : "";
    facts[`${key}, final`] = number(run.final[key], key) + unit;
    if (run.best[key] !== undefined) facts[`${key} at best ${monitor}`] = `${number(run.best[key], key)}${unit} (round ${run.best.round})`;
  }
  facts["megabytes up"] = megabytes(run.final["comm/up_bytes"]);
  facts["time"] = duration(run.final["time/total_s"]);
  for (const key of ["clients", "local_epochs", "local_steps", "device", "ranks"]) {
    if (run.facts[key] !== undefined) facts[key.replace("_", " ")] = run.facts[key];
  }
  for (const [key, value] of Object.entries(run.versions)) facts[`${key} version`] = value;
  const list = Object.entries(facts).map(([key, value]) => el("div", {}, el("dt", {}, key), el("dd", {}, String(value))));
  const others = setting.members.filter((other) => other !== run);
  return el("section", { class: "card", id: "run-facts", "aria-labelledby": "run-heading" },
    el("div", { class: "head" }, swatch(setting.look), el("h2", { id: "run-heading", tabindex: "-1" }, `${setting.label}, seed ${run.seed ?? "?"}`),
      ...statesOf(run).map((name) => badge(name, name === "resumed" ? run.resumes : 1))),
    el("p", { class: "quiet" }, run.name),
    run.error ? el("p", { class: "error" }, run.error) : null,
    el("dl", { class: "facts" }, ...list),
    setting.left_out[run.id] ? el("p", { class: "quiet gap" }, `No mean contains this run: ${setting.left_out[run.id]}.`) : null,
    others.length ? el("p", { class: "quiet gap" }, "Same setting, other seeds: ", el("span", { class: "seeds" },
      ...others.map((other) => el("a", { href: `#run=${other.id}` }, String(other.seed ?? "?"))))) : null);
}

/* What the callback ConfusionMatrix drew when the run ended. */
const PICTURE_TEXTS = { confusion: "Confusion matrix of the last evaluated round", accuracy: "Accuracy by class and by client" };

function picturesCard(run) {
  const shown = Object.entries(run.pictures || {});
  return shown.length ? [el("section", { class: "card", "aria-labelledby": "pictures-heading" }, el("h2", { id: "pictures-heading" }, "At the end"),
    el("div", { class: "pictures" }, ...shown.map(([name, data]) => el("img", { src: `data:image/png;base64,${data}`, alt: PICTURE_TEXTS[name] || name }))))] : [];
}

/* The run's columns, those of one unit in one plot; what is neither quality nor cost is a diagnostic, by its prefix. */
function kindsOf(run) {
  const kinds = new Map();
  for (const key of Object.keys(run.columns).filter((key) => key !== "round")) {
    const prefix = key.includes("/") ? key.split("/")[0] : "other", axis = about(key).axis;
    const cost = COSTS.has(prefix), known = KINDS.find((kind) => kind.of(key));
    const name = known ? known.name : `${cost ? "Cost" : "Diagnostics"}: ${prefix}`;
    const place = known ? KINDS.indexOf(known) : cost ? 99 : 9, id = `${name}\n${axis}`;
    if (!kinds.has(id)) kinds.set(id, { name, prefix, axis, cost, place, keys: [] });
    kinds.get(id).keys.push(key);
  }
  const found = [...kinds.values()].sort((a, b) => a.place - b.place);
  // Where a prefix has several units, each plot says which it is.
  return found.map((kind) => (found.filter((other) => other.name === kind.name).length === 1 ? kind
    : { ...kind, name: kind.axis.startsWith(`${kind.prefix}/`) ? kind.name.replace(kind.prefix, kind.axis) : `${kind.name} (${kind.axis})` }));
}

/* What the columns of a plot are, for readers who meet them for the first time. */
function aboutList(keys) {
  const known = keys.map(about).filter((metric) => metric.name !== metric.key && (metric.meaning || !metric.key.split("/")[2]));
  return known.length ? el("ul", { class: "about" }, ...known.map((metric) => el("li", {}, el("code", {}, metric.key),
    ` ${metric.name}${metric.meaning ? `: ${metric.meaning}` : ""}`))) : null;
}

const LINE_DASHES = ["solid", "dash", "dot", "dashdot"];

function drawRunPlots(run) {
  if (!DATA.columns || typeof Plotly === "undefined") return;
  const cards = kindsOf(run).map((kind, place) => {
    const plot = el("div", { class: "small", id: `run-plot-${place}`, role: "img", "aria-labelledby": `run-kind-${place}` });
    return [kind, plot, el("section", { class: "card", "aria-labelledby": `run-kind-${place}` }, el("h3", { id: `run-kind-${place}` }, kind.name), plot, aboutList(kind.keys))];
  });
  $("run-plots").replaceChildren(...cards.filter(([kind]) => !kind.cost).map(([, , card]) => card));
  $("run-costs").replaceChildren(...cards.filter(([kind]) => kind.cost).map(([, , card]) => card));
  for (const [kind, plot] of cards) {
    const traces = kind.keys.map((key, i) => {
      const points = runPoints(run, key, "rounds");
      return { x: points.x, y: points.y.map((y) => scaleOf(key) * y), name: plain(key),
        mode: points.x.length > 25 ? "lines" : "lines+markers", marker: { size: 5 },
        line: { color: LINES[i % 6][isDark() ? 1 : 0], width: 2, dash: LINE_DASHES[Math.floor(i / 6) % 4] }, hovertemplate: "%{y:.5~g}, round %{x}<extra>%{fullData.name}</extra>" };
    });
    const log = spansDecades(traces, kind.keys.some((key) => about(key).log)), share = kind.keys.every(isShare);
    const unit = share ? "" : unitOf(kind.keys[0]);
    paint(plot, traces, chartLayout({ height: 270, margin: { l: 55, r: 10, t: 6, b: 60 }, showlegend: true, legend: { orientation: "h", y: -0.22, font: { size: 11 } },
      xaxis: axisLook({ title: { text: "round", font: { size: 11 }, standoff: 2 } }),
      yaxis: axisLook({ type: log ? "log" : "linear", exponentformat: "power", tickformat: share ? ".0%" : undefined,
        title: unit ? { text: plain(unit), font: { size: 11 }, standoff: 4 } : undefined }) }));
  }
}

/* Figures over more than three decades, or of that kind, read better on a log scale, where all of them are above zero. */
function spansDecades(traces, likely) {
  const values = traces.flatMap((trace) => trace.y).filter(Number.isFinite);
  return values.length > 0 && values.every((value) => value > 0) && (likely || Math.max(...values) / Math.min(...values) > 1e3);
}

function configCard(run) {
  const shared = DATA.manifest.configs[run.config] || {}, all = { ...shared, ...run.own_config };
  const entries = Object.entries(all).sort(([a], [b]) => a.localeCompare(b));
  const body = el("tbody");
  const fill = (text) => body.replaceChildren(...entries.filter(([key, value]) => soughtWords(text).every((word) => spellings([key, value]).join("\n").toLowerCase().includes(word)))
    .map(([key, value]) => el("tr", {}, el("td", {}, key), el("td", {}, String(value)))));
  fill("");
  const input = el("input", { type: "search", id: "config-text", placeholder: "part of a key or value", oninput: (event) => fill(event.target.value) });
  return el("section", { class: "card", "aria-labelledby": "config-heading" },
    el("div", { class: "head" }, el("h2", { id: "config-heading" }, "Configuration"), el("label", {}, "Find ", input)),
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-labelledby": "config-heading" }, el("table", { class: "config" },
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "key"), el("th", { scope: "col" }, "value"))), body)));
}
