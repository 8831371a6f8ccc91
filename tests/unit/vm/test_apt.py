# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from tests.vm.apt import Mirrors, parse_targets, preferences, source_lines
from tests.vm.guests import GUESTS
from tests.vm.host import HarnessError

TARGETS = """\
https://vendor.example/apt/|cloud-sdk-bookworm|main
https://node.example/|nodistro|main
http://mirror.example/debian-security/|bookworm-security|main
http://mirror.example/debian/|bookworm-updates|main
http://mirror.example/debian/|bookworm|main
http://other.example/debian/|bookworm|contrib
"""
MIRRORS = Mirrors("http://mirror.example/debian/", "http://mirror.example/debian-security/")


def test_the_debian_archives_are_told_from_others() -> None:
    assert parse_targets(TARGETS) == MIRRORS


def test_a_host_without_a_security_archive_has_none() -> None:
    assert parse_targets("http://m.example/debian/|trixie|main") == Mirrors("http://m.example/debian/", None)


def test_a_host_without_debian_is_refused_with_a_remedy() -> None:
    with pytest.raises(HarnessError, match=r"sources\.list\.d"):
        parse_targets("http://ubuntu.example/|noble|main\n")


def test_sources_name_release_updates_security_and_the_kernel_suite() -> None:
    suites = [line.split()[-2] for line in source_lines(GUESTS["7.x"], MIRRORS)]
    assert suites == ["trixie", "trixie-updates", "trixie-security", "trixie-backports"]
    suites = [line.split()[-2] for line in source_lines(GUESTS["6.1"], Mirrors(MIRRORS.main, None))]
    assert suites == ["bookworm", "bookworm-updates"]


def test_only_a_guest_with_a_kernel_suite_has_preferences() -> None:
    assert preferences(GUESTS["6.12"]) == ""
    assert "Pin: release n=trixie-backports" in preferences(GUESTS["7.x"])
