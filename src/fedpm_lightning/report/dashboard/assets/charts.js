/* What all charts have in common: plotly, unpacked after the first paint, and its look. */
const CHART_CONFIG = { displaylogo: false, responsive: true, displayModeBar: "hover",
  modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
  toImageButtonOptions: { format: "svg", filename: "curves" } };

const LINES = [["#0072B2", "#4C9FE0"], ["#D55E00", "#F28445"], ["#009E73", "#2CC79C"], ["#CC79A7", "#E59CC6"], ["#E69F00", "#F5B93A"], ["#56B4E9", "#8FD3FA"]];

async function takePlotly() {
  const code = new TextDecoder().decode(await unpack($("plotly").textContent));
  const script = document.createElement("script");
  script.textContent = code;
  document.head.append(script);
  $("plotly").textContent = "";
}

function ink(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function axisLook(extra) {
  return { gridcolor: ink("line"), zeroline: false, linecolor: ink("line"), automargin: true, tickfont: { size: 11 }, ...extra };
}

function chartLayout(extra) {
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: ink("ink"), size: 13,
      family: getComputedStyle(document.body).fontFamily }, margin: { l: 55, r: 12, t: 34, b: 42 }, hovermode: "closest",
    modebar: { bgcolor: "rgba(0,0,0,0)", color: ink("quiet"), activecolor: ink("accent") },
    hoverlabel: { bgcolor: ink("card"), bordercolor: ink("line"), font: { color: ink("ink") } }, ...extra,
  };
}

function paint(node, traces, layout, tools = false) {
  return Plotly.react(node, traces, layout, { ...CHART_CONFIG, displayModeBar: tools ? "hover" : false });
}

function see(colour, alpha) {
  const value = parseInt(colour.slice(1), 16);
  return `rgba(${value >> 16}, ${(value >> 8) & 255}, ${value & 255}, ${alpha})`;
}

/* Text that plotly shows is taken for markup: what comes from a run folder must not be. */
function plain(text) {
  return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}
