"""The report of a study: what is in it, that nothing in it is taken for HTML, and that a browser runs it."""

import re
import shutil
import subprocess

import pytest
from test_best_fit import written

from tf_comptrain.study import plots
from tf_comptrain.study.folder import Folder
from tf_comptrain.study.grid import TENSORS, Candidate, Cell
from tf_comptrain.study.results import Study

ODD = "<script>alert(1)</script>&\"'"


@pytest.fixture
def page(tmp_path):
    study = written(tmp_path / "study")
    problem = [{"problem": ODD}]
    Folder(study.folder).append(
        Cell(TENSORS, "network", Candidate("zfp", "sigma", 0.1), "late", 0), problem, 1.0
    )
    return Study(study.folder).to_html(tmp_path / "report.html")


def test_has_every_part_and_needs_no_network(page):
    text = page.read_text()
    for part in (
        "Best fit",
        "<svg",
        "Memory over a step",
        "Settings",
        "Gradient error of each tensor",
        "Tensors",
        "rans 0.1 sigma",
    ):
        assert part in text
    assert text.count("<circle") == 2 * 6
    assert text.count("<polyline") == 3  # plain, plane, rans
    assert not re.search(r"(src|href)=|https?://|@import|url\(", text)
    assert 'name="viewport"' in text


def test_every_text_is_escaped(page):
    text = page.read_text()
    assert ODD not in text and "&lt;script&gt;alert(1)" in text
    assert text.count("<script>") == 1
    point = plots.Point(1, 1, ODD, ODD)
    picture = plots.scatter([point], ODD, ODD, plots.colours([ODD])) + plots.legend(plots.colours([ODD]))
    assert "<script" not in picture


def test_zeros_have_a_place_on_a_logarithmic_axis():
    points = [plots.Point(x, 1, "a", "") for x in (0.0, 1.0, 100.0)]
    places = [float(x) for x in re.findall(r'cx="([\d.]+)"', plots.scatter(points, "x", "y", {"a": "red"}))]
    assert places == sorted(places) and len(set(places)) == 3


def test_labels_do_not_cover_that_of_zero():
    points = [plots.Point(x, 1, "a", "") for x in (0.0, 0.297, 4.93)]
    picture = plots.scatter(points, "x", "y", {"a": "red"})
    labels = re.findall(r'<text x="([.\d]+)" y="[.\d]+" text-anchor="middle">([.\d]+)<', picture)
    (_, zero), (place, second) = labels[0], labels[1]
    assert zero == "0" and second == "0.2" and float(place) - float(labels[0][0]) > 30


@pytest.mark.parametrize("high", [0.07, 1, 9.9, 300])
def test_a_linear_axis_has_five_to_twelve_round_ticks(high):
    picture = plots.lines([plots.Line([0, high], "red", ODD)], "x", "y")
    assert ODD not in picture
    ticks = [float(tick) for tick in re.findall(r'text-anchor="end">([-.e\d]+)<', picture)]
    assert 5 <= len(ticks) <= 13 and ticks[0] == 0 and ticks[-1] <= high
    heights = [float(y) for y in re.findall(r"[\d.]+,([\d.]+)", picture.split("<polyline")[1])]
    assert heights[0] == heights[1] > heights[2] == heights[3]


@pytest.mark.parametrize("size", ["1280,900", "400,800"])
def test_a_browser_sorts_its_tables_without_an_error(page, size, tmp_path):
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("there is no Chromium to look at the page with")
    clicks = """
    const heads = [...document.querySelector("table.sortable").tHead.rows[0].cells];
    const bound = heads.findIndex(head => head.textContent === "bound");
    heads[bound].click(); heads[bound].click();
    const cells = [...document.querySelectorAll("table.sortable")[0].tBodies[0].rows].map(row => row.cells[bound]);
    document.title = "sorted " + cells.map(cell => cell.textContent).join(" ") + " wide " +
      (document.documentElement.scrollWidth > document.documentElement.clientWidth);
    """
    page.write_text(page.read_text().replace("</body>", f"<script>{clicks}</script></body>"))
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path / 'profile'}",
    ]
    command += [f"--window-size={size}", "--enable-logging=stderr", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "CONSOLE" not in done.stderr, done.stderr
    assert "<title>sorted 0.4 0.4 0.2 0.2 0.1 0.1 0.1 wide false</title>" in done.stdout
