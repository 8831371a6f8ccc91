# SPDX-License-Identifier: Apache-2.0
"""Run a command inside a guest's root tree on the host: native speed, its own compiler and headers."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.vm.host import run

_ENVIRONMENT = ("PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8")


def in_chroot(tree: Path, argv: Sequence[str], *, binds: Mapping[str, Path], log: Path | None = None) -> str:
    """Run `argv` in `tree`, which stays as it is, with `binds` (place in the tree -> host folder).

    All mounts live in a mount namespace of the command's own, so that they end with it however it ends.
    Returns its stdout (empty with `log`). Raises CommandFailedError.
    """
    root = shlex.quote(str(tree))
    lines = ["set -e", f"mount --bind {root} {root}", f"cd {root}"]
    lines += [f"mount --bind {shlex.quote(str(source))} ./{place}" for place, source in binds.items()]
    lines += [
        "mount -t proc proc ./proc",
        "mount -t tmpfs tmp ./tmp",
        "mount --rbind /dev ./dev",
        f"mount -o remount,bind,ro {root}",
        f'exec env -i {" ".join(_ENVIRONMENT)} chroot {root} "$@"',
    ]
    isolated = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    return run(
        [*isolated, "sh", "-c", "\n".join(lines), "sh", *argv], log=log, name=f"in {tree}: {shlex.join(argv)}"
    )
