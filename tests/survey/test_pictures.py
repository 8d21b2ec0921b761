"""The heat map: one page that needs nothing else and says the same as the table; the same as a PNG."""

from __future__ import annotations

import io
import re
import sys
from collections import Counter
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

from sm120_overlay.picture.chart import Chart, Layout, Look, Mark, Row, Stretch, Tick, apart
from sm120_overlay.picture.image import image
from sm120_overlay.picture.page import Cell, page, shortened, svg
from sm120_overlay.verbs._pictured import LOOKS

from ..queue.toy import TOY, Toy
from .upstream import CLASH, CORE, NEAR, QUIET, Upstream, patch_of, survey

ODD = '<b>"&\u2019'
LOOK = {"clean": Look("#009e73", "#ffffff", 0, "fine"), "conflict": Look("#d55e00", "#ffffff", 8, "not")}
CHART = Chart(
    f"Title {ODD}",
    (f"Line {ODD}", "another"),
    LOOK,
    (
        Row(f"one {ODD}", "conflict", f"why {ODD}", (Stretch(0, 0.5, "clean", "a"), Stretch(0.5, 1, "conflict", ODD))),
        Row("two", "clean", "", (Stretch(0, 1, "clean", "b"),), (Mark(0.25, f"m {ODD}"),)),
    ),
    (Tick(0, "2026-01"), Tick(0.5, "2026-02"), Tick(0.51, "2026-03")),
    (Tick(0.3, "v1"), Tick(0.4, "v2")),
)
EMPTY = Chart("Nothing", (), LOOK, (), ())


class Elements(HTMLParser):
    """Counts what a page has, and notes what does not close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def test_the_page_is_whole_and_whatever_a_subject_says_stays_text() -> None:
    text = page(CHART, ("a", "b"), [[Cell(ODD), Cell(ODD, f"https://example.org/{ODD}")]])
    found = Elements(text)
    assert found.open == []
    assert "<b>" not in text
    assert text.count("&lt;b&gt;&quot;&amp;") > 6
    assert ElementTree.fromstring(svg(CHART, Layout())).tag == "svg"


def test_the_page_needs_nothing_from_elsewhere() -> None:
    found = Elements(page(CHART, (), []))
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in found.tags}
    assert not re.search(r"(src|xlink:href|url\()=?.?https?:", page(CHART, (), []))


def test_every_stretch_can_be_reached_by_key_and_says_what_it_is() -> None:
    groups = Elements(svg(CHART, Layout())).of("g")
    assert [group["aria-label"] for group in groups] == ["a", ODD, "b"]
    assert {group["tabindex"] for group in groups} == {"0"}


def test_the_page_is_light_and_dark_and_printable() -> None:
    text = page(CHART, (), [])
    for rule in ("prefers-color-scheme: dark", "@media print", "color-scheme: light dark"):
        assert rule in text


def test_states_differ_in_lightness_or_lines_not_in_hue_alone() -> None:
    def lightness(colour: str) -> float:
        red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
        return 0.299 * red + 0.587 * green + 0.114 * blue

    seen = [(round(lightness(look.colour) / 24), look.hatch) for look in LOOKS.values()]
    assert len(set(seen)) == len(LOOKS)
    assert all(LOOKS[state].hatch for state in ("conflict", "gone"))
    assert not any(LOOKS[state].hatch for state in ("clean", "moved", "absorbed"))


@pytest.mark.parametrize("chart", [CHART, EMPTY])
def test_the_image_is_a_png_of_the_charts_size(chart: Chart) -> None:
    picture = Image.open(io.BytesIO(image(chart)))
    assert (picture.format, picture.size[0]) == ("PNG", 2 * Layout().width)
    colours = Counter(picture.convert("RGB").get_flattened_data())
    green = sum(count for colour, count in colours.items() if colour == (0x00, 0x9E, 0x73))
    assert (green > 10_000) == bool(chart.rows)


def test_without_pillow_the_image_says_what_to_do(monkeypatch: pytest.MonkeyPatch, upstream: Upstream) -> None:
    upstream.commit(NEAR)
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setattr("sm120_overlay.verbs._ranges.find_span", lambda *arguments: pytest.fail("it began to work"))
    answer = survey(upstream, "..", "--png", upstream.path.parent / "x.png")
    assert (answer.code, "Pillow is not installed" in answer.said["error"]["what"]) == (4, True)


def test_labels_do_not_lie_on_each_other() -> None:
    ticks = [Tick(number / 100, f"2026-{number:02}") for number in range(100)]
    kept = apart(ticks, Layout())
    assert kept[-1] == ticks[-1]
    places = [Layout().x(tick.at) for tick in kept]
    assert all(right - left >= 7 * 7 for left, right in pairwise(places))
    assert len(apart(ticks, Layout(), 2)) > len(kept)


def test_a_long_text_is_cut_where_it_can_be_seen() -> None:
    assert shortened("short", 10) == "short"
    assert shortened("rather long a text", 10) == "rather lo…"


def test_the_pictures_say_what_the_table_says(toy: Toy, upstream: Upstream, tmp_path: Path) -> None:
    upstream.on("release-1.1", new=True).commit(QUIET)
    upstream.tag("v1.1").on("main").commit(NEAR, 1)
    upstream.commit(CLASH, 2, f"Answer {ODD}")
    upstream.on("release-1.2", new=True).commit(QUIET)
    upstream.tag("v1.2").on("main").commit({CORE: TOY[CORE]}, 3)
    toy.home.pins.write_text(toy.home.pins.read_text().replace(str(toy.upstream()), "https://example.org/toy.git"))
    answer = survey(upstream, "v1.1..", "--html", tmp_path / "x.html", "--png", tmp_path / "x.png")
    assert answer.said["written"] == [str(tmp_path / "x.html"), str(tmp_path / "x.png")]
    found = Elements((tmp_path / "x.html").read_text())
    turns = [turn for slug in ("right-answer", "bring-hook") for turn in patch_of(answer, slug)["turns"]]
    said = [str(group["aria-label"]) for group in found.of("g")]
    assert [label.split("\n")[0].split(": ")[1] for label in said] == [turn["state"] for turn in turns]
    assert f"Answer {ODD} (#2)" in said[1]
    assert {link["href"] for link in found.of("a")} == {"https://example.org/toy/pull/2"}
    assert ">v1.2</text>" in (tmp_path / "x.html").read_text()
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
