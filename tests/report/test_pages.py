"""Tests of `echo.report.pages`: extra; treemap; decisions; page; picture; notebook."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from echo.errors import OptionError, UnsupportedError
from echo.plans.decisions import RECOMPUTE, STASH, Decision
from echo.plans.frontier import Frontier
from echo.report import pages
from echo.report.charts import ROLE_COLORS
from echo.report.pages import DecisionGroup, groups, module_of, save_over_step, save_picture, save_segment, treemap
from echo.report.predicted_peaks import of_symbol
from echo.report.profile import Profile
from echo.report.segment import FREED, HEAVY, RECOMPUTED, STASHED, Operator, Segment
from echo.report.usage import ALWAYS, GAPS, PROCESS, Tensor, Usage, layer_by
from echo.system.terminal import megabytes
from tests.report.profiles import made_up, plan_of


def test_a_library_that_is_there() -> None:
    assert module_of("json").loads("3") == 3


def test_a_library_that_is_not() -> None:
    with pytest.raises(UnsupportedError, match=r"reports need no_such_library: pip install 'mxnet-echo\[report\]'"):
        module_of("no_such_library")


convert = pytest.importorskip("vl_convert", reason="needs the extra report")


@pytest.mark.parametrize("by", [None, "layer[0-9]"])
def test_leaves_add_up(by: str | None) -> None:
    usage = made_up(2000).usages["stock"]
    spec = treemap(usage, layer_by(by)) if by else treemap(usage)
    leaves = [each for each in spec["data"][0]["values"] if "kind" in each]
    held = usage.total - usage.by_kind[GAPS]
    assert sum(leaf["mb"] for leaf in leaves) == pytest.approx(held / 10**6, abs=0.2)
    layers = {leaf["layer"] for leaf in leaves}
    assert len(layers) == (61 if by is None else 11)
    more = len({tensor.layer for tensor in usage.at_peak}) - 60
    assert (f"{more} more layers" in layers) == (by is None)
    parents = {each["id"] for each in spec["data"][0]["values"]}
    assert all(each["parent"] in parents | {""} for each in spec["data"][0]["values"])


def test_vega_draws_it() -> None:
    svg = convert.vega_to_svg(treemap(made_up(12).usages["echo"]))
    assert svg.count("<path") > 8
    assert "layer5" in svg
    assert "NaN" not in svg


def test_areas_of_two_graphs_have_one_scale_and_names_their_megabytes() -> None:
    usages = made_up(300).usages
    totals = {name: sum(usage.layers().values()) for name, usage in usages.items()}
    most = max(totals.values())
    specs = {name: treemap(usage, most=most) for name, usage in usages.items()}
    for name, total in totals.items():
        assert specs[name]["height"] == pytest.approx(380 * total / most, abs=1)
        layers = [row for row in specs[name]["data"][0]["values"] if "total" in row]
        assert sum(row["total"] for row in layers) == pytest.approx(total / 10**6, abs=0.1)


def test_long_name_of_a_layer_leaves_its_megabytes_to_be_read() -> None:
    tensors = (Tensor(name, "", name, "weights", 40 * 10**6, ALWAYS, 0) for name in ("a" * 300, "b" * 300))
    svg = convert.vega_to_svg(treemap(Usage(0, {}, ("step",), 1, tuple(tensors))))
    assert len(re.findall(r"a{20,}…", svg)) == 1
    assert len(re.findall(r">40\.0 MB<", svg)) == 2


def _decision(name: str, action: str = STASH, reason: str = "", size: int = 10) -> Decision:
    return Decision(0, name, "tanh", 0, action, size, 0.5, reason)


def test_names_and_reasons_that_differ_in_numbers_are_one_row() -> None:
    decisions = [_decision(f"cell_t{i}_out", RECOMPUTE, f"read by {i} gradients") for i in range(12)]
    assert groups(decisions) == [
        DecisionGroup("cell_t*_out", "tanh", RECOMPUTE, "read by 0 to 11 gradients", 12, 120, 6.0)
    ]
    decisions = [_decision(f"t{i}", reason=f"read by 2 gradients; recomputed from fc{i}, x") for i in (3, 7)]
    assert groups(decisions)[0].reason == "read by 2 gradients; recomputed from fc*, x"


def test_differing_decisions_stay_apart_with_the_largest_first() -> None:
    decisions = [
        _decision("a1"), _decision("a2", RECOMPUTE), _decision("b7", size=99, reason="7 of them"), _decision("a3"),
    ]  # fmt: skip
    found = groups(decisions)
    assert [(group.name, group.action, group.count) for group in found] == [
        ("b7", STASH, 1), ("a*", STASH, 2), ("a2", RECOMPUTE, 1),
    ]  # fmt: skip
    assert found[0].reason == "7 of them"
    assert sum(group.bytes for group in found) == sum(each.bytes for each in decisions)
    assert groups([]) == []


pytest.importorskip("jinja2", reason="needs the extra report")
pytest.importorskip("vl_convert", reason="needs the extra report")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NASTY = "</script><script>document.title='broken'</script><b>&amp;\"'"
# Acts as a person would, after the page's own script, and writes down what the page then shows.
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
def test_page_works_in_a_browser(size: str, tmp_path: Path) -> None:
    seen, console = _in_browser(pages.html(made_up(3000), "some model"), tmp_path, size)
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
    seen, console = _in_browser(pages.html(_nasty(), NASTY), tmp_path)
    assert (seen["errors"], console) == ([], "")
    assert str(seen["title"]).startswith(NASTY)


def _nasty() -> Profile:
    tensor = Tensor(NASTY, NASTY, NASTY, NASTY, 5 * 10**6, ALWAYS, 0)
    usages = {name: Usage(0, {}, (NASTY,), 1, (tensor, replace(tensor, first=0))) for name in ("stock", "echo")}
    decision = Decision(0, NASTY, NASTY, 0, RECOMPUTE, 9, 1.0, NASTY)
    segment = Segment((Operator(NASTY, NASTY, HEAVY, 9, True, 1, 0, 0.5),), (), 1)
    return Profile(usages, plan_of((decision,)), "cpu", {"mxnet": NASTY}, segment=segment)


def test_names_are_text() -> None:
    text = pages.html(_nasty(), NASTY)
    assert NASTY not in text
    assert text.count("</script>") == 3


def test_page_tells_measured_bytes_and_what_more_memory_buys() -> None:
    profile = made_up(30)
    measured = replace(profile.usages["stock"], measured={PROCESS: profile.usages["stock"].total + 10 * 10**6})
    text = pages.html(replace(profile, usages={**profile.usages, "stock": measured}))
    assert re.search(
        r"<td>not accounted for</td><td class=.number.>10\.0 \(\d+\.\d %\)</td><td class=.number.>-</td>", text
    )
    assert "10 % more memory (up to 253.0 MB) would buy a plan of " in text
    assert 'id="measured"' not in pages.html(profile)


def test_page_loads_nothing_from_outside() -> None:
    text = pages.html(made_up(30), "some model")
    outside = re.sub(r"<script>.*?</script>", "", text, count=1, flags=re.DOTALL)  # the bundle names its licenses
    assert not re.search(r"(src|href)\s*=|@import|url\(", outside)
    assert "some model" in outside
    assert "a note." in outside


@pytest.mark.slow
def test_a_large_graph_stays_small() -> None:
    assert len(pages.html(made_up(100_000))) < 5_000_000


def test_random_numbers_stay() -> None:
    import random

    random.seed(3)
    expected = random.getstate()
    pages._scripts.cache_clear()
    pages.html(made_up(10))
    assert random.getstate() == expected


def test_a_profile_of_one_graph(tmp_path: Path) -> None:
    profile = made_up(30)
    pages.save_page(replace(profile, usages={"stock": profile.usages["stock"]}, frontier=()), tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert "<h2>Decisions" not in text
    assert "What other budgets buy" not in text


def test_first_card_has_the_peaks_that_the_plan_predicts() -> None:
    profile = made_up(50)
    peaks = of_symbol(profile.plan)
    assert peaks is not None
    measured = {name: replace(usage, measured={PROCESS: 10**9}) for name, usage in profile.usages.items()}
    text = pages.html(replace(profile, usages=measured))
    assert text.index("peak of the process, predicted for a Module") < text.index("held by the executor")
    assert f"<b>{megabytes(peaks.echo.total)} MB</b>\nwith echo, 10.0 MB of it echo itself" in text
    assert f"; {megabytes(peaks.stock.total)} MB without echo" in text
    assert "peak of the process" not in pages.html(replace(profile, plan=replace(profile.plan, device="gpu")))


pytest.importorskip("vl_convert", reason="needs the extra report")


def test_png_and_svg(tmp_path: Path) -> None:
    profile = made_up(50)
    save_picture(profile, tmp_path / "a.PNG", "some model")
    assert (tmp_path / "a.PNG").read_bytes().startswith(b"\x89PNG")
    save_picture(profile, tmp_path / "a.svg", "some model", layer_by("layer[0-9]"))
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert text.startswith("<svg")
    for word in ("some model", "layer1", "feature maps", "stock", "echo"):
        assert word in text


def test_memory_over_the_step(tmp_path: Path) -> None:
    save_over_step(made_up(50), tmp_path / "a.svg", "some model")
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    for word in ("some model", "MB alive", "stock", "echo", "operators of the training step, in their order"):
        assert word in text


def test_page_leaves_out_arrays_of_no_megabytes_beyond_the_first(tmp_path: Path) -> None:
    sizes = [9 * 10**6] + 20 * [10_000]
    tensors = tuple(Tensor(f"map{n}", "op", "map", "maps", size, 0, 0) for n, size in enumerate(sizes))
    usage = Usage(10**7, {}, ("step",), 1, tensors)
    text = pages.html(replace(made_up(10), usages={"stock": usage}))
    assert "<td>map7</td>" in text
    assert "<td>map8</td>" not in text
    assert "13 smaller arrays are left out." in text


@pytest.mark.parametrize(("action", "words"), [(RECOMPUTE, "recomputes most"), (STASH, "stashes most")])
def test_page_says_why_it_shows_a_segment(action: str, words: str) -> None:
    segment = Segment((Operator("a", "tanh", STASHED, 9, True, 1, 0, 0.5),), (), 1)
    profile = replace(made_up(10), segment=segment, plan=plan_of((_decision("a", action),)))
    assert f"the segment in which the plan {words}" in pages.html(profile)


def test_a_segment(tmp_path: Path) -> None:
    operators = [
        Operator(f"some_{role.split()[0]}", "op", role, 10**6, role != FREED, 1 + number, number, 0.5)
        for number, role in enumerate((HEAVY, STASHED, FREED, RECOMPUTED))
    ]
    segment = Segment(tuple(operators), ((0, 1), (1, 2), (2, 3)), 30)
    save_segment(replace(made_up(10), segment=segment), tmp_path / "a.svg", "some model")
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    for word in (
        "some model: one segment of the plan",
        "some_recomputed",
        "stashed",
        "read by a gradient",
        "op, 1.0 MB",
        "op, 3 alike, 1.0 MB",
        *ROLE_COLORS.values(),
    ):
        assert word in text
    assert text.count('aria-roledescription="rule mark"') == 3
    assert 'width="916"' not in text, "one operator a line needs no more room"
    with pytest.raises(OptionError, match="there is no segment to draw"):
        save_segment(made_up(10), tmp_path / "b.svg")


@pytest.mark.parametrize("name", ["a.jpg", "a", "png"])
def test_picture_with_another_suffix_raises_option_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"expected a picture NAME\.png or NAME\.svg"):
        save_picture(made_up(10), tmp_path / name)
    assert not (tmp_path / name).exists()


def test_a_profile_shows_pictures_and_tables() -> None:
    shown = made_up(20)._repr_html_()
    root = ElementTree.fromstring(f"<body>{shown}</body>")
    assert len(root.findall("div/{http://www.w3.org/2000/svg}svg")) == 2
    (text,) = root.findall("pre")
    assert "at the peak, by kind (MB)" in (text.text or "")


def test_notebook_without_the_extra_shows_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise UnsupportedError(name)

    monkeypatch.setattr(pages, "module_of", missing)
    shown = made_up(20)._repr_html_()
    assert shown.startswith("<pre")
    assert "svg" not in shown


def test_plans_and_frontiers_show_their_tables() -> None:
    plan = plan_of()
    for value in (plan, Frontier((plan,), (plan.after.total,))):
        assert ElementTree.fromstring(value._repr_html_()).text == str(value)
