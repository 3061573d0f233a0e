/* The curves of the settings in the table: a panel a data set and heterogeneity, a line a setting, a band over seeds. */
const BEST_A_PANEL = 8, MOST_PANELS = 12, MOST_WITH_BANDS = 60;

/* Panel -> settings to draw, and what is left out, in words. */
function chosenPanels() {
  const settings = sorted(visibleSettings()).filter((setting) => setting.cells[state.metric]);
  const byFigure = state.sort.key === "figure" ? settings : byMean(settings);
  const panels = new Map();
  let left = 0;
  for (const setting of byFigure) {
    if (state.scope === "selected" && !state.selected.has(setting.id)) continue;
    const panel = panelOf(setting), there = panels.get(panel) || [];
    if (state.scope === "top" && there.length >= BEST_A_PANEL) { left += 1; continue; }
    panels.set(panel, [...there, setting]);
  }
  const names = [...panels.keys()].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const kept = state.scope === "top" ? names.slice(0, MOST_PANELS) : names;
  return { panels: new Map(kept.map((name) => [name, panels.get(name)])), left, panelsLeft: names.length - kept.length };
}

function byMean(settings) {
  const sign = modeOf(state.metric) === "max" ? -1 : 1;
  const worth = (setting) => cellOf(setting).mean ?? -sign * Infinity;
  return [...settings].sort((a, b) => sign * (worth(a) - worth(b)) || 0);
}

/* With very many lines, markers and bands hide more than they show, and take seconds to draw. */
function crowded() {
  return drawCurves.count > MOST_WITH_BANDS;
}

function drawCurves() {
  if (!DATA.columns || typeof Plotly === "undefined" || !$("run").hidden) return;
  const { panels, left, panelsLeft } = chosenPanels();
  drawCurves.count = [...panels.values()].reduce((sum, settings) => sum + settings.length, 0);
  const room = Math.max(1, Math.floor($("curves").clientWidth / 380));
  const names = [...panels.keys()], columns = Math.min(3, room, names.length) || 1, rows = Math.ceil(names.length / columns) || 1;
  const traces = [], shown = new Set();
  const height = rows * 330 + 40;
  const layout = chartLayout({ height, annotations: [], showlegend: true,
    legend: { orientation: "h", y: 0, yref: "container", yanchor: "bottom", x: 0.5, xanchor: "center", font: { size: 12 } },
    margin: { l: 58, r: 14, t: 34, b: 74 } });
  const share = isShare(state.metric);
  names.forEach((name, place) => {
    const axis = place === 0 ? "" : String(place + 1);
    const [left, right, low, high] = domainOf(place, columns, rows);
    layout[`xaxis${axis}`] = axisLook({ domain: [left, right], anchor: `y${axis}`, rangemode: "tozero",
      title: place >= names.length - columns ? { text: AXES[state.axis].title, font: { size: 12 }, standoff: 6 } : undefined });
    layout[`yaxis${axis}`] = axisLook({ domain: [low, high], anchor: `x${axis}`, type: state.log ? "log" : "linear",
      tickformat: share && !state.log ? ".0%" : undefined, exponentformat: "power",
      matches: place && !state.log ? "y" : undefined,
      title: place % columns === 0 ? { text: plain(share ? state.metric : withUnit(state.metric)), font: { size: 12 } } : undefined });
    layout.annotations.push({ text: `<b>${plain(name)}</b>`, xref: "paper", yref: "paper", x: (left + right) / 2, y: high,
      xanchor: "center", yanchor: "bottom", showarrow: false, font: { size: 13 } });
    for (const setting of panels.get(name)) traces.push(...settingTraces(setting, axis, shown));
  });
  if (!names.length) layout.xaxis = layout.yaxis = { visible: false };
  layout.showlegend = shown.size <= 14;
  const node = $("curves");
  node.style.minHeight = `${height}px`;
  note.thin = traces.some((trace) => trace.thin);
  note.hidden = state.log ? traces.filter((trace) => trace.meta).reduce((sum, trace) => sum + trace.y.filter((y) => y <= 0).length, 0) : 0;
  note(names.length ? traces.filter((trace) => trace.meta).length : 0, left, panelsLeft);
  const drawn = paint(node, traces, layout, true);
  drawn.then(() => { if (!node.wired) { wire(node); node.wired = true; } document.body.dataset.drawn = Date.now(); });
}

function domainOf(place, columns, rows) {
  const column = place % columns, row = Math.floor(place / columns), gapX = 0.055, gapY = 90 / (rows * 330);
  const width = (1 - gapX * (columns - 1)) / columns, height = (1 - gapY * (rows - 1)) / rows;
  const left = column * (width + gapX), high = 1 - row * (height + gapY);
  return [left, left + width, Math.max(0, high - height), high];
}

function settingTraces(setting, axis, shown) {
  const curve = meanCurve(setting, state.metric, state.axis), colour = colourOf(setting.look);
  const where = { xaxis: `x${axis}`, yaxis: `y${axis}`, legendgroup: setting.label };
  const inLegend = () => { const first = !shown.has(setting.label); shown.add(setting.label); return first; };
  const traces = [];
  if (curve.x.length && state.bands && !crowded() && curve.std.some((value) => value > 0)) {
    const scale = scaleOf(state.metric);
    const up = curve.y.map((y, i) => scale * (y + curve.std[i])), down = curve.y.map((y, i) => scale * (y - curve.std[i]));
    traces.push({ ...where, x: [...curve.x, ...[...curve.x].reverse()], y: [...up, ...down.reverse()], fill: "toself",
      mode: "lines", line: { width: 0 }, fillcolor: see(colour, 0.16), hoverinfo: "skip", showlegend: false, band: setting.id });
  }
  if (curve.x.length) {
    traces.push({ ...where, ...lineOf(setting, curve, 2.2), showlegend: inLegend(), meta: setting.id,
      hovertemplate: `<b>${plain(setting.label)}</b><br>%{customdata}<extra></extra>`,
      customdata: curve.y.map((y, i) => hoverText(curve, i, y)) });
  }
  const counted = new Set(setting.counted);
  for (const run of setting.members.filter((run) => !counted.has(run.id))) {
    const points = runPoints(run, state.metric, state.axis);
    if (!points.x.length) continue;
    const said = statesOf(run).map((name) => STATES[name].text).join(", ");
    traces.push({ ...where, ...lineOf(setting, points, 1.2), opacity: 0.7, thin: true, showlegend: inLegend(), meta: setting.id,
      hovertemplate: `<b>${plain(setting.label)}</b>, seed ${run.seed}: ${said}<br>%{customdata}<extra></extra>`,
      customdata: points.y.map((y, i) => hoverText(points, i, y)) });
  }
  return traces;
}

function lineOf(setting, points, width) {
  const colour = colourOf(setting.look);
  return { x: points.x, y: points.y.map((y) => scaleOf(state.metric) * y), mode: crowded() ? "lines" : "lines+markers", name: folded(setting.label),
    line: { color: colour, width, dash: setting.look.dash },
    marker: { symbol: setting.look.marker, color: colour, size: 8, maxdisplayed: 6, line: { width: setting.look.marker.endsWith("-open") ? 1.5 : 0 } } };
}

/* A label in the legend, in lines that fit into the page. */
function folded(label) {
  const most = Math.max(20, Math.floor($("curves").clientWidth / 7.5) - 8), lines = [""];
  for (const part of label.split(/(?<=[ ,])/)) {
    if (lines.at(-1) && lines.at(-1).length + part.length > most) lines.push("");
    lines[lines.length - 1] += part;
  }
  return lines.map(plain).join("<br>");
}

function hoverText(points, i, y) {
  const spread = points.std && points.n > 1 ? ` ± ${number(points.std[i], state.metric)} (${points.n})` : "";
  const x = state.axis === "rounds" ? "" : `, ${significant(points.x[i])} ${state.axis === "seconds" ? "s" : "MB"}`;
  const unit = suffixOf(state.metric);
  return `${number(y, state.metric)}${unit ? ` ${unit}` : ""}${spread}<br>round ${points.round[i]}${x}`;
}

function note(curves, left, panelsLeft) {
  const parts = [curves ? plural(curves, "curve") : "No curve: none of the settings asked for measured this metric"];
  if (left) parts.push(`${left} more below the best ${BEST_A_PANEL} of a panel: select rows, or show all`);
  if (panelsLeft) parts.push(`${panelsLeft} more panels: filter by data or heterogeneity, or show all`);
  if (crowded()) parts.push(`more than ${MOST_WITH_BANDS}: without markers and bands`);
  if (note.hidden) parts.push(`${plural(note.hidden, "value")} at or below 0 ${note.hidden === 1 ? "has" : "have"} no place on a log scale`);
  if (curves) parts.push("hover over a row or a line to find the other");
  if (note.thin) parts.push("thin lines are runs that no mean contains");
  $("curves-note").textContent = parts.join("; ") + ".";
}

/* Hovering over a line lights its row, a click selects it. */
function wire(node) {
  node.on("plotly_hover", (event) => light(event.points[0].data.meta || null));
  node.on("plotly_unhover", () => light(null));
  node.on("plotly_click", (event) => {
    const id = event.points[0].data.meta;
    if (id) { select(id, !state.selected.has(id)); drawTable(); }
  });
}

/* Bring one setting to the front, in the table and in the curves; null for all alike. */
function light(id) {
  if (state.lit === id) return;
  state.lit = id;
  for (const row of document.querySelectorAll("#rows tr.lit")) row.classList.remove("lit");
  const row = id && document.querySelector(`tr[data-id="${id}"]`);
  if (row) row.classList.add("lit");
  const node = $("curves");
  if (!node.data || !node.data.length || node.data.length > 400) return;
  const drawn = !id || node.data.some((trace) => trace.meta === id);
  const faint = (trace) => (drawn && id && trace.meta !== id && trace.band !== id ? 0.13 : 1);
  clearTimeout(light.later);
  light.later = setTimeout(() => Plotly.restyle(node, { opacity: node.data.map(faint) }), 40);
}
