"use strict";
/* The page's data: the manifest (plain JSON), and columns of float32 that are unpacked after the first paint. */
const DATA = { manifest: null, settings: new Map(), runs: new Map(), columns: null };

function takeManifest(manifest) {
  DATA.manifest = manifest;
  DATA.settings = new Map(manifest.settings.map((setting) => [setting.id, setting]));
  DATA.runs = new Map(manifest.runs.map((run) => [run.id, run]));
  DATA.metrics = new Map(manifest.metrics.map((metric) => [metric.key, metric]));
  for (const setting of manifest.settings) setting.members = setting.runs.map((id) => DATA.runs.get(id));
}

async function unpack(text) {
  const binary = atob(text.trim());
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

async function takeArrays(text) {
  const buffer = await unpack(text);
  let start = 0;
  DATA.columns = DATA.manifest.lengths.map((length) => {
    const column = new Float32Array(buffer, 4 * start, length);
    start += length;
    return column;
  });
}

/* A run's column of a metric, or null. */
function columnOf(run, key) {
  const place = run.columns[key];
  return place === undefined || !DATA.columns ? null : DATA.columns[place];
}

const AXES = {
  rounds: { key: "round", scale: 1, title: "round" },
  megabytes: { key: "comm/up_bytes", scale: 1e-6, title: "megabytes sent by clients" },
  seconds: { key: "time/total_s", scale: 1, title: "seconds" },
};

/* The points of one run: [x, y], the figure before the first round at x = 0. */
function runPoints(run, metric, axis) {
  const rounds = columnOf(run, "round"), ys = columnOf(run, metric), xs = columnOf(run, AXES[axis].key);
  const points = { x: [], y: [], round: [] };
  if (!rounds || !ys || !xs) return points;
  if (run.initial[metric] !== undefined && run.initial[metric] !== null) {
    points.x.push(0); points.y.push(run.initial[metric]); points.round.push(0);
  }
  for (let i = 0; i < rounds.length; i++) {
    if (Number.isNaN(ys[i])) continue;
    points.x.push(xs[i] * AXES[axis].scale); points.y.push(ys[i]); points.round.push(rounds[i]);
  }
  return points;
}

/* Mean and sample standard deviation over the runs that count, where every one of them has the round. */
function meanCurve(setting, metric, axis) {
  const counted = new Set(setting.counted);
  const each = setting.members.filter((run) => counted.has(run.id) && run.columns[metric] !== undefined)
    .map((run) => runPoints(run, metric, axis));
  const curve = { x: [], y: [], std: [], round: [], n: each.length };
  if (!each.length) return curve;
  const places = each.map((points) => new Map(points.round.map((round, i) => [round, i])));
  for (const round of each[0].round) {
    const at = places.map((place) => place.get(round));
    if (at.some((i) => i === undefined)) continue;
    const xs = at.map((i, k) => each[k].x[i]), ys = at.map((i, k) => each[k].y[i]);
    const mean = average(ys);
    const spread = ys.length > 1 ? Math.sqrt(ys.reduce((sum, y) => sum + (y - mean) ** 2, 0) / (ys.length - 1)) : 0;
    curve.x.push(average(xs)); curve.y.push(mean); curve.std.push(spread); curve.round.push(round);
  }
  return curve;
}

/* What is known of a metric. */
function about(metric) {
  return DATA.metrics.get(metric) || { key: metric, mode: null, name: metric, unit: "", axis: metric, meaning: "", log: false };
}

function average(values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}
