/* Start, controls, navigation, and news from a server. */
function redraw() {
  drawTable();
  clearTimeout(redraw.later);
  redraw.later = setTimeout(drawCurves, 150); // not once a keystroke
}

function fillControls() {
  const settings = DATA.manifest.settings;
  options($("data"), ["", ...new Set(settings.map((setting) => setting.data))], "all");
  const splits = [...new Set(settings.map((setting) => setting.split))];
  options($("split"), ["", ...splits.sort((a, b) => a.localeCompare(b, "en", { numeric: true }))], "all");
  const keys = DATA.manifest.metrics.map((metric) => metric.key);
  options($("metric"), keys);
  if (!keys.includes(state.metric)) state.metric = keys[0] || "";
  $("metric").value = state.metric;
  const methods = new Map([...settings].reverse().map((setting) => [setting.method, setting.look])); // the first one's look
  $("methods").replaceChildren($("methods").querySelector("legend"), ...[...methods].reverse().map(([name, look]) => methodChip(name, look)));
  $("title").textContent = DATA.manifest.title || document.title;
  const going = DATA.manifest.runs.filter((run) => run.going).length;
  const made = (DATA.manifest.made || "").slice(0, 16).replace("T", " ");
  $("about").textContent = `${plural(DATA.manifest.runs.length, "run")}, ${plural(settings.length, "setting")}` +
    (going ? `, ${going} running` : "") + (made ? `; made ${made}` : "");
}

function options(select, values, nothing) {
  const kept = select.value;
  select.replaceChildren(...values.map((value) => el("option", { value }, value || nothing || "none")));
  if (values.includes(kept)) select.value = kept;
}

function methodChip(name, look) {
  const box = el("input", { type: "checkbox", value: name, onchange: (event) => {
    if (event.target.checked) state.hidden.delete(name); else state.hidden.add(name);
    redraw();
  } });
  box.checked = !state.hidden.has(name);
  return el("label", { class: "chip" }, box, swatch({ ...look, dash: "solid" }), name);
}

function listen() {
  const keep = (id, key, read = (node) => node.value) => $(id).addEventListener("input", () => { state[key] = read($(id)); redraw(); });
  keep("text", "text"); keep("data", "data"); keep("split", "split"); keep("status", "status"); keep("metric", "metric");
  for (const id of ["scope", "bands", "log"]) $(id).addEventListener("input", () => {
    state[id] = id === "scope" ? $(id).value : $(id).checked;
    drawCurves();
  });
  $("metric").addEventListener("input", () => {
    state.log = $("log").checked = about(state.metric).log;
    drawCurves();
  });
  for (const name of ["axis", "at"]) for (const radio of document.getElementsByName(name)) {
    radio.addEventListener("change", () => { state[name] = radio.value; redraw(); });
  }
  $("filters").addEventListener("submit", (event) => event.preventDefault());
  $("reset").addEventListener("click", reset);
  $("theme").addEventListener("click", () => setTheme(isDark() ? "light" : "dark", true));
  window.addEventListener("hashchange", navigate);
  window.addEventListener("resize", () => { clearTimeout(redraw.later); redraw.later = setTimeout(drawCurves, 150); });
  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName);
    if (event.key === "/" && !typing && $("run").hidden) { event.preventDefault(); $("text").focus(); }
    if (event.key === "Escape" && !$("run").hidden) location.hash = "";
  });
}

function reset() {
  Object.assign(state, { text: "", data: "", split: "", status: "", scope: "top" });
  state.hidden.clear(); state.selected.clear();
  for (const id of ["text", "data", "split", "status"]) $(id).value = "";
  $("scope").value = "top";
  fillControls(); redraw();
}

function setTheme(theme, keep) {
  document.documentElement.dataset.theme = theme;
  $("theme").textContent = theme === "dark" ? "Light" : "Dark";
  $("theme").setAttribute("aria-label", `switch to a ${theme === "dark" ? "light" : "dark"} page`);
  $("theme").setAttribute("aria-pressed", String(theme === "dark"));
  if (keep) { try { localStorage.setItem("fedpm-theme", theme); } catch { /* a page without storage forgets */ } }
  if (DATA.manifest) { fillControls(); drawTable(); navigate(null); }
}

function firstTheme() {
  let kept = null;
  try { kept = localStorage.getItem("fedpm-theme"); } catch { /* as above */ }
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", () => { if (!kept) setTheme(dark.matches ? "dark" : "light", false); });
  setTheme(kept || (dark.matches ? "dark" : "light"), false);
}

/* Show what the address says; after a reader's own step, move the focus there. */
function navigate(event) {
  const match = location.hash.match(/^#run=(\w+)/);
  if (match) {
    showRun(match[1]);
    if (event) { window.scrollTo(0, 0); const heading = $("run-heading"); if (heading) heading.focus(); }
    return;
  }
  const came = !$("run").hidden;
  $("run").hidden = true; $("overview").hidden = false; $("run").replaceChildren();
  drawCurves();
  if (came && event) $("settings-heading").focus();
}

async function lookForNews() {
  const every = DATA.manifest.refresh_s * 1000;
  try {
    const tag = lookForNews.tag || `"${DATA.manifest.tag}"`;
    const answer = await fetch("data.json", { headers: { "If-None-Match": tag } });
    if (answer.status === 200) {
      await take(await answer.json());
      lookForNews.tag = answer.headers.get("ETag");
    } else if (answer.status !== 304) throw new Error(answer.statusText);
    $("live").classList.remove("lost");
    $("live-text").textContent = `live, looked at ${new Date().toLocaleTimeString("en-GB")}`;
  } catch {
    $("live").classList.add("lost");
    $("live-text").textContent = "the server does not answer";
  }
  setTimeout(lookForNews, every);
}

async function take(news) {
  takeManifest({ title: DATA.manifest.title, ...news.manifest });
  await takeArrays(news.arrays);
  keepFocus(() => { fillControls(); drawTable(); });
  const match = location.hash.match(/^#run=(\w+)/);
  if (match) refreshRun(match[1]); else drawCurves();
}

/* Rebuild a part of the page without taking the focus from the reader. */
function keepFocus(rebuild) {
  const node = document.activeElement, row = node && node.closest("tr[data-id]");
  const path = !node ? null : row ? `tr[data-id="${row.dataset.id}"] ${node.tagName}` : node.dataset.sort ? `[data-sort="${node.dataset.sort}"]`
    : node.closest("#methods") ? `#methods input[value="${CSS.escape(node.value)}"]` : node.id ? `#${node.id}` : null;
  const place = row ? [...row.querySelectorAll(node.tagName)].indexOf(node) : 0;
  rebuild();
  if (!path || node.isConnected) return;
  const again = document.querySelectorAll(path)[place];
  if (again) again.focus({ preventScroll: true });
}

async function start() {
  takeManifest(JSON.parse($("manifest").textContent));
  $("manifest").textContent = "";
  listen();
  firstTheme();
  performance.mark("table");
  await new Promise((resolve) => document.addEventListener("DOMContentLoaded", resolve));
  await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
  await takeArrays($("arrays").textContent);
  $("arrays").textContent = "";
  await takePlotly();
  navigate(null);
  performance.mark("curves");
  if (DATA.manifest.refresh_s) { $("live").hidden = false; setTimeout(lookForNews, DATA.manifest.refresh_s * 1000); }
}

start();
