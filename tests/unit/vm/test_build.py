# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from tests.vm.build import warnings_in


@pytest.mark.parametrize(
    "line",
    [
        "hook.c:3:5: warning: unused variable 'x' [-Wunused-variable]",
        "hook.c:3:5: warning: symbol 'x' was not declared. Should it be static?",
        "WARNING: modpost: missing MODULE_DESCRIPTION() in khook.o",
        "Warning: hook.c:3 Function parameter 'x' not described in 'y'",
    ],
)
def test_a_warning_is_found(line: str) -> None:
    assert warnings_in(f"  CC [M]  hook.o\n{line}\n  LD [M]  khook.o\n") == [line]


@pytest.mark.parametrize(
    "line",
    [
        "warning: the compiler differs from the one used to build the kernel",
        "  CC [M]  warnings.o",
        "  CHECK   hook.c",
    ],
)
def test_what_does_not_warn_of_our_code_is_no_warning(line: str) -> None:
    assert warnings_in(line) == []
