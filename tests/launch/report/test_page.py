"""The page in a real browser: it opens from the disk, answers keys, keeps its state in the address, runs nothing that
an episode says, and complains of nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime_swe.launch.report import page as pages
from tests.launch.report.page_data import column, document
from tests.launch.report.synthetic import HOSTILE, synthetic_run

SHAPES = [(width, dark) for width in (1280, 390) for dark in (False, True)]
SELECTED = "document.querySelector('.row[aria-selected=true]')?.id"
WIDE = "document.documentElement.scrollWidth > innerWidth"


async def scroll_through(tab) -> None:
    """Every chart is drawn."""
    await tab.run("document.querySelectorAll('.chart').forEach((chart) => chart.scrollIntoView())")
    for place in range(await tab.run("document.querySelectorAll('.chart').length")):
        await tab.run(f"document.querySelectorAll('.chart')[{place}].scrollIntoView()")
        await tab.until(f"document.querySelectorAll('.chart')[{place}].querySelector('svg, canvas')")


@pytest.mark.slow
async def test_it_opens_at_both_widths_light_and_dark_without_a_complaint(recorded, report, tab):
    page = report(recorded)
    backgrounds = set()
    for width, dark in SHAPES:
        await tab.shape(width, dark=dark)
        await tab.open(page)
        assert await tab.run("document.querySelectorAll('figure').length") == len(document(page)["charts"]) > 4
        await scroll_through(tab)
        assert not await tab.run(WIDE), "a page that scrolls sideways"
        backgrounds.add((dark, await tab.run("getComputedStyle(document.documentElement).backgroundColor")))
        for at in range(len(column(page, "task"))):
            await tab.open(page, f"#episodes?at={at}")
            await tab.until("document.querySelector('article section')")
            assert not await tab.run(WIDE)
    assert len(backgrounds) == 2, "dark is another colour"
    assert tab.complaints == []


async def test_by_keyboard(runs, report, tab):
    page = report(runs / "first")
    await tab.open(page, "#episodes")
    while await tab.run("document.activeElement.getAttribute('role')") != "listbox":
        await tab.press("Tab")
    assert await tab.run("getComputedStyle(document.activeElement).outlineStyle") == "solid", "focus is seen"
    rows = await tab.run("Number(document.querySelector('.row').getAttribute('aria-setsize'))")
    assert rows == len(column(page, "task"))
    for keys, row in (
        (["ArrowDown"], 0), (["ArrowDown"] * 2, 2), (["ArrowUp"], 1), (["End"], rows - 1), (["ArrowDown"], rows - 1),
        (["Home"], 0),
    ):  # fmt: skip
        await tab.press(*keys)
        await tab.until(f"{SELECTED} === 'row-{row}'")
        assert await tab.run("document.activeElement.getAttribute('aria-activedescendant')") == f"row-{row}"
        assert f"at={row}" in await tab.run("location.hash")
    await tab.press("Enter")
    assert await tab.run("document.activeElement.id") == "episode"
    await tab.press("Escape")
    assert await tab.run("document.activeElement.className") == "list"
    await tab.press("/")
    assert await tab.run("document.activeElement.type") == "search"
    assert tab.complaints == []


async def test_filters_are_in_the_address_and_an_address_opens_the_same_view(runs, report, tab):
    page = report(runs / "first")
    shown = "Number(document.querySelector('[role=status]').textContent.split(' ')[0])"
    await tab.open(page, "#episodes")
    await tab.run(
        "{const s = [...document.querySelectorAll('.filters label')].find((l) => l.textContent.startsWith('Outcome'))"
        ".querySelector('select'); s.value = 'not solved'; s.dispatchEvent(new Event('change', {bubbles: true}))}"
    )
    wanted = column(page, "outcome").count("not solved")
    await tab.until(f"{shown} === {wanted}")
    task = column(page, "task")[column(page, "outcome").index("not solved")]
    await tab.press("/")
    await tab.type(task.rpartition("_")[2])
    both = sum(pair == (task, "not solved") for pair in zip(column(page, "task"), column(page, "outcome"), strict=True))
    await tab.until(f"{shown} === {both}")
    address = await tab.run("location.hash")
    assert "outcome=not+solved" in address and "q=" in address
    await tab.open(page, address)
    await tab.until(f"{shown} === {both}")
    assert await tab.run("document.querySelector('input[type=search]').value") == task.rpartition("_")[2]
    for name in ("set", "stop", "rollout", "task"):
        value = column(page, name)[-1]
        await tab.open(page, f"#episodes?{name}={value}")
        assert await tab.run(shown) == column(page, name).count(value) > 0
    assert tab.complaints == []


async def test_an_episode_shows_its_turns_patch_grading_and_tokens(runs, report, tab):
    page = report(runs / "first")
    at = column(page, "outcome").index("not solved")
    await tab.open(page, f"#episodes?at={at}")
    await tab.until("document.querySelector('.turn')")
    text = await tab.run("document.querySelector('article').innerText")
    for wanted in (
        "I look at the module first.",
        '"command": "cat pkg/module_',
        "FAILED tests/test_module_",
        "Group of 8",
    ):
        assert wanted in text
    spans = "[...document.querySelectorAll('.tokens pre span')]"
    colours = f"new Set({spans}.map((span) => getComputedStyle(span).backgroundColor)).size"
    assert await tab.run(colours) == 2, "sampled and not"
    await tab.run("document.querySelectorAll('.tokens input')[1].click()")
    await tab.until(f"{colours} > 3")
    assert await tab.run("document.querySelectorAll('.tokens [title^=log-probability]').length") == 16
    await tab.run("[...document.querySelectorAll('.siblings .more')].at(-1).click()")
    await tab.until("document.querySelectorAll('.beside section').length === 8")
    assert "beside=1" in await tab.run("location.hash")
    assert tab.complaints == []


TOKENS = "[...document.querySelectorAll('.tokens pre span')]"
COLOURS = "[...document.querySelectorAll('.tokens input')].map((input) => input.value)"
CHOSEN = "document.querySelector('.tokens input:checked').value"


async def test_tokens_are_coloured_by_what_the_record_has_of_them(recorded, report, tab):
    page = report(recorded, "--tokens", "all")
    rows = [*zip(column(page, "set"), column(page, "rollout"), column(page, "number"), strict=True)]
    all_of_it, no_gap, evaluated = (rows.index(row) for row in (("train", 5, 5), ("train", 4, 1), ("heldout", -1, 0)))
    offered = {all_of_it: ["mask", "log-probability", "gap", "advantage"],
               no_gap: ["mask", "log-probability", "advantage"], evaluated: ["mask", "log-probability"]}  # fmt: skip
    for at, names in offered.items():
        await tab.open(page, f"#episodes?at={at}&colour=gap")
        await tab.until("document.querySelector('.tokens')")
        assert await tab.run(COLOURS) == names
        assert await tab.run(CHOSEN) == ("gap" if "gap" in names else "mask")
    await tab.open(page, f"#episodes?at={all_of_it}&colour=advantage")
    await tab.until("document.querySelector('.tokens')")
    sampled = f"{TOKENS}.filter((span) => span.title)"
    assert await tab.run(f"{sampled}.map((span) => span.className)") == ["plus3", "plus0", "minus1"]
    assert await tab.run(f"{sampled}[2].title") == (
        "log-probability -0.75, probability 0.47; gap to the trainer 0.5 nats; advantage -0.125"
    )
    await tab.run("document.querySelector('.tokens input:checked').focus()")
    for name, classes in (("gap", ["p0", "p0", "p6"]), ("log-probability", ["p0", "p1", "p1"])):
        await tab.press("ArrowUp")
        await tab.until(f"{CHOSEN} === '{name}'")
        assert f"colour={name}" in await tab.run("location.hash")
        assert await tab.run(f"{sampled}.map((span) => span.className)") == classes
    assert tab.complaints == []


@pytest.mark.parametrize("dark", [False, True])
async def test_every_colour_of_a_token_leaves_it_readable(recorded, report, tab, dark):
    """By WCAG's contrast, 4.5 for text of this size; and no two colours of a choice are one."""
    page = report(recorded, "--tokens", "all")
    at = [*zip(column(page, "rollout"), column(page, "number"), strict=True)].index((5, 5))
    await tab.shape(1280, dark=dark)
    for name in ("log-probability", "gap", "advantage"):
        await tab.open(page, f"#episodes?at={at}&colour={name}")
        await tab.until("document.querySelector('.legend span')")
        found = await tab.run(CONTRASTS)
        assert len({back for back, _ in found}) == len(found) >= 4
        assert all(contrast >= 4.5 for _, contrast in found), found


CONTRASTS = """(() => {
  const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
  const part = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const card = numbers(getComputedStyle(document.querySelector('.card')).backgroundColor);
  return [...document.querySelectorAll('.legend span')].map((span) => {
    const style = getComputedStyle(span), over = numbers(style.backgroundColor), alpha = over[3] ?? 1;
    const back = card.map((v, at) => Math.round(alpha * over[at] + (1 - alpha) * v));
    const [low, high] = [light(numbers(style.color)), light(back)].sort((a, b) => a - b);
    return [back.join(), (high + 0.05) / (low + 0.05)];
  });
})()"""


async def test_nothing_that_an_episode_says_runs(runs, report, tab, monkeypatch):
    whole = report(runs / "second", "--tokens", "all")
    monkeypatch.setattr(pages, "ONE_FILE", 0)
    for page in (whole, report(runs / "second", "--tokens", "all")):
        rows = [at for at, task in enumerate(column(page, "task")) if task.startswith("hostile")]
        assert len(rows) == 2
        await tab.open(page)
        await scroll_through(tab)
        canvas = "[...document.querySelectorAll('.wide canvas')].at(-1)"
        place = await tab.run(
            f"(() => {{const b = {canvas}.getBoundingClientRect(); return [b.right - 30, b.bottom - 50]}})()"
        )
        for step in range(0, 300, 12):
            await tab.send("Input.dispatchMouseEvent", type="mouseMoved", x=place[0], y=place[1] - step)
        for at in rows:
            for address in (
                f"#episodes?at={at}",
                f"#episodes?at={at}&beside=1&q=hostile&outcome=broken",
                "#episodes?task=<img>",
            ):
                await tab.open(page, address)
                await tab.until("document.querySelector('.list')")
            await tab.open(page, f"#episodes?at={at}")
            await tab.until("document.querySelector('.turn')")
            assert HOSTILE in await tab.run("document.querySelector('.turn pre').textContent")
            await tab.run("document.querySelectorAll('.tokens input')[1].click()")
        assert await tab.run("window.hacked === undefined && !document.querySelector('#page img, #page script')")
    assert tab.complaints == []


async def test_the_policy_blocks_what_would_slip_through(runs, report, tab):
    """As if the page made markup of a text: still nothing runs."""
    await tab.open(report(runs / "first"))
    await tab.run("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hacked = 1\">')")
    await tab.until("document.images.length === 1")
    await tab.run("new Promise((done) => setTimeout(done, 300))")
    assert await tab.run("window.hacked") is None and tab.complaints, "it was refused, and the console says so"


async def test_the_policy_takes_no_other_script_and_no_text_as_one(runs, report, tab, tmp_path, monkeypatch):
    """But a page with a folder takes files of this disk, as it reads its own."""
    (tmp_path / "other.js").write_text("window.hacked = 1")
    added = f"""new Promise((done) => {{
        const script = document.createElement("script");
        script.src = "{(tmp_path / "other.js").as_uri()}";
        script.onload = script.onerror = (event) => done(event.type);
        document.head.append(script);
    }})"""
    evaluated = """new Promise((done) => setTimeout(() => {
        try { done(eval("1")) } catch (error) { done(error.name) }
    }))"""  # later, as the browser lets what DevTools sends evaluate all
    for one_file, taken in ((20_000_000, "error"), (0, "load")):
        monkeypatch.setattr(pages, "ONE_FILE", one_file)
        await tab.open(report(runs / "first"))
        await scroll_through(tab)
        assert tab.complaints == [], "the page's own scripts run, and Vega needs no eval"
        assert await tab.run(evaluated) == "EvalError"
        assert await tab.run(added) == taken
        tab.complaints.clear()


ELEMENTS = "document.querySelectorAll('*').length"
ROWS = "document.querySelectorAll('.row').length"
DRAWN = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))"
READ = "document.querySelectorAll('script[src^=\"data/\"]').length"  # files of the folder beside the page


async def made_and_read(tab, page: Path, width: int, *, dark: bool) -> list[int]:
    """What is made and read: elements with every chart drawn, files; elements of the list, its rows, files; the rows
    and files of its last episode."""
    await tab.shape(width, dark=dark)
    await tab.open(page)
    await scroll_through(tab)
    counts = [await tab.run(ELEMENTS), await tab.run(READ)]
    await tab.open(page, "#episodes")
    await tab.run(DRAWN)  # what its effects make too
    counts += [await tab.run(ELEMENTS), await tab.run(ROWS), await tab.run(READ)]
    await tab.run("document.querySelector('.list').focus()")
    await tab.press("End")
    await tab.until("document.querySelector('article section')")
    return [*counts, await tab.run(ROWS), await tab.run(READ)]


async def test_opening_makes_as_much_of_many_episodes_as_of_few(tmp_path, report, tab, monkeypatch):
    monkeypatch.setattr(pages, "ONE_FILE", 0)
    few, many = (report(synthetic_run(tmp_path / "runs", f"of{groups}", 4, groups)) for groups in (8, 64))
    assert len(column(many, "task")) > 4 * len(column(few, "task"))
    made = [await made_and_read(tab, page, 1280, dark=False) for page in (few, many)]
    assert made[0][1:] == made[1][1:], "of the list and an episode"
    assert made[1][0] < 1.5 * made[0][0], "of the charts"
    assert tab.complaints == []


@pytest.mark.slow
@pytest.mark.extended("tests/launch/report/test_page.py::test_opening_makes_as_much_of_many_episodes_as_of_few")
@pytest.mark.timeout(1800)
async def test_a_hundred_thousand_episodes(tmp_path, report, tab):
    page: Path = report(synthetic_run(tmp_path / "runs", "many", rollouts=100, groups=125))
    assert len(column(page, "task")) == 100_080 and page.name == "index.html"
    for width, dark in SHAPES:
        charts, no_file, listed, rows, still_none, at_end, one = await made_and_read(tab, page, width, dark=dark)
        assert max(charts, listed) < 10_000 and 0 < max(rows, at_end) < 60
        assert (no_file, still_none, one) == (0, 0, 1)
    await tab.open(page, "#episodes?q=module_07+broken")
    await tab.until("document.querySelectorAll('.row').length > 3")
    assert tab.complaints == []
