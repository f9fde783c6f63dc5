// The view of runs: facts, comparison, charts.
"use strict";

function chartConfig() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const labels = { labelColor: colour("--soft"), titleColor: colour("--soft"), labelFont: "inherit", titleFont: "inherit", titleFontWeight: "normal" };
  return {
    background: null,
    font: "system-ui, sans-serif",
    view: { stroke: null },
    axis: { ...labels, gridColor: colour("--line"), domainColor: colour("--line"), tickColor: colour("--line"), labelLimit: matchMedia(NARROW).matches ? 96 : 240 },
    axisX: { grid: false },
    legend: { ...labels, symbolOpacity: 1, symbolBaseFillColor: colour("--soft"), symbolBaseStrokeColor: colour("--soft"), orient: "top", symbolType: "circle", columns: matchMedia(NARROW).matches ? 2 : 0, labelLimit: 200 },
    range: { category: ["#4c84b8", "#d08b4f", "#6aa184", "#a36a9b", "#c2a83e", "#7c8aa5", "#b4637a", "#5fa8a8"] },
    rect: { stroke: colour("--card"), strokeWidth: 1 },
    mark: { tooltip: true },
  };
}

function Chart({ chart, theme }) {
  const place = useRef();
  const [seen, setSeen] = useState(false);
  useEffect(() => {
    const observer = new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && setSeen(true), { rootMargin: "200px" });
    observer.observe(place.current);
    return () => observer.disconnect();
  }, []);
  useEffect(() => {
    if (!seen) return undefined;
    let view;
    let gone = false;
    // ast: Vega interprets its expressions, as the policy allows no eval.
    vegaEmbed(place.current, chart.spec, { actions: false, ast: true, renderer: "svg", config: chartConfig() }).then((made) => {
      if (gone) made.finalize();
      else view = made;
    });
    return () => {
      gone = true;
      if (view) view.finalize();
    };
  }, [seen, theme]);
  return html`<figure class=${chart.wide ? "card wide" : "card"}>
    <figcaption><h3>${chart.title}</h3>${chart.about && html`<p>${chart.about}</p>`}</figcaption>
    <div class="chart" ref=${place} style=${chart.wide ? "" : `min-height:${chart.spec.height}px`}></div>
  </figure>`;
}

function Runs() {
  const heads = ["Run", "Recipe", "Model", "Engine", "Agent"];
  const figures = ["Rollouts", "Episodes", "Solved in training", "Broken"];
  return html`<div class="scroll card" tabindex="0" role="region" aria-label="Runs"><table>
    <thead><tr>${heads.map((head) => html`<th scope="col">${head}</th>`)}${figures.map((head) => html`<th scope="col" class="n">${head}</th>`)}</tr></thead>
    <tbody>${report.runs.map((run) => html`<tr>
      <th scope="row">${run.name}</th><td>${run.recipe}</td><td>${run.model}</td><td>${run.engine}</td><td>${run.agent}</td>
      <td class="n">${number(run.rollouts)}</td><td class="n">${number(run.episodes)}</td>
      <td class="n">${run.episodes > run.broken ? percent(run.solved / (run.episodes - run.broken)) : "–"}</td><td class="n">${number(run.broken)}</td></tr>`)}</tbody>
  </table></div>`;
}

function Comparison({ of }) {
  return html`<section class="card"><h3>${of.set}: ${of.b} against ${of.a}</h3>
    <p class="verdict">${points(of.difference)} points <span class="soft">(${percent(of.solve_rate_a)} → ${percent(of.solve_rate_b)}, ${number(of.tasks)} tasks)</span>: <strong>${of.verdict}</strong> <span class="soft">p = ${of.p_value.toPrecision(2)}, ${of.test}</span></p>
    <div class="scroll" tabindex="0" role="region" aria-label="Intervals"><table><thead><tr><th scope="col">95 % interval, for</th><th scope="col">points</th><th scope="col">verdict</th></tr></thead>
    <tbody>${Object.entries(of.intervals).map(([name, found]) => html`<tr><th scope="row">${name}</th>
      <td>${found.refused ? "–" : `${points(found.low)} to ${points(found.high)}`}</td><td>${found.refused ? found.refused : found.verdict}</td></tr>`)}</tbody></table></div></section>`;
}

function RunView({ theme }) {
  return html`<div class="run">
    <h2>${report.runs.length > 1 ? "Runs" : "Run"}</h2>
    <${Runs} />
    ${report.notes.length > 0 && html`<section class="card notes"><h3>What was left out</h3><ul>${report.notes.map((note) => html`<li>${note}</li>`)}</ul></section>`}
    ${report.runs.some((run) => run.alarms.length > 0) && html`<section class="card notes"><h3>Alarms</h3><ul>${report.runs.flatMap((run) => run.alarms.map((alarm) => html`<li><strong>${report.runs.length > 1 ? `${run.name}: ` : ""}${alarm.held}</strong> <span class="soft">${alarm.said}</span></li>`))}</ul></section>`}
    ${report.comparisons.length > 0 && html`<h2>Comparison</h2>${report.comparisons.map((of) => html`<${Comparison} of=${of} />`)}`}
    <h2>Figures</h2>
    <div class="charts">${report.charts.map((chart) => html`<${Chart} key=${chart.title} chart=${chart} theme=${theme} />`)}</div>
    <h2>${report.runs.length > 1 ? "Recipes" : "Recipe"}</h2>
    ${report.runs.map((run) => html`<details class="card"><summary>${run.name}: recipe.yaml</summary><pre class="text">${run.recipe_file}</pre></details>`)}
  </div>`;
}
