// The page. What episodes hold becomes text nodes only: none of these files makes markup of a text.
"use strict";

function useTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const narrow = matchMedia(NARROW);
  const read = () => `${dark.matches} ${narrow.matches}`;
  const [theme, setTheme] = useState(read);
  useEffect(() => {
    const changed = () => setTheme(read());
    for (const query of [dark, narrow]) query.addEventListener("change", changed);
    return () => [dark, narrow].forEach((query) => query.removeEventListener("change", changed));
  }, []);
  return theme;
}

function Page() {
  const [address, go] = useAddress();
  const theme = useTheme();
  const tab = (view, label) => html`<a href=${`#${view}`} aria-current=${address.view === view ? "page" : undefined}>${label}</a>`;
  return html`<header class="top"><h1>${report.runs.map((run) => run.name).join(" and ")}</h1><nav aria-label="Views">${tab("run", "Run")}${tab("episodes", "Episodes")}</nav></header>
    <main>${address.view === "episodes" ? html`<${EpisodeView} address=${address} go=${go} />` : html`<${RunView} theme=${theme} />`}</main>`;
}

const root = document.getElementById("page");
root.textContent = "";
render(html`<${Page} />`, root);
document.documentElement.dataset.ready = "true";
