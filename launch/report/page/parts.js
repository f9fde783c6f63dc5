// Small parts that several views have.
"use strict";

const number = (x, digits = 0) => x.toLocaleString("en-US", { maximumFractionDigits: digits });
const percent = (x) => `${(100 * x).toFixed(1)} %`;
const points = (x) => `${x > 0 ? "+" : x < 0 ? "−" : ""}${Math.abs(100 * x).toFixed(1)}`;
const moment = (at) => `${value("set", at)} · rollout ${value("rollout", at)}`;
const reward = (at) => (value("reward", at) === null ? "–" : number(value("reward", at), 3));

const Outcome = ({ of }) => html`<span class="outcome ${of.replace(" ", "-")}">${of}</span>`;
const Code = ({ pairs }) => html`<pre class="code"><code>${pairs.map(([kind, text]) => (kind ? html`<span class=${kind}>${text}</span>` : text))}</code></pre>`;
const Facts = ({ facts }) => html`<dl class="facts">${Object.entries(facts).map(([name, text]) => html`<div key=${name}><dt>${name}</dt><dd>${text}</dd></div>`)}</dl>`;

function Long({ text, lines = 16 }) {
  const [open, setOpen] = useState(false);
  const all = text.split("\n");
  const isLong = all.length > lines + 4 || text.length > 6000;
  const shown = open || !isLong ? text : all.slice(0, lines).join("\n").slice(0, 6000);
  return html`<pre class="text">${shown}</pre>
    ${isLong && html`<button class="more" aria-expanded=${open} onClick=${() => setOpen(!open)}>${open ? "Show less" : `Show all ${number(all.length)} lines`}</button>`}`;
}
