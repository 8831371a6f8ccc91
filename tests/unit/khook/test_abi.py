# SPDX-License-Identifier: Apache-2.0
"""abi.py has every enumerator of khook.h with its value, and no other; gcc reads the header."""

from __future__ import annotations

import enum
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import spotgpu_khook
from spotgpu_khook import abi

HEADER = Path(spotgpu_khook.__file__).parent / "khook.h"
#: Enum in the header -> class in abi.py, and the prefix that the class leaves out.
ENUMS: dict[str, tuple[type[enum.IntEnum], str]] = {
    "khook_limit": (abi.Limit, "KHOOK_"),
    "khook_default": (abi.Default, "KHOOK_DEFAULT_"),
    "khook_cmd": (abi.Cmd, "KHOOK_CMD_"),
    "khook_event": (abi.EventKind, "KHOOK_EVENT_"),
    "khook_classifier": (abi.Classifier, "KHOOK_CLASSIFIER_"),
    "khook_class": (abi.IoctlClass, "KHOOK_CLASS_"),
    "khook_method": (abi.Method, "KHOOK_METHOD_"),
    "khook_gate_state": (abi.GateState, "KHOOK_GATE_"),
    "khook_watch_state": (abi.WatchState, "KHOOK_WATCH_"),
    "khook_return_on": (abi.ReturnOn, "KHOOK_RETURN_ON_"),
    "khook_at_deadline": (abi.AtDeadline, "KHOOK_DEADLINE_"),
    "khook_on_hold": (abi.OnHold, "KHOOK_ON_HOLD_"),
    "khook_release_on": (abi.ReleaseOn, "KHOOK_RELEASE_ON_"),
    "khook_outcome": (abi.Outcome, "KHOOK_OUTCOME_"),
    "khook_attr": (abi.Attr, "KHOOK_A_"),
}
STRINGS = {
    "KHOOK_GENL_NAME": abi.GENL_NAME,
    "KHOOK_GENL_VERSION": str(abi.GENL_VERSION),
    "KHOOK_MCGRP_EVENTS": abi.MCGRP_EVENTS,
}


def _gcc() -> str:
    found = shutil.which("gcc") or shutil.which("cc")
    assert found, "a C compiler is needed to read khook.h"
    return found


def enumerators() -> dict[str, list[str]]:
    """Return enum -> names, in order, from the header as the preprocessor gives it."""
    text = subprocess.run(
        [_gcc(), "-E", "-P", str(HEADER)], check=True, capture_output=True, text=True
    ).stdout
    found = {}
    for name, body in re.findall(r"enum\s+(khook_\w+)\s*\{([^}]*)\}", text):
        found[name] = re.findall(r"\b(_*KHOOK_\w+)\b(?=\s*(?:=[^,]*)?(?:,|$))", body.strip())
    return found


def values(names: list[str], tmp_path: Path) -> dict[str, int]:
    """Return name -> value, as a program that includes the header prints them."""
    lines = "\n".join(f'printf("{name} %lld\\n", (long long){name});' for name in names)
    source = tmp_path / "values.c"
    source.write_text(f'#include <stdio.h>\n#include "{HEADER}"\nint main(void) {{\n{lines}\nreturn 0;\n}}\n')
    program = tmp_path / "values"
    subprocess.run([_gcc(), "-Wall", "-Werror", "-o", str(program), str(source)], check=True)
    told = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    return {name: int(value) for name, value in (line.split() for line in told.splitlines())}


def test_every_enum_of_the_header_has_a_class() -> None:
    assert set(enumerators()) == set(ENUMS)


@pytest.mark.parametrize("name", ENUMS)
def test_a_class_has_the_enumerators_of_its_enum_and_no_others(name: str, tmp_path: Path) -> None:
    mirror, prefix = ENUMS[name]
    names = [one for one in enumerators()[name] if not one.startswith("__")]
    assert names, name
    theirs = {one.removeprefix(prefix): value for one, value in values(names, tmp_path).items()}
    # Limits may be equal, which makes aliases of them: __members__ has those too.
    ours = {one: member.value for one, member in mirror.__members__.items()}
    assert ours == theirs


@pytest.mark.parametrize("macro", STRINGS)
def test_names_and_versions_are_the_headers(macro: str, tmp_path: Path) -> None:
    source = tmp_path / "macro.c"
    source.write_text(f'#include "{HEADER}"\nMACRO {macro}\n')
    text = subprocess.run(
        [_gcc(), "-E", "-P", str(source)], check=True, capture_output=True, text=True
    ).stdout
    assert text.splitlines()[-1] == (
        f"MACRO {STRINGS[macro]}" if STRINGS[macro].isdigit() else f'MACRO "{STRINGS[macro]}"'
    )


def test_the_header_is_what_user_space_can_include_alone(tmp_path: Path) -> None:
    source = tmp_path / "alone.c"
    source.write_text(f'#include "{HEADER}"\n#include "{HEADER}"\nint one = KHOOK_A_MAX;\n')
    subprocess.run(
        [
            _gcc(),
            "-std=c99",
            "-Wall",
            "-Wextra",
            "-pedantic",
            "-Werror",
            "-c",
            "-o",
            "/dev/null",
            str(source),
        ],
        check=True,
    )
