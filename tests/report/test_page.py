"""The page: self-contained, small, safe with any name, and alive in a browser."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from echo.plans.decisions import RECOMPUTE, Decision
from echo.report import page
from echo.report.profile import Profile
from echo.report.segment import HEAVY, Operator, Segment
from echo.report.usage import ALWAYS, PROCESS, Tensor, Usage
from echo.system.terminal import size_text
from tests.report.profiles import made_up, plan_of

pytest.importorskip("jinja2", reason="needs the extra report")
pytest.importorskip("vl_convert", reason="needs the extra report")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NASTY = "</script><script>document.title='broken'</script><b>&amp;\"'"
# Acts as a person would, behind the page's own script, and writes down what the page then shows.
ACTING = """
<script>
const errors = [];
window.addEventListener("error", event => errors.push(event.message));
const wait = ms => new Promise(done => setTimeout(done, ms));
const until = async check => { for (let i = 0; i < 200 && !check(); ++i) await wait(25); return check(); };
const point = (node, kind, x, y) => node.dispatchEvent(new PointerEvent(kind,
  { bubbles: true, clientX: x, clientY: y, pointerId: 1, button: 0, buttons: 1, view: window }));
const mouse = (node, kind, x, y) => node.dispatchEvent(new MouseEvent(kind,
  { bubbles: true, clientX: x, clientY: y, button: 0, buttons: 1, view: window }));
(async () => {
  const seen = {};
  await until(() => document.body.dataset.ready === "yes");
  seen.charts = [...document.querySelectorAll(".chart:not([hidden]) svg.marks")].length;
  const search = document.getElementById("search");
  seen.all = document.querySelectorAll("#decisions tbody tr:not([hidden])").length;
  search.value = "layernorm GRADIENTS"; search.dispatchEvent(new Event("input"));
  seen.found = document.querySelectorAll("#decisions tbody tr:not([hidden])").length;
  seen.count = document.getElementById("count").textContent;
  const head = [...document.querySelectorAll("#decisions th")].find(each => each.textContent === "MB");
  head.click(); const up = document.querySelector("#decisions tbody tr").cells[4].textContent;
  head.click(); const down = document.querySelector("#decisions tbody tr").cells[4].textContent;
  seen.sorted = [parseFloat(up), parseFloat(down)];
  const before = getComputedStyle(document.body).backgroundColor;
  document.getElementById("theme").click(); await wait(600);
  seen.themes = [before, getComputedStyle(document.body).backgroundColor];
  const select = document.getElementById("graph");
  select.value = "echo"; select.dispatchEvent(new Event("change")); await wait(600);
  seen.layers = [...document.querySelectorAll(".layers")].map(each => [each.dataset.graph, each.hidden]);
  document.getElementById("timeline").scrollIntoView({ block: "center" });
  const svg = document.querySelector("#timeline svg.marks"), box = svg.getBoundingClientRect();
  const at = share => box.left + 60 + share * (box.width - 90), low = box.bottom - 65;
  const labels = () => [...svg.querySelectorAll("text")].map(each => each.textContent).join(" ");
  const ticks = labels(), start = document.elementFromPoint(at(0.3), low);
  for (const [act, down, move, up] of [[point, "pointerdown", "pointermove", "pointerup"],
                                       [mouse, "mousedown", "mousemove", "mouseup"]]) {
    act(start, down, at(0.3), low);
    for (const share of [0.35, 0.4, 0.5]) { act(start, move, at(share), low); act(window, move, at(share), low); }
    act(window, up, at(0.5), low);
  }
  await wait(600);
  seen.zoomed = labels() !== ticks;
  const bar = document.querySelector("#kinds svg path[aria-roledescription=bar]"), place = bar.getBoundingClientRect();
  for (const kind of ["pointerover", "pointermove"]) point(bar, kind, place.left + 4, place.top + 4);
  mouse(bar, "mousemove", place.left + 4, place.top + 4); await wait(300);
  const tip = document.getElementById("vg-tooltip-element");
  seen.tooltip = tip ? tip.textContent : "";
  seen.title = document.title;
  const out = document.createElement("pre"); out.id = "seen"; out.textContent = JSON.stringify({ ...seen, errors });
  document.body.append(out);
})();
</script>
</body>
"""


def _in_browser(text: str, tmp_path: Path, size: str = "1100,900") -> tuple[dict[str, object], str]:
    path = tmp_path / "page.html"
    before, _, after = text.rpartition("</body>")  # the bundle has one in a text of its own
    path.write_text(before + ACTING + after, encoding="utf-8")
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'browser'}",
        f"--window-size={size}", "--virtual-time-budget=20000", "--enable-logging=stderr", "--dump-dom", path.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    return json.loads(html.unescape(found[1])), "\n".join(re.findall(r".*CONSOLE.*", done.stderr))


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize("size", ["1100,900", "390,800"])
def test_it_lives_in_a_browser(size: str, tmp_path: Path) -> None:
    seen, console = _in_browser(page.html(made_up(3000), "some model"), tmp_path, size)
    assert (seen["errors"], console) == ([], "")
    assert seen["charts"] == 4
    assert seen["count"] == f"{seen['found']} of {seen['all']} rows"
    assert (seen["all"], seen["found"]) == (9, 1)
    low, high = seen["sorted"]  # type: ignore[misc]
    assert low <= high
    first, second = seen["themes"]  # type: ignore[misc]
    assert first != second
    assert seen["layers"] == [["stock", True], ["echo", False]]
    assert seen["zoomed"] is True
    assert "MB" in str(seen["tooltip"]) or "kind" in str(seen["tooltip"])


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_names_are_text_in_a_browser(tmp_path: Path) -> None:
    seen, console = _in_browser(page.html(_nasty(), NASTY), tmp_path)
    assert (seen["errors"], console) == ([], "")
    assert str(seen["title"]).startswith(NASTY)


def _nasty() -> Profile:
    tensor = Tensor(NASTY, NASTY, NASTY, NASTY, 5 * 10**6, ALWAYS, 0)
    usages = {name: Usage(0, {}, (NASTY,), 1, (tensor, replace(tensor, first=0))) for name in ("stock", "echo")}
    decision = Decision(0, NASTY, NASTY, 0, RECOMPUTE, 9, 1.0, NASTY)
    segment = Segment((Operator(NASTY, NASTY, HEAVY, 9, True, 1, 0, 0.5),), (), 1)
    return Profile(usages, plan_of((decision,)), "cpu", {"mxnet": NASTY}, segment=segment)


def test_names_are_text() -> None:
    text = page.html(_nasty(), NASTY)
    assert NASTY not in text
    assert text.count("</script>") == 3


def test_what_was_measured_and_what_more_memory_would_buy_is_told() -> None:
    profile = made_up(30)
    measured = replace(profile.usages["stock"], measured={PROCESS: profile.usages["stock"].total + 10 * 10**6})
    text = page.html(replace(profile, usages={**profile.usages, "stock": measured}))
    assert re.search(
        r"<td>not accounted for</td><td class=.number.>10\.0 \(\d+\.\d %\)</td><td class=.number.>-</td>", text
    )
    assert "10 % more memory (up to 253.0 MB) would buy a plan of " in text
    assert 'id="measured"' not in page.html(profile)


def test_it_needs_nothing_else() -> None:
    text = page.html(made_up(30), "some model")
    outside = re.sub(r"<script>.*?</script>", "", text, count=1, flags=re.DOTALL)  # the bundle names its licenses
    assert not re.search(r"(src|href)\s*=|@import|url\(", outside)
    assert "some model" in outside
    assert "a note." in outside


@pytest.mark.slow
def test_a_large_graph_stays_small() -> None:
    assert len(page.html(made_up(100_000))) < 5_000_000


def test_random_numbers_stay() -> None:
    import random

    random.seed(3)
    expected = random.getstate()
    page.html(made_up(10))
    random.seed(3)
    assert random.getstate() == expected


def test_a_profile_of_one_graph(tmp_path: Path) -> None:
    profile = made_up(30)
    page.save(replace(profile, usages={"stock": profile.usages["stock"]}, frontier=()), tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert "<h2>Decisions" not in text
    assert "What other budgets buy" not in text


def test_first_card_says_what_the_process_will_show() -> None:
    profile = made_up(50)
    stock, planned = (profile.usages[name] for name in ("stock", "echo"))
    text = page.html(profile)
    card = text.index("What you will see in your process")
    assert card < text.index("held by the executor")
    assert f"the executor holds {size_text(planned.total)} instead of {size_text(stock.total)}" in text
    assert "and the peak of the process with Module is" in text
    measured = {name: replace(usage, measured={PROCESS: size}) for (name, usage), size in zip(
        profile.usages.items(), (400 * 10**6, 150 * 10**6))}  # fmt: skip
    text = page.html(replace(profile, usages=measured))
    assert "<b>250 MB less</b>" in text
    assert "measured: two steps make it grow by 150 MB instead of 400 MB" in text
