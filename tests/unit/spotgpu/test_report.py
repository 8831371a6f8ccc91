# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings

from spotgpu.report import page
from spotgpu.traces import Trace
from tests.unit.spotgpu.samples import BASE, any_trace, hand_back

HOSTILE = "</td></svg><script>alert(1)</script><img src=x onerror=alert(1)>\"'&\x00\x1b[2J\u202e"
VOID = {"meta", "link", "rect", "line", "br"}


class Reader(HTMLParser):
    """What a browser would make of a page: elements, attributes, text; and whether tags match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def tags(self) -> set[str]:
        return {tag for tag, _ in self.elements}


def check(text: str) -> Reader:
    read = Reader(text)
    assert read.stack == []
    assert not read.tags & {"script", "img", "iframe", "object", "embed", "form", "base"}
    for tag, attributes in read.elements:
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
        for name in ("src", "href", "xlink:href", "action"):
            assert (attributes.get(name) or "#").startswith(("#", "data:,")), (tag, attributes)
    return read


@settings(max_examples=60)
@given(any_trace())
def test_any_trace_makes_a_whole_page_that_loads_and_runs_nothing(trace: Trace) -> None:
    check(page([trace, trace]))


def test_hostile_text_is_text_wherever_it_comes_from() -> None:
    plain = hand_back()
    trace = hand_back(
        attributes={
            HOSTILE: HOSTILE,
            "spotgpu.owner": HOSTILE,
            "spotgpu.outcome": HOSTILE,
            "spotgpu.devices": [HOSTILE],
            "error.type": HOSTILE,
            "spotgpu.holders": [HOSTILE],
        },
        status="error",
        events=({"name": HOSTILE, "at_ns": BASE, "attributes": {HOSTILE: HOSTILE}},),
        links=({"trace_id": HOSTILE, "span_id": HOSTILE},),
        resource={"host.name": HOSTILE},
    )
    read = check(page([trace]))
    assert read.tags == check(page([plain])).tags | {"ul", "li", "b"}
    text = page([trace])
    assert "<script" not in text
    assert "\x00" not in text
    assert "\u202e" not in text
    assert any("alert(1)" in shown for shown in read.texts)


def test_nothing_is_loaded_from_anywhere() -> None:
    text = page([hand_back()])
    assert not re.search(r"https?://|url\(|@import", text)
    assert "default-src 'none'" in text


def test_exact_times_stand_in_a_table() -> None:
    read = check(page([hand_back()]))
    assert {"table", "caption", "thead", "tbody"} <= read.tags
    for exact in ("312400000", "190800000", str(BASE), str(BASE + 4_200_000), "199200000"):
        assert exact in read.texts


def test_the_drawing_says_what_it_shows() -> None:
    read = check(page([hand_back()]))
    drawings = [attributes for tag, attributes in read.elements if tag == "svg"]
    assert all(attributes["role"] == "img" for attributes in drawings)
    ids = {attributes.get("id") for _, attributes in read.elements}
    for attributes in drawings:
        label = attributes.get("aria-labelledby")
        assert attributes.get("aria-label") or set((label or "?").split()) <= ids
    assert any("owner waited 312 ms" in text for text in read.texts)
    assert {attributes.get("scope") for tag, attributes in read.elements if tag == "th"} == {"col", "row"}
    assert read.elements[0] == ("html", {"lang": "en"})


def test_dark_light_and_print() -> None:
    text = page([hand_back()])
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
    assert '<meta name="color-scheme" content="light dark">' in text


def test_several_traces_have_an_index() -> None:
    read = check(page([hand_back("a" * 32), hand_back("b" * 32, attributes={"spotgpu.outcome": "deadline"})]))
    assert [attributes["href"] for tag, attributes in read.elements if tag == "a"] == ["#t0", "#t1"]
    ids = [attributes["id"] for _, attributes in read.elements if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_no_traces_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="no traces"):
        page([])
