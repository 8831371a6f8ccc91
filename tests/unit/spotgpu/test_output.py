# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
import json
import sys

from hypothesis import given
from hypothesis import strategies as st

from spotgpu.errors import UsageError
from spotgpu.output import draws, error_text, table, to_json, width

_cells = st.one_of(
    st.none(),
    st.text(),
    st.integers(),
    st.booleans(),
    st.lists(st.text()),
    st.dictionaries(st.text(), st.text()),
)


def test_a_table_lines_up_and_puts_known_columns_first() -> None:
    rows: list[dict[str, object]] = [
        {"b": 1, "a": "x"},
        {"a": "longer", "c": None, "b": True},
        {"a": ["p", "q"]},
    ]
    assert table(rows, ("a", "missing")) == (
        "A       B    C\nx       1    -\nlonger  yes  -\np,q     -    -\n"
    )
    assert table([]) == ""
    assert table([{}]) == ""


@given(st.lists(st.dictionaries(st.text(max_size=5), _cells, max_size=4), max_size=5))
def test_a_table_has_a_line_a_row_whatever_is_in_it(rows: list[dict[str, object]]) -> None:
    text = table(rows)
    assert text == "" or text.count("\n") == len(rows) + 1
    assert all(line.isprintable() for line in text.split("\n"))


def test_errors_in_text_and_json() -> None:
    error = UsageError("no\nsuch owner", "owner", "see status")
    assert (
        error_text(error, "spotgpu status", False) == "spotgpu status: owner: no\\nsuch owner (see status)\n"
    )
    assert json.loads(error_text(error, "spotgpu status", True)) == {
        "error": "no\nsuch owner",
        "field": "owner",
        "remedy": "see status",
    }


def test_json_has_a_word_for_anything() -> None:
    assert json.loads(
        to_json(
            {
                "a": {
                    1,
                },
                "b": io,
            }
        )
    ).keys() == {"a", "b"}


def test_what_a_stream_can_show() -> None:
    assert draws(io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), "█")
    assert not draws(io.TextIOWrapper(io.BytesIO(), encoding="latin-1"), "█")
    assert width(io.StringIO()) == 80
    assert sys.stdout is not None
