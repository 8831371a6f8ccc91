# SPDX-License-Identifier: Apache-2.0
"""tests/CLAIMS.md is evidence only while every id in it exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.bench.figures import FIGURES

TOP = Path(__file__).parents[2]
CLAIMS = TOP / "tests" / "CLAIMS.md"
TEST_ID = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
BENCH_ID = re.compile(r"`bench:([\w.]+)`")


def rows() -> list[tuple[str, str]]:
    lines = [line for line in CLAIMS.read_text().splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [(promise, evidence) for promise, evidence in cells if promise != "promise"]


def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


@pytest.mark.parametrize(("promise", "evidence"), rows())
def test_every_claim_names_evidence_that_exists(promise: str, evidence: str) -> None:
    tests, benches = TEST_ID.findall(evidence), BENCH_ID.findall(evidence)
    assert tests or benches, f"no test or bench id for: {promise}"
    for file, function in tests:
        assert (TOP / file).exists(), f"{file} is gone"
        assert function in functions_of(TOP / file), f"{file} has no {function}"
    assert set(benches) <= set(FIGURES), f"unknown figures: {set(benches) - set(FIGURES)}"


def test_there_are_claims() -> None:
    assert rows(), "an empty table would make the test above pass for nothing"
