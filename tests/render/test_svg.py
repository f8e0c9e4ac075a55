"""Plots of a page."""

import re

import pytest

from tf_comptrain.render import svg

ODD = "<script>alert(1)</script>&\"'"


def test_every_text_is_escaped():
    point = svg.Point(1, 1, ODD, ODD)
    picture = svg.scatter([point], ODD, ODD, svg.colours([ODD])) + svg.legend(svg.colours([ODD]))
    assert "<script" not in picture


def test_zeros_have_a_place_on_a_logarithmic_axis():
    points = [svg.Point(x, 1, "a", "") for x in (0.0, 1.0, 100.0)]
    places = [float(x) for x in re.findall(r'cx="([\d.]+)"', svg.scatter(points, "x", "y", {"a": "red"}))]
    assert places == sorted(places) and len(set(places)) == 3


def test_labels_do_not_cover_that_of_zero():
    points = [svg.Point(x, 1, "a", "") for x in (0.0, 0.297, 4.93)]
    picture = svg.scatter(points, "x", "y", {"a": "red"})
    labels = re.findall(r'<text x="([.\d]+)" y="[.\d]+" text-anchor="middle">([.\d]+)<', picture)
    (_, zero), (place, second) = labels[0], labels[1]
    assert zero == "0" and second == "0.2" and float(place) - float(labels[0][0]) > 30


@pytest.mark.parametrize("high", [0.07, 1, 9.9, 300])
def test_a_linear_axis_has_five_to_twelve_round_ticks(high):
    picture = svg.lines([svg.Line([0, high], "red", ODD)], "x", "y")
    assert ODD not in picture
    ticks = [float(tick) for tick in re.findall(r'text-anchor="end">([-.e\d]+)<', picture)]
    assert 5 <= len(ticks) <= 13 and ticks[0] == 0 and ticks[-1] <= high
    heights = [float(y) for y in re.findall(r"[\d.]+,([\d.]+)", picture.split("<polyline")[1])]
    assert heights[0] == heights[1] > heights[2] == heights[3]
