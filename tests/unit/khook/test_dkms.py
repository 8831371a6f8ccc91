# SPDX-License-Identifier: Apache-2.0
"""dkms.conf says what the module and the documentation say."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

TOP = Path(__file__).parents[3]
KMOD = TOP / "kmod"


def dkms(name: str) -> str:
    """A variable of dkms.conf, which dkms sources with the kernel's build directory set."""
    script = f'kernel_source_dir=/headers; . ./dkms.conf; printf %s "${{{name}}}"'
    return subprocess.run(
        ["bash", "-euc", script], cwd=KMOD, check=True, capture_output=True, text=True
    ).stdout


def test_the_version_is_the_modules_own() -> None:
    (version,) = re.findall(r'MODULE_VERSION\("(.+)"\)', (KMOD / "main.c").read_text())
    assert dkms("PACKAGE_VERSION") == version


def test_what_is_built_is_what_kbuild_makes() -> None:
    built = dkms("BUILT_MODULE_NAME[0]")
    assert f"obj-m := {built}.o" in (KMOD / "Kbuild").read_text()
    assert dkms("MAKE[0]") == "make KDIR=/headers"
    assert dkms("CLEAN") == "make KDIR=/headers clean"


def test_the_documentation_installs_this_package() -> None:
    package, version = dkms("PACKAGE_NAME"), dkms("PACKAGE_VERSION")
    command = f"cp -r kmod /usr/src/{package}-{version} && dkms install {package}/{version}"
    for text in (TOP / "README.md", KMOD / "README.md"):
        assert command in text.read_text()
