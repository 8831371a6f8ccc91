# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench.figures import FIGURES, Row, merge, ratios, row


def test_a_row_holds_only_within_its_goal() -> None:
    assert row("P1.1", [1.1, 1.3, 1.2]).holds is True
    assert row("P1.1", [1.4, 1.2, 1.5]).holds is False
    assert row("P1n.1", [9.0]).holds is None, "no goal, no verdict"


def test_a_goal_of_one_allows_rounding_and_no_more() -> None:
    assert row("P4.disarmed", [1.004]).holds is True
    assert row("P4.disarmed", [1.006]).holds is False


def test_a_figure_made_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"P1\.1: no samples"):
        row("P1.1", [])


def test_ratios_are_of_pairs() -> None:
    assert ratios([2.0, 30.0], [1.0, 10.0]) == [2.0, 3.0]
    with pytest.raises(ValueError, match="argument 2 is longer"):
        ratios([1.0], [1.0, 2.0])


def test_merge_replaces_the_same_id_and_keeps_the_others(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    merge(path, [row("P4.armed", [1.2]), row("P1.1", [1.1])])
    merge(path, [row("P4.armed", [1.0])])
    entries = json.loads(path.read_text())
    assert [(entry["id"], entry["value"]) for entry in entries] == [("P1.1", 1.1), ("P4.armed", 1.0)]
    assert set(entries[0]) == set(Row.__dataclass_fields__)


def test_ids_are_unique() -> None:
    assert all(key == figure.id for key, figure in FIGURES.items())
    assert {"P1.1", "P1.8", "P1.64", "P1e.1", "P1e.8", "P1e.64", "P4.armed", "P4.disarmed"} <= set(FIGURES)
