"""Quantities, tables as text, tables and pages as HTML, lanes of a plot."""

import re
from html import escape
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from tf_comptrain.render import html, plots, text
from tf_comptrain.render.units import format_bytes, format_seconds

ODD = "<b>[red]&\"'"


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (None, ""),
        (0, "0 B"),
        (999, "999 B"),
        (1234567, "1.23 MB"),
        (-2500, "-2.5 kB"),
        (3.2e12, "3,200 GB"),
        (999_800, "1 MB"),
    ],
)
def test_bytes(count, words):
    assert format_bytes(count) == words


@pytest.mark.parametrize(
    ("seconds", "words"), [(2, "2 s"), (0.01234, "12.34 ms"), (5e-6, "5 us"), (0, "0 us")]
)
def test_seconds(seconds, words):
    assert format_seconds(seconds) == words


def test_a_table_as_text_has_no_markup_and_numbers_to_the_right():
    table = text.table_of(ODD, ("name", "bytes"), ("bytes",))
    table.add_row(ODD, "1")
    table.add_row("a", "200")
    lines = text.as_text([table, ODD]).splitlines()
    assert lines[0] == lines[-1] == ODD
    assert [line.split() for line in lines[1:2]] == [["name", "bytes"]]
    assert lines[3].startswith(ODD) and lines[3].endswith("    1") and lines[4].endswith("  200")


def test_a_long_cell_is_folded_and_none_where_no_width_is_given():
    table = text.table_of("", ("name",))
    table.add_row("x" * 300)
    assert max(map(len, text.as_text([table], width=100).splitlines())) == 100
    assert "x" * 300 in text.as_text([table], width=None)


class _Cells(HTMLParser):
    """(tag, attributes, text) of the cells of a table."""

    def __init__(self, page):
        super().__init__()
        self.found = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        if tag in ("th", "td", "caption", "b"):
            self.found.append([tag, dict(attrs), ""])

    def handle_data(self, data):
        if self.found:
            self.found[-1][2] += data.strip()


def test_a_table_as_html():
    cells = _Cells(html.table(("name", ODD), [(ODD, (1.5, "1.5 kB")), ("a", None)], (ODD,), ODD)).found
    assert [(tag, words) for tag, _, words in cells] == [
        ("caption", ODD), ("th", "name"), ("th", ODD), ("td", ODD), ("td", "1.5 kB"), ("td", "a"), ("td", "")
    ]  # fmt: skip
    assert cells[4][1] == {"class": "number", "data-value": "1.5"} and cells[3][1] == {}


def test_a_page_needs_no_network():
    page = html.page(ODD, "<p>body</p>")
    assert f"<title>{escape(ODD)}</title>" in page and f"<h1>{escape(ODD)}</h1>" in page
    assert "<p>body</p>" in page
    assert not re.search(r"(src|href)=|https?://|@import|url\(", page)


def test_a_short_bar_keeps_its_colour():
    """A white edge would cover it."""
    axes = plots.figure(4, 2).subplots()
    plots.lanes(axes, ["a", "b"], [(0, "#ff0000", [(0, 1), (1, 2)]), (1, "#0000ff", [(0, 0.001)])])
    wide, short = axes.collections
    assert wide.get_edgecolor().tolist() == [[1, 1, 1, 1]] and short.get_edgecolor().tolist() == [
        [0, 0, 1, 1]
    ]


def test_a_drawn_picture_has_the_colours_of_its_page():
    figure = plots.figure(3, 2)
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color=plots.BLUE)
    plots.title(axes, "a & b")
    drawn = plots.svg(figure)
    root = ElementTree.fromstring(drawn)
    assert root.tag.endswith("svg") and root.attrib["fill"] == "currentColor"
    assert "a & b" in [element.text for element in root.iter() if element.tag.endswith("text")]
    assert plots.BLUE in drawn
    assert not re.search("#000000|#ffffff", drawn)
