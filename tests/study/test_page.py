"""The report of a study: what is in it, that nothing in it is taken for HTML, and that a browser runs it."""

import re

import pytest
from browser import shown
from test_best_fit import written

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


@pytest.mark.parametrize("size", ["1280,900", "400,800"])
def test_a_browser_sorts_its_tables_without_an_error(page, size, tmp_path):
    clicks = """
    const heads = [...document.querySelector("table.sortable").tHead.rows[0].cells];
    const bound = heads.findIndex(head => head.textContent === "bound");
    heads[bound].click(); heads[bound].click();
    const cells = [...document.querySelectorAll("table.sortable")[0].tBodies[0].rows].map(row => row.cells[bound]);
    document.title = "sorted " + cells.map(cell => cell.textContent).join(" ") + " wide " +
      (document.documentElement.scrollWidth > document.documentElement.clientWidth);
    """
    page.write_text(page.read_text().replace("</body>", f"<script>{clicks}</script></body>"))
    found = shown(page, tmp_path, f"--window-size={size}")
    assert "<title>sorted 0.4 0.4 0.2 0.2 0.1 0.1 0.1 wide false</title>" in found
