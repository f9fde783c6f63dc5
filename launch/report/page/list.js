// The list of episodes, and its filters.
"use strict";

function Select({ name, label, address, go }) {
  const options = distinct(name);
  if (options.length < 2 && address[name] === undefined) return null;
  const choose = (event) => go({ [name]: event.target.value, at: "" }, true);
  if (options.length > 200) {
    return html`<label class=${name === "task" ? "double" : ""}>${label}<input list="of-${name}" value=${address[name] || ""} placeholder="all" onChange=${choose} />
      <datalist id="of-${name}">${options.slice(0, 5000).map((text) => html`<option value=${text} />`)}</datalist></label>`;
  }
  return html`<label class=${name === "task" ? "double" : ""}>${label}<select value=${address[name] || ""} onChange=${choose}>
    <option value="">all</option>${options.map((text) => html`<option value=${text} selected=${text === address[name]}>${text}</option>`)}</select></label>`;
}

function Filters({ address, go, shown }) {
  const box = useRef();
  const timer = useRef();
  useEffect(() => {
    const key = (event) => {
      if (event.key === "/" && !/INPUT|SELECT|TEXTAREA/.test(document.activeElement.tagName)) {
        event.preventDefault();
        box.current.focus();
      }
    };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  }, []);
  const type = (event) => {
    const q = event.target.value;
    clearTimeout(timer.current);
    timer.current = setTimeout(() => go({ q, at: "" }, true), 200);
  };
  const isFiltered = FILTERS.some((name) => address[name] !== undefined);
  return html`<form class="filters" role="search" onSubmit=${(event) => event.preventDefault()}>
    <label class="grow">Search<input type="search" ref=${box} value=${address.q || ""} placeholder="task, file, tool, error ( / )" onInput=${type} /></label>
    <${Select} name="run" label="Run" address=${address} go=${go} />
    <${Select} name="set" label="Set" address=${address} go=${go} />
    <${Select} name="outcome" label="Outcome" address=${address} go=${go} />
    <${Select} name="stop" label="Stopped by" address=${address} go=${go} />
    <${Select} name="rollout" label="Rollout" address=${address} go=${go} />
    <${Select} name="task" label="Task" address=${address} go=${go} />
    <p class="soft" role="status">${number(shown)} of ${number(count)} episodes ${isFiltered && html`<button type="button" class="more" onClick=${() => go({ ...Object.fromEntries(FILTERS.map((name) => [name, ""])), at: "" }, true)}>Clear</button>`}</p>
  </form>`;
}

function List({ rows, at, go, onEnter }) {
  const box = useRef();
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  const place = rows.indexOf(at);
  useEffect(() => {
    const measure = () => setHeight(box.current ? box.current.clientHeight : 600);
    measure();
    addEventListener("resize", measure);
    return () => removeEventListener("resize", measure);
  }, []);
  useEffect(() => {
    if (place < 0 || !box.current) return;
    const view = box.current;
    if (place * ROW < view.scrollTop) view.scrollTop = place * ROW;
    else if ((place + 1) * ROW > view.scrollTop + view.clientHeight) view.scrollTop = (place + 1) * ROW - view.clientHeight;
  }, [place]);
  const key = (event) => {
    const page = Math.max(1, Math.floor(height / ROW) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -rows.length, End: rows.length };
    if (event.key === "Enter") return onEnter();
    if (!(event.key in steps) || rows.length === 0) return undefined;
    event.preventDefault();
    const next = Math.min(rows.length - 1, Math.max(0, place + steps[event.key]));
    return go({ at: rows[next] }, true);
  };
  const first = Math.max(0, Math.floor(top / ROW) - 8);
  const shown = rows.slice(first, first + Math.ceil(height / ROW) + 16);
  return html`<div class="list" ref=${box} role="listbox" tabindex="0" aria-label="Episodes"
      aria-activedescendant=${place < 0 ? undefined : `row-${at}`} onKeyDown=${key} onScroll=${(event) => setTop(event.target.scrollTop)}>
    <div role="presentation" style=${`height:${rows.length * ROW}px`}>
      ${shown.map((row, offset) => html`<div key=${row} id=${`row-${row}`} class="row" role="option" aria-selected=${row === at} aria-setsize=${rows.length} aria-posinset=${first + offset + 1}
          style=${`top:${(first + offset) * ROW}px`} onClick=${() => go({ at: row })}>
        <span class="task">${value("task", row)}</span><${Outcome} of=${value("outcome", row)} />
        <span class="soft">${report.runs.length > 1 ? `${value("run", row)} · ` : ""}${moment(row)} · ${value("stop", row)}</span><span class="soft n">${reward(row)}</span>
      </div>`)}
    </div>
    ${rows.length === 0 && html`<p class="loading">No episode matches.</p>`}
  </div>`;
}
