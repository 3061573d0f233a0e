/* What the reader chose, and which settings that leaves. */
const state = {
  text: "", data: "", split: "", status: "", hidden: new Set(), metric: "", at: "final", axis: "rounds",
  scope: "top", bands: true, log: false, sort: { key: "figure", down: null }, selected: new Set(), lit: null,
};

const STATES = {
  finished: { text: "finished", mark: "✓" }, going: { text: "running", mark: "▶" },
  unfinished: { text: "unfinished", mark: "…" }, diverged: { text: "diverged", mark: "✕" },
  resumed: { text: "resumed", mark: "↻" },
};

function statesOf(run) {
  const found = [run.going ? "going" : run.state];
  if (run.resumes) found.push("resumed");
  return found;
}

function modeOf(metric) {
  return about(metric).mode;
}

function haystack(setting) {
  if (setting.haystack === undefined) {
    const parts = [setting.label, setting.method, setting.data, setting.split];
    for (const run of setting.members) {
      parts.push(run.name, `seed=${run.seed}`, ...Object.entries(run.own_config).flatMap(spellings));
    }
    const config = DATA.manifest.configs[setting.members[0].config] || {};
    parts.push(...Object.entries(config).flatMap(spellings));
    // Every class path begins with the package's name: whoever looks for FedPM does not mean that.
    setting.haystack = parts.join("\n").toLowerCase().replaceAll("fedpm_lightning.", "");
  }
  return setting.haystack;
}

/* A configuration entry as the file has it, and as the command line does: without class_path and init_args. */
function spellings([key, value]) {
  const short = key.replaceAll(".init_args", "").replace(/\.class_path$/, "");
  return short === key ? [`${key}=${value}`] : [`${key}=${value}`, `${short}=${value}`];
}

/* What is looked for; `--key value` of a command line is one word. */
function soughtWords(text) {
  return text.toLowerCase().replace(/--(\S+?)[\s=]+(?!--)(\S+)/g, "$1=$2").replace(/(^|\s)--/g, "$1").split(/\s+/).filter(Boolean);
}

function visibleSettings() {
  const words = soughtWords(state.text);
  return DATA.manifest.settings.filter((setting) =>
    (!state.data || setting.data === state.data) &&
    (!state.split || setting.split === state.split) &&
    !state.hidden.has(setting.method) &&
    (!state.status || setting.members.some((run) => statesOf(run).includes(state.status) ||
      (state.status === "unfinished" && run.state === "unfinished"))) &&
    words.every((word) => haystack(setting).includes(word)));
}

function cellOf(setting, metric = state.metric, at = state.at) {
  const cells = setting.cells[metric];
  return cells ? cells[at] : { mean: null, std: null, n: 0 };
}

const SORT_VALUES = {
  label: (setting) => setting.label.toLowerCase(),
  data: (setting) => setting.data,
  split: (setting) => (setting.alpha === null ? setting.split : setting.alpha),
  figure: (setting) => cellOf(setting).mean,
  n: (setting) => cellOf(setting).n,
  rounds: (setting) => Math.max(...setting.members.map((run) => run.rounds)),
  bytes: (setting) => cellOf(setting, "comm/up_bytes", "final").mean,
  seconds: (setting) => cellOf(setting, "time/total_s", "final").mean,
};

/* Sorted as the reader wants; what was not measured comes last either way. */
function sorted(settings) {
  const value = SORT_VALUES[state.sort.key];
  const sign = sortsDown() ? -1 : 1;
  const keyed = settings.map((setting, place) => [value(setting), place, setting]);
  keyed.sort(([a, i], [b, j]) => {
    if (a === null || b === null) return (a === null) - (b === null) || i - j;
    if (typeof a !== typeof b) return String(a) < String(b) ? -sign : sign;
    return a < b ? -sign : a > b ? sign : i - j;
  });
  return keyed.map(([, , setting]) => setting);
}

function sortsDown() {
  return state.sort.down === null ? modeOf(state.metric) === "max" : state.sort.down;
}

/* The best mean of each column and number of rounds among the settings shown; none where neither more nor less is better. */
function bestOf(settings) {
  const best = new Map();
  if (!modeOf(state.metric)) return best;
  const better = modeOf(state.metric) === "max" ? Math.max : Math.min;
  for (const setting of settings) {
    const mean = cellOf(setting).mean, column = rivalsOf(setting);
    if (mean !== null) best.set(column, best.has(column) ? better(best.get(column), mean) : mean);
  }
  return best;
}

/* Which settings are compared: those on the same data and split with as many rounds. */
function rivalsOf(setting) {
  return `${panelOf(setting)}, ${setting.rounds}`;
}

function panelOf(setting) {
  return `${setting.data} ${setting.split}`.trim();
}
