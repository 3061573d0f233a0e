/* Numbers as text, and elements: text from run folders only ever becomes text nodes. */
function isShare(metric) {
  return metric.split("/").pop().startsWith("acc");
}

function number(value, metric) {
  if (value === null || value === undefined) return "–";
  return isShare(metric) ? (100 * value).toFixed(2) : significant(value * scaleOf(metric));
}

/* The unit that a metric is shown in; bytes as megabytes. */
function unitOf(metric) {
  const { unit } = about(metric);
  return isShare(metric) ? "%" : unit === "bytes" ? "MB" : unit;
}

function scaleOf(metric) {
  return about(metric).unit === "bytes" ? 1e-6 : 1;
}

/* The unit that stands behind a number; empty for kinds such as a loss, which only an axis names. */
function suffixOf(metric) {
  const unit = unitOf(metric);
  return ["%", "MB", "s"].includes(unit) ? unit : "";
}

function withUnit(metric) {
  return suffixOf(metric) ? `${metric} (${suffixOf(metric)})` : metric;
}

function significant(value, digits = 4) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e-3 && size < 1e5 ? String(Number(value.toPrecision(digits))) : value.toExponential(digits - 1);
}

function megabytes(bytes) {
  return bytes === null || bytes === undefined ? "–" : significant(bytes / 1e6);
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
}

function plural(count, noun) {
  return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
}

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "class") node.className = value;
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const $ = (id) => document.getElementById(id);

const MARKS = {
  circle: "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0", square: "M-4-4h8v8h-8z", diamond: "M0-5L5 0L0 5L-5 0z",
  "triangle-up": "M0-5L5 4H-5z", "triangle-down": "M0 5L5-4H-5z", "triangle-left": "M-5 0L4-5V5z",
  "triangle-right": "M5 0L-4-5V5z", cross: "M-5-2h3v-3h4v3h3v4h-3v3h-4v-3h-3z",
  x: "M-5-3L-3-5L0-2L3-5L5-3L2 0L5 3L3 5L0 2L-3 5L-5 3L-2 0z", "diamond-tall": "M0-6L3 0L0 6L-3 0z",
  star: "M0-6L1.5-2H5.5L2.3.6L3.5 5L0 2.4L-3.5 5L-2.3.6L-5.5-2H-1.5z", pentagon: "M0-5L5-1L3 5H-3L-5-1z",
  hexagon: "M0-5L4.5-2.5V2.5L0 5L-4.5 2.5V-2.5z",
};
const DASHES = { solid: "", dash: "7 4", dot: "2 3", dashdot: "7 3 2 3", longdash: "11 4", longdashdot: "11 3 2 3" };

/* The line and marker of a setting, as in the curves. */
function swatch(look) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "swatch"); svg.setAttribute("viewBox", "-17 -7 34 14"); svg.setAttribute("aria-hidden", "true");
  const colour = colourOf(look);
  const line = document.createElementNS(svg.namespaceURI, "path");
  line.setAttribute("d", "M-17 0H17"); line.setAttribute("stroke", colour); line.setAttribute("stroke-width", "2");
  line.setAttribute("stroke-dasharray", DASHES[look.dash] || "");
  const mark = document.createElementNS(svg.namespaceURI, "path"), hollow = look.marker.endsWith("-open");
  mark.setAttribute("d", MARKS[look.marker.replace("-open", "")] || MARKS.circle);
  mark.setAttribute("fill", hollow ? "var(--card)" : colour); mark.setAttribute("stroke", colour);
  svg.append(line, mark);
  return svg;
}

function isDark() {
  return document.documentElement.dataset.theme === "dark";
}

function colourOf(look) {
  return isDark() ? look.dark : look.light;
}

function badge(name, count) {
  const { text, mark } = STATES[name];
  const shown = [el("span", { "aria-hidden": "true" }, `${mark} `), count > 1 ? `${count} ${text}` : text];
  return el("span", { class: `badge ${name}` }, ...shown);
}
