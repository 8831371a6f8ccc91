# SPDX-License-Identifier: Apache-2.0
"""How `pytest tests/` works: unit tests run here; each test below tests/guest runs in a guest, once a kernel.

Inside a guest ($SPOTGPU_GUEST is set) a guest test is an ordinary test.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

GUEST_TESTS = Path(__file__).parent / "guest"
IN_GUEST = bool(os.environ.get("SPOTGPU_GUEST"))

if not IN_GUEST:
    pytest_plugins = ["tests.vm.pytest_host"]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("spotgpu")
    group.addoption("--soak", action="store_true", help="run the tests marked soak too")
    group.addoption(
        "--kernel",
        action="append",
        default=[],
        metavar="K",
        help="run guest tests on this kernel alone (repeatable); default $SPOTGPU_KERNELS, else all",
    )
    group.addoption(
        "--guest-build",
        action="append",
        default=[],
        metavar="NAME",
        help="what to build for the guests (repeatable; `none`); default: everything",
    )
    group.addoption(
        "--guest-limit", type=float, metavar="S", help="limit of one guest's life, seconds (2400; soak 14400)"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(GUEST_TESTS):
            item.add_marker(pytest.mark.guest)
    if not config.getoption("--soak"):
        soak = [item for item in items if item.get_closest_marker("soak")]
        if soak:
            config.hook.pytest_deselected(items=soak)
            items[:] = [item for item in items if item not in soak]
