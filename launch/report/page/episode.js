// One episode, or those of its group side by side.
"use strict";

function useDetails(rows) {
  const [state, setState] = useState({ key: null });
  const key = rows.join();
  useEffect(() => {
    let gone = false;
    Promise.all(rows.map(detailOf)).then(
      (details) => gone || setState({ key, details }),
      (error) => gone || setState({ key, error: error.message }),
    );
    return () => {
      gone = true;
    };
  }, [key]);
  return state.key === key ? state : {};
}

function Turn({ turn }) {
  const seconds = turn.ended - turn.began;
  return html`<li class=${`turn ${turn.role}`}>
    <h4>${turn.role}<span class="soft">${turn.ended > 0 ? ` at ${number(turn.began, 1)} s` : ""}${seconds >= 0.05 ? ` · took ${number(seconds, 1)} s` : ""}</span></h4>
    ${turn.reasoning && html`<details open><summary>Reasoning</summary><${Long} text=${turn.reasoning} /></details>`}
    ${turn.text && html`<${Long} text=${turn.text} />`}
    ${(turn.calls || []).map((call) => html`<div class="call"><span class="name">${call.name}</span><${Code} pairs=${call.arguments} /></div>`)}
  </li>`;
}

const LEAST = -4; // nats: at and below it a token has the strongest colour
const steps = (of, texts) => texts.map(([name, text]) => html`<span class=${`${of}${name}`}>${text}</span>`);

// How tokens can be coloured. of: a token's value, undefined where it has none; colour: its class; text: for the title.
const COLOURS = {
  mask: {
    legend: html`<span class="sampled">sampled by the policy</span> context`,
  },
  "log-probability": {
    of: (run, at) => run.log_probs[at],
    colour: (x) => `p${Math.round((6 * Math.min(0, Math.max(LEAST, x))) / LEAST)}`,
    text: (x) => `log-probability ${x}, probability ${Math.exp(x).toPrecision(2)}`,
    legend: steps("p", [[0, "likely"], [2, "−1.3"], [4, "−2.7"], [6, "−4 nats and less"]]),
  },
  gap: {
    of: (run, at) => run.gaps && run.gaps[at],
    colour: (x) => `p${Math.min(6, Math.max(0, Math.ceil(2 * Math.log10(x / 0.001))))}`,
    text: (x) => `gap to the trainer ${x} nats`,
    legend: steps("p", [[0, "0.001 and less"], [2, "0.01"], [4, "0.1"], [6, "1 nat and more"]]),
  },
  advantage: {
    of: (run, at) => (Array.isArray(run.advantage) ? run.advantage[at] : run.advantage),
    colour: (x) => `${x < 0 ? "minus" : "plus"}${x === 0 ? 0 : Math.abs(x) < 0.25 ? 1 : Math.abs(x) < 1 ? 2 : 3}`,
    text: (x) => `advantage ${x}`,
    legend: [...steps("minus", [[3, "−1 and less"], [2, "−0.25"], [1, "below 0"]]), ...steps("plus", [[0, "0"], [1, "above 0"], [2, "0.25"], [3, "1 and more"]])],
  },
};

function Tokens({ samples, address, go }) {
  if (!samples) return html`<p class="soft">Not in this report: <code>--tokens all</code> takes those of every episode whose tokenizer can be read.</p>`;
  const has = ([name, { of }]) => name === "mask" || name === "log-probability" || samples.some((runs) => runs.some((run) => run.sampled && of(run, 0) !== undefined));
  const offered = Object.entries(COLOURS).filter(has);
  const mode = offered.some(([name]) => name === address.colour) ? address.colour : "mask";
  const token = (run, text, at) => {
    if (mode === "mask") return html`<span class="sampled">${text}</span>`;
    const x = COLOURS[mode].of(run, at);
    if (x === undefined) return html`<span>${text}</span>`;
    const known = offered.filter(([, { of }]) => of && of(run, at) !== undefined);
    return html`<span class=${COLOURS[mode].colour(x)} title=${known.map(([, one]) => one.text(one.of(run, at))).join("; ")}>${text}</span>`;
  };
  return html`<div class="tokens">
    <fieldset><legend>Colour by</legend>
      ${offered.map(([name]) => html`<label key=${name}><input type="radio" name="colour" value=${name} checked=${mode === name} onChange=${() => go({ colour: name === "mask" ? "" : name }, true)} /> ${name}</label>`)}
      <span class="legend soft">${COLOURS[mode].legend}</span>
    </fieldset>
    ${samples.map((runs, place) => html`${samples.length > 1 && html`<h4>Sample ${place + 1}</h4>`}
      <pre class="text">${runs.map((run) => (run.sampled ? run.texts.map((text, at) => token(run, text, at)) : html`<span class="context">${run.texts[0]}</span>`))}</pre>`)}
  </div>`;
}

function Grading({ detail }) {
  const evidence = Object.entries(detail.evidence);
  const components = Object.entries(detail.components).map(([name, x]) => [name, number(x, 4)]);
  if (!evidence.length && !components.length) return html`<p class="soft">No evidence was recorded.</p>`;
  return html`${components.length > 0 && html`<${Facts} facts=${Object.fromEntries(components)} />`}
    ${evidence.map(([name, text]) => html`<h4>${name}</h4><${Long} text=${text} />`)}`;
}

function siblingsOf(at) {
  const group = value("group", at);
  const same = group === null ? ["run", "set", "rollout", "task"] : ["run", "set", "rollout", "group"];
  const rows = [];
  for (let other = 0; other < count; other++) if (same.every((name) => value(name, other) === value(name, at))) rows.push(other);
  return rows;
}

function Siblings({ rows, at, go, beside }) {
  if (rows.length < 2) return null;
  return html`<nav class="siblings" aria-label="Group">
    <span class="soft">Group of ${rows.length}</span>
    ${rows.map((row, place) => html`<button class=${`sibling ${value("outcome", row).replace(" ", "-")}`} aria-current=${row === at ? "true" : undefined} title=${`${value("outcome", row)}, reward ${reward(row)}`}
        aria-label=${`episode ${place + 1}: ${value("outcome", row)}`} onClick=${() => go({ at: row }, true)}>${place + 1}</button>`)}
    <button class="more" aria-pressed=${beside} onClick=${() => go({ beside: beside ? "" : "1" }, true)}>${beside ? "One episode" : "Side by side"}</button>
  </nav>`;
}

function SideBySide({ rows, go }) {
  const { details, error } = useDetails(rows);
  if (error) return html`<p role="alert">${error}</p>`;
  if (!details) return html`<p class="loading">Loading…</p>`;
  return html`<div class="beside" tabindex="0" role="region" aria-label="Episodes of the group">${rows.map((row, place) => html`<section class="card" key=${row}>
    <h3><button class="link" onClick=${() => go({ at: row, beside: "" })}>Episode ${place + 1}</button> <${Outcome} of=${value("outcome", row)} /></h3>
    <${Summary} at=${row} />
    <h4>Tools</h4><p class="soft">${details[place].turns.flatMap((turn) => turn.calls || []).map((call) => call.name).join(" → ") || "none"}</p>
    <h4>Patch</h4>${details[place].patch.length ? html`<${Code} pairs=${details[place].patch} />` : html`<p class="soft">Empty.</p>`}
    ${details[place].error && html`<h4>Error</h4><${Long} text=${details[place].error} />`}
  </section>`)}</div>`;
}

function Summary({ at }) {
  const facts = { reward: reward(at), "stopped by": value("stop", at), turns: number(value("turns", at)), "sampled tokens": number(value("sampled", at)) };
  if (value("seconds", at)) facts.seconds = number(value("seconds", at), 1);
  return html`<${Facts} facts=${facts} />`;
}

function Body({ at, address, go }) {
  const { details, error } = useDetails([at]);
  if (error) return html`<p role="alert">${error}</p>`;
  if (!details) return html`<p class="loading">Loading…</p>`;
  const [detail] = details;
  return html`
    ${detail.error && html`<section class="card error"><h3>Broken by infrastructure</h3><${Long} text=${detail.error} /></section>`}
    <section class="card"><h3>Patch ${detail.files.length > 0 && html`<span class="soft">${detail.files.join(", ")}</span>`}</h3>
      ${detail.patch.length ? html`<${Code} pairs=${detail.patch} />` : html`<p class="soft">Empty.</p>`}</section>
    <section class="card"><h3>Grading</h3><${Grading} detail=${detail} /></section>
    <section><h3>Turns</h3>${detail.turns.length ? html`<ol class="turns">${detail.turns.map((turn) => html`<${Turn} turn=${turn} />`)}</ol>` : html`<p class="soft">None was recorded.</p>`}</section>
    <section class="card"><h3>Tokens</h3><${Tokens} samples=${detail.tokens} address=${address} go=${go} /></section>
    <section class="card"><h3>Record</h3><${Facts} facts=${detail.record} /></section>`;
}

function Episode({ at, address, go, heading }) {
  const siblings = useMemo(() => siblingsOf(at), [at]);
  const beside = address.beside === "1" && siblings.length > 1;
  return html`<article class="episode" aria-labelledby="episode">
    <button class="back more" onClick=${() => go({ at: "", beside: "" })}>← All episodes</button>
    <h2 id="episode" tabindex="-1" ref=${heading}>${value("task", at)} <${Outcome} of=${value("outcome", at)} /></h2>
    <p class="soft">${value("run", at)} · ${moment(at)} · episode ${value("number", at)}</p>
    <${Siblings} rows=${siblings} at=${at} go=${go} beside=${beside} />
    ${beside ? html`<${SideBySide} rows=${siblings} go=${go} />` : html`<${Summary} at=${at} /><${Body} key=${at} at=${at} address=${address} go=${go} />`}
  </article>`;
}

function EpisodeView({ address, go }) {
  const heading = useRef();
  const rows = useMemo(() => matching(address), FILTERS.map((name) => address[name]));
  const given = address.at === undefined ? -1 : Number(address.at);
  const at = Number.isInteger(given) && given >= 0 && given < count ? given : -1;
  const narrow = matchMedia(NARROW).matches;
  const enter = () => heading.current && heading.current.focus();
  useEffect(() => {
    const key = (event) => event.key === "Escape" && document.querySelector(".list") && document.querySelector(".list").focus();
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  }, []);
  return html`<div class=${at >= 0 ? "episodes opened" : "episodes"}>
    <div class="side"><h2 class="hidden">Episodes</h2><${Filters} address=${address} go=${go} shown=${rows.length} /><${List} rows=${rows} at=${at} go=${go} onEnter=${enter} /></div>
    <div class="main">${at >= 0 ? html`<${Episode} at=${at} address=${address} go=${go} heading=${heading} />` : !narrow && html`<p class="loading">Choose an episode: arrow keys move through the list.</p>`}</div>
  </div>`;
}
