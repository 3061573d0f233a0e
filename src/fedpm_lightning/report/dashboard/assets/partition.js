/* The partition of a run: its figures and three pictures of who holds which classes. */
function partitionCard(run) {
  const card = el("section", { class: "card", "aria-labelledby": "partition-heading" }, el("h2", { id: "partition-heading" }, "Partition"));
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
    card.append(partitionSwitch(run, found), el("div", { id: "partition-plot", role: "img", "aria-labelledby": "partition-heading" }), countsTable(found));
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

/* Clients and classes one by one where there are few of them, else how the clients are distributed. */
const MOST_CLIENTS = 100, MOST_CLASSES = 30;
const PICTURES = { heatmap: "client × class", bars: "stacked bars", distributions: "distributions" };

function partitionSwitch(run, partition) {
  const many = partition.histogram.length > MOST_CLIENTS || partition.histogram[0].length > MOST_CLASSES;
  const first = many ? "distributions" : "heatmap";
  return el("fieldset", { class: "switch" }, el("legend", {}, "Picture"), ...Object.entries(PICTURES).map(([kind, text]) => {
    const radio = el("input", { type: "radio", name: "picture", value: kind, onchange: () => drawPartition(run) });
    radio.checked = kind === first;
    return el("label", {}, radio, el("span", {}, text));
  }));
}

function drawPartition(run) {
  const node = $("partition-plot");
  if (!node || typeof Plotly === "undefined") return;
  const partition = DATA.manifest.partitions[run.partition];
  const kind = document.querySelector("[name=picture]:checked").value;
  const [traces, layout] = { heatmap: heatMap, bars: stackedBars, distributions }[kind](partition);
  Plotly.purge(node);
  paint(node, traces, chartLayout({ showlegend: false, margin: { l: 55, r: 10, t: 10, b: 42 }, ...layout }));
}

function heatMap({ histogram, sizes }) {
  const shares = histogram[0].map((_, c) => histogram.map((counts, k) => (sizes[k] ? counts[c] / sizes[k] : 0)));
  const counts = histogram[0].map((_, c) => histogram.map((row) => row[c]));
  // No share is the colour of the card, so that what a client lacks does not catch the eye.
  const colours = isDark() ? [[0, ink("card")], [0.4, "#3182BD"], [1, "#DEEBF7"]] : [[0, ink("card")], [0.4, "#6BAED6"], [1, "#08306B"]];
  const heat = { type: "heatmap", z: shares, customdata: counts, colorscale: colours, zmin: 0, zmax: Math.max(...shares.flat()) || 1, xgap: histogram.length <= 60 ? 1 : 0, ygap: shares.length <= 30 ? 1 : 0,
    hovertemplate: "client %{x}, class %{y}<br>%{customdata} samples, %{z:.1%} of the client<extra></extra>", colorbar: { thickness: 12, tickformat: ".0%", title: { text: "share", side: "right" } } };
  const bars = { type: "bar", y: sizes, yaxis: "y2", marker: { color: LINES[5][isDark() ? 1 : 0] }, hovertemplate: "client %{x}: %{y} samples<extra></extra>" };
  const height = Math.min(760, 210 + 17 * Math.max(10, histogram[0].length));
  const ground = { type: "rect", xref: "x domain", yref: "y domain", x0: 0, x1: 1, y0: 0, y1: 1, fillcolor: ink("line"), line: { width: 0 }, layer: "below" };
  return [[heat, bars], { height, shapes: [ground],
    xaxis: axisLook({ title: { text: "client" }, showgrid: false, dtick: sizes.length <= 20 ? 1 : undefined }), yaxis: axisLook({ title: { text: "class" }, domain: [0, 1 - 105 / (height - 52)], showgrid: false, dtick: histogram[0].length <= 20 ? 1 : undefined }),
    yaxis2: axisLook({ domain: [1 - 85 / (height - 52), 1], title: { text: "samples" }, nticks: 4 }) }];
}

function stackedBars({ histogram }) {
  const hue = (c) => `hsl(${Math.round((360 * c) / histogram[0].length)}, ${c % 2 ? 45 : 70}%, ${c % 2 ? 62 : 45}%)`;
  const traces = histogram[0].map((_, c) => ({ type: "bar", name: String(c), y: histogram.map((counts) => counts[c]), marker: { color: hue(c) },
    hovertemplate: `client %{x}, class ${c}: %{y} samples<extra></extra>` }));
  return [traces, { height: 420, barmode: "stack", bargap: 0.12, showlegend: histogram[0].length <= MOST_CLASSES, legend: { title: { text: "class" }, traceorder: "reversed" },
    xaxis: axisLook({ title: { text: "client" }, showgrid: false, dtick: histogram.length <= 20 ? 1 : undefined }), yaxis: axisLook({ title: { text: "samples" } }) }];
}

/* How many clients have which size, effective number of classes and total variation to the pooled labels. */
function distributions({ histogram, sizes }) {
  const held = histogram.filter((counts) => counts.some((count) => count > 0)), all = held.flat().reduce((sum, count) => sum + count, 0);
  const pooled = histogram[0].map((_, c) => held.reduce((sum, counts) => sum + counts[c], 0) / all);
  const labels = held.map((counts) => { const n = counts.reduce((sum, count) => sum + count, 0); return counts.map((count) => count / n); });
  const classes = labels.map((p) => Math.exp(-p.reduce((sum, share) => sum + (share ? share * Math.log(share) : 0), 0)));
  const distance = labels.map((p) => 0.5 * p.reduce((sum, share, c) => sum + Math.abs(share - pooled[c]), 0));
  const shown = [["samples", sizes], [`effective classes of ${pooled.length}`, classes], ["total variation to pooled", distance]];
  const colour = LINES[0][isDark() ? 1 : 0], layout = { height: 300, bargap: 0.05, yaxis: axisLook({ title: { text: "clients" } }) };
  const traces = shown.map(([name, x], i) => {
    const axis = i ? String(i + 1) : "";
    layout[`xaxis${axis}`] = axisLook({ domain: [i / 3 + 0.02 * (i > 0), (i + 1) / 3 - 0.03], anchor: `y${axis}`, title: { text: name }, showgrid: false });
    if (i) layout[`yaxis${axis}`] = axisLook({ anchor: `x${axis}` });
    return { type: "histogram", x, xaxis: `x${axis}`, yaxis: `y${axis}`, nbinsx: 30, marker: { color: colour }, hovertemplate: "%{x}: %{y} clients<extra></extra>" };
  });
  return [traces, layout];
}
