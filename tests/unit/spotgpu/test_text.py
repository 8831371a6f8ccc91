# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spotgpu.errors import SpotgpuError, UsageError
from spotgpu.names import EvictionReason, spot_id
from spotgpu.text import printable


@given(st.one_of(st.text(), st.binary(), st.integers(), st.none()), st.integers(1, 300))
def test_printable_is_one_bounded_line_that_any_encoding_of_unicode_takes(value: object, limit: int) -> None:
    shown = printable(value, limit)
    assert len(shown) <= limit
    assert shown.isprintable()
    shown.encode("utf-8")


def test_printable_keeps_plain_text_and_shows_the_rest() -> None:
    assert printable("dev-box ä 日本") == "dev-box ä 日本"
    assert printable("a\x1b[2J\n\u202e\ud800") == "a\\x1b[2J\\n\\u202e\\ud800"
    assert printable("x" * 300, 10) == "x" * 9 + "…"


def test_errors_are_one_line_of_field_and_remedy() -> None:
    assert str(UsageError("is no UUID", "owners[0].devices[1]", "see nvidia-smi -L")) == (
        "owners[0].devices[1]: is no UUID (see nvidia-smi -L)"
    )
    assert str(SpotgpuError("nothing here")) == "nothing here"
    assert (UsageError.exit_status, SpotgpuError.exit_status) == (2, 1)


def test_names_of_the_design() -> None:
    assert spot_id("GPU-1") == "spot-GPU-1"
    assert set(EvictionReason) == {
        "OwnerBack",
        "OwnerHint",
        "OwnerStarting",
        "QueueReclaim",
        "DeviceUnhealthy",
        "Admin",
    }
