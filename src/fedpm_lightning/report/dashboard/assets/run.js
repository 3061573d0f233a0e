/* The page of one run: its facts, its curves by kind, its partition, its configuration. */
const KINDS = [
  { name: "Accuracy", of: (key) => isShare(key) && !key.startsWith("clients/") },
  { name: "Loss", of: (key) => key.endsWith("/loss") },
  { name: "Distance to the optimum", of: (key) => key.startsWith("opt/"), log: true },
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
    partitionCard(run), el("div", { class: "pair", id: "run-costs" }), configCard(run));
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

/* The run's columns by kind; what is neither quality nor cost is a diagnostic, grouped by its prefix. */
function kindsOf(run) {
  const keys = Object.keys(run.columns).filter((key) => key !== "round");
  const kinds = KINDS.map((kind) => ({ ...kind, keys: keys.filter(kind.of) })).filter((kind) => kind.keys.length);
  const taken = new Set(kinds.flatMap((kind) => kind.keys));
  const prefixes = new Map();
  for (const key of keys.filter((key) => !taken.has(key))) {
    const prefix = key.includes("/") ? key.split("/")[0] : "other";
    prefixes.set(prefix, [...(prefixes.get(prefix) || []), key]);
  }
  const rest = [...prefixes].flatMap(([prefix, of]) => apart(run, prefix, of).map(([name, keys]) => (
    { name: `${COSTS.has(prefix) ? "Cost" : "Diagnostics"}: ${name}`, keys, cost: COSTS.has(prefix) })));
  return [...kinds, ...rest.filter((kind) => !kind.cost), ...rest.filter((kind) => kind.cost)];
}

/* One prefix in several plots: shares by themselves, and families (norm_mean, norm_max) whose sizes lie far apart. */
function apart(run, prefix, keys) {
  const shares = keys.filter((key) => key.endsWith("_share")), others = keys.filter((key) => !key.endsWith("_share"));
  const families = new Map();
  for (const key of others) {
    const family = (key.split("/")[1] || key).split("_")[0];
    families.set(family, [...(families.get(family) || []), key]);
  }
  const sizes = [...families.values()].map((of) => Math.max(...of.map((key) => largest(columnOf(run, key))))).filter((size) => size > 0);
  const split = !COSTS.has(prefix) && families.size > 1 &&
    (others.some((key) => key.split("/").length > 2) || Math.max(...sizes) > 20 * Math.min(...sizes));
  const found = split ? [...families].map(([family, of]) => [`${prefix}/${family}`, of]) : others.length ? [[prefix, others]] : [];
  return shares.length ? [...found, [`${prefix}, shares`, shares]] : found;
}

function largest(column) {
  return column.reduce((most, value) => (Number.isFinite(value) && Math.abs(value) > most ? Math.abs(value) : most), 0);
}

const LINES = [["#0072B2", "#4C9FE0"], ["#D55E00", "#F28445"], ["#009E73", "#2CC79C"], ["#CC79A7", "#E59CC6"], ["#E69F00", "#F5B93A"], ["#56B4E9", "#8FD3FA"]];
const LINE_DASHES = ["solid", "dash", "dot", "dashdot"];

function drawRunPlots(run) {
  if (!DATA.columns || typeof Plotly === "undefined") return;
  const cards = kindsOf(run).map((kind, place) => {
    const plot = el("div", { class: "small", id: `run-plot-${place}`, role: "img", "aria-labelledby": `run-kind-${place}` });
    return [kind, plot, el("section", { class: "card", "aria-labelledby": `run-kind-${place}` }, el("h3", { id: `run-kind-${place}` }, kind.name), plot)];
  });
  $("run-plots").replaceChildren(...cards.filter(([kind]) => !kind.cost).map(([, , card]) => card));
  $("run-costs").replaceChildren(...cards.filter(([kind]) => kind.cost).map(([, , card]) => card));
  for (const [kind, plot] of cards) {
    const traces = kind.keys.map((key, i) => {
      const points = runPoints(run, key, "rounds");
      return { x: points.x, y: points.y, name: plain(key.includes("/") && !KINDS.some((known) => known.name === kind.name) ? key.slice(key.indexOf("/") + 1) : key),
        mode: points.x.length > 25 ? "lines" : "lines+markers", marker: { size: 5 },
        line: { color: LINES[i % 6][isDark() ? 1 : 0], width: 2, dash: LINE_DASHES[Math.floor(i / 6) % 4] }, hovertemplate: "%{y:.5~g}, round %{x}<extra>%{fullData.name}</extra>" };
    });
    const log = kind.log || spansDecades(traces);
    paint(plot, traces, chartLayout({ height: 270, margin: { l: 55, r: 10, t: 6, b: 60 }, showlegend: true, legend: { orientation: "h", y: -0.22, font: { size: 11 } },
      xaxis: axisLook({ title: { text: "round", font: { size: 11 }, standoff: 2 } }),
      yaxis: axisLook({ type: log ? "log" : "linear", exponentformat: kind.name === "Cost: comm" ? "SI" : "power", tickformat: kind.name === "Accuracy" ? ".0%" : undefined }) }));
  }
}

/* Figures over more than three decades, all above zero, read better on a log scale. */
function spansDecades(traces) {
  const values = traces.flatMap((trace) => trace.y).filter(Number.isFinite);
  return values.length > 0 && values.every((value) => value > 0) && Math.max(...values) / Math.min(...values) > 1e3;
}

function partitionCard(run) {
  const card = el("section", { class: "card", "aria-labelledby": "partition-heading" }, el("h2", { id: "partition-heading" }, "Partition: client × class"));
  const found = run.partition === null ? null : DATA.manifest.partitions[run.partition];
  if (!found) { card.append(el("p", { class: "quiet" }, "This run recorded no partition.")); return card; }
  const h = found.heterogeneity, three = (value) => value.toFixed(3);
  const spec = found.partition || {}, given = Object.entries(spec.arguments || {}).filter(([, value]) => value !== null).map(([key, value]) => `${key}=${value}`);
  const facts = { kind: `${spec.kind ?? "?"}(${given.join(", ")})`, clients: found.sizes.length,
    "samples a client": `${h.size_min} to ${h.size_max}, median ${significant(h.size_median)}`, "Gini of sizes": three(h.size_gini) };
  if (h.tv_mean !== undefined) {
    facts["total variation to pooled"] = `mean ${three(h.tv_mean)}, max ${three(h.tv_max)}`;
    facts["Jensen-Shannon distance (base 2)"] = `mean ${three(h.js_mean)}, max ${three(h.js_max)}`;
    facts["effective classes a client"] = `mean ${h.effective_classes_mean.toFixed(2)}, ${h.effective_classes_min.toFixed(2)} to ${h.effective_classes_max.toFixed(2)}`;
  }
  card.append(el("dl", { class: "facts" }, ...Object.entries(facts).map(([key, value]) => el("div", {}, el("dt", {}, key), el("dd", {}, String(value))))));
  if (found.histogram && found.histogram.length && found.histogram[0].length) {
    card.append(el("div", { id: "partition-plot", role: "img", "aria-labelledby": "partition-heading" }), countsTable(found));
  } else card.append(el("p", { class: "quiet" }, "The data have no classes to count."));
  return card;
}

/* The numbers behind the heat map, built when they are asked for. */
function countsTable(partition) {
  const details = el("details", {}, el("summary", {}, "Samples of each class at each client"));
  details.addEventListener("toggle", () => {
    if (!details.open || details.querySelector("table")) return;
    const head = el("tr", {}, el("th", { scope: "col" }, "client"), el("th", { scope: "col", class: "num" }, "all"),
      ...partition.histogram[0].map((_, c) => el("th", { scope: "col", class: "num" }, String(c))));
    const rows = partition.histogram.map((counts, k) => el("tr", {}, el("th", { scope: "row" }, String(k)),
      el("td", { class: "num" }, String(partition.sizes[k])), ...counts.map((count) => el("td", { class: "num" }, count ? String(count) : "·"))));
    details.append(el("div", { class: "scroll", tabindex: "0" }, el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows))));
  });
  return details;
}

function drawPartition(run) {
  const node = $("partition-plot");
  if (!node || typeof Plotly === "undefined") return;
  const { histogram, sizes } = DATA.manifest.partitions[run.partition];
  const shares = histogram[0].map((_, c) => histogram.map((counts, k) => (sizes[k] ? counts[c] / sizes[k] : 0)));
  const counts = histogram[0].map((_, c) => histogram.map((row) => row[c]));
  const heat = { type: "heatmap", z: shares, customdata: counts, colorscale: "Cividis", zmin: 0, zmax: Math.max(...shares.flat()) || 1, xgap: histogram.length <= 60 ? 1 : 0, ygap: shares.length <= 30 ? 1 : 0,
    hovertemplate: "client %{x}, class %{y}<br>%{customdata} samples, %{z:.1%} of the client<extra></extra>", colorbar: { thickness: 12, tickformat: ".0%", title: { text: "share", side: "right" } } };
  const bars = { type: "bar", y: sizes, yaxis: "y2", marker: { color: LINES[5][isDark() ? 1 : 0] }, hovertemplate: "client %{x}: %{y} samples<extra></extra>" };
  const height = Math.min(760, 210 + 17 * Math.max(10, histogram[0].length));
  paint(node, [heat, bars], chartLayout({ height, showlegend: false, margin: { l: 55, r: 10, t: 10, b: 42 },
    xaxis: axisLook({ title: { text: "client" }, showgrid: false, dtick: sizes.length <= 20 ? 1 : undefined }), yaxis: axisLook({ title: { text: "class" }, domain: [0, 1 - 105 / (height - 52)], showgrid: false, dtick: histogram[0].length <= 20 ? 1 : undefined }),
    yaxis2: axisLook({ domain: [1 - 85 / (height - 52), 1], title: { text: "samples" }, nticks: 4 }) }));
}

function configCard(run) {
  const shared = DATA.manifest.configs[run.config] || {}, all = { ...shared, ...run.own_config };
  const entries = Object.entries(all).sort(([a], [b]) => a.localeCompare(b));
  const body = el("tbody");
  const fill = (text) => body.replaceChildren(...entries.filter(([key, value]) => `${key}=${value}`.toLowerCase().includes(text.toLowerCase()))
    .map(([key, value]) => el("tr", {}, el("td", {}, key), el("td", {}, String(value)))));
  fill("");
  const input = el("input", { type: "search", id: "config-text", placeholder: "part of a key or value", oninput: (event) => fill(event.target.value) });
  return el("section", { class: "card", "aria-labelledby": "config-heading" },
    el("div", { class: "head" }, el("h2", { id: "config-heading" }, "Configuration"), el("label", {}, "Find ", input)),
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-labelledby": "config-heading" }, el("table", { class: "config" },
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "key"), el("th", { scope: "col" }, "value"))), body)));
}
