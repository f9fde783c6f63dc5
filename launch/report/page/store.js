// The episodes, the address and the filters: what the page shows is a function of these.
"use strict";

const { html, render, useState, useEffect, useMemo, useRef, useCallback } = htmPreact;

const report = JSON.parse(document.getElementById("document").textContent);
const ROW = 52; // pixels of a row of the list, as in style.css
const FILTERS = ["run", "set", "outcome", "stop", "rollout", "task", "q"];
const NARROW = "(max-width: 760px)";

// ---- episodes: columns in memory, details in shards

const columns = report.episodes;
const count = columns.rollout.length;
const value = (name, at) => {
  const column = columns[name];
  return column.texts ? column.texts[column.of[at]] : column[at];
};
const shards = new Map();
const waiting = new Map();

window.slimeSweShard = (number, details) => {
  shards.set(number, details);
  for (const done of waiting.get(number) || []) done();
  waiting.delete(number);
};

function loadShard(number) {
  if (shards.has(number)) return Promise.resolve();
  const inline = document.getElementById(`shard-${number}`);
  if (inline) {
    shards.set(number, JSON.parse(inline.textContent));
    return Promise.resolve();
  }
  return new Promise((done, failed) => {
    waiting.set(number, [...(waiting.get(number) || []), done]);
    const script = document.createElement("script");
    script.src = `data/${number}.js`;
    script.onerror = () => failed(new Error(`data/${number}.js can't be read: keep the folder data beside this page`));
    document.head.append(script);
  });
}

const detailOf = async (at) => {
  await loadShard(columns.shard[at]);
  return shards.get(columns.shard[at])[columns.place[at]];
};

// ---- the address: #view?filter=value&at=row

function readAddress() {
  const [view, query] = location.hash.slice(1).split("?");
  return { view: view === "episodes" ? view : "run", ...Object.fromEntries(new URLSearchParams(query || "")) };
}

function useAddress() {
  const [address, setAddress] = useState(readAddress);
  useEffect(() => {
    const changed = () => setAddress(readAddress());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  const go = useCallback((changes, replace) => {
    const { view, ...rest } = { ...readAddress(), ...changes };
    const kept = Object.entries(rest).filter(([, text]) => text !== "" && text !== undefined && text !== null);
    const hash = `#${view}${kept.length ? `?${new URLSearchParams(kept)}` : ""}`;
    if (replace) {
      history.replaceState(null, "", hash);
      setAddress(readAddress());
    } else {
      location.hash = hash;
    }
  }, []);
  return [address, go];
}

// ---- search and filters

const searchIndex = (() => {
  let made;
  return () => {
    if (made) return made;
    const rows = new Map();
    for (let at = 0; at < count; at++) {
      const text = ["task", "outcome", "stop", "search"].map((name) => value(name, at)).join(" ");
      if (!rows.has(text)) rows.set(text, []);
      rows.get(text).push(at);
    }
    const texts = [...rows.keys()];
    const index = new MiniSearch({ fields: ["text"], searchOptions: { prefix: true, combineWith: "AND" } });
    index.addAll(texts.map((text, id) => ({ id, text })));
    made = (query) => new Set(index.search(query).flatMap((hit) => rows.get(texts[hit.id])));
    return made;
  };
})();

function matching(address) {
  const wanted = FILTERS.filter((name) => name !== "q" && address[name] !== undefined);
  const found = address.q ? searchIndex()(address.q) : null;
  const rows = [];
  for (let at = 0; at < count; at++) {
    if (wanted.every((name) => String(value(name, at)) === address[name]) && (!found || found.has(at))) rows.push(at);
  }
  return rows;
}

function distinct(name) {
  const column = columns[name];
  return column.texts ? column.texts : [...new Set(column)].sort((a, b) => a - b).map(String);
}
