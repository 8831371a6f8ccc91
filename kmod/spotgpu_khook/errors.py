# SPDX-License-Identifier: Apache-2.0
"""What can go wrong between a caller and khook.

SpotgpuError
└── KhookError          `errno` (0 if none) and `message`
    ├── KhookMissing    the module is not loaded, or was unloaded
    ├── KhookVersion    the module speaks another version of the ABI
    ├── KhookDenied     the caller lacks CAP_NET_ADMIN in the initial user namespace
    ├── KhookRefused    a command was refused; `message` is the kernel's own sentence
    ├── KhookTimeout    the kernel did not answer
    ├── KhookClosed     the connection was closed meanwhile
    └── EventsLost      events were dropped: read the dumps, then go on with the same stream
"""

from __future__ import annotations

import errno as errnos

from spotgpu.errors import SpotgpuError


class KhookError(SpotgpuError):
    """Anything khook's client raises.

    Args:
        message: one sentence.
        errno: the kernel's error number, positive; 0 when the kernel did not say it.
        remedy: what to do about it, or None.
    """

    def __init__(self, message: str, errno: int = 0, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.errno = errno


class KhookMissing(KhookError):  # noqa: N818 - the module is missing, which is a state and no error of its own
    """No such generic netlink family."""

    def __init__(self) -> None:
        super().__init__(
            "the kernel module khook is not loaded",
            errnos.ENOENT,
            "build it for this kernel and load it: make -C kmod install && modprobe khook",
        )


class KhookVersion(KhookError):  # noqa: N818
    """The loaded module is not of this client's version."""

    def __init__(self, theirs: int, ours: int) -> None:
        newer = "this client" if theirs < ours else "the module"
        super().__init__(
            f"khook speaks version {theirs}, this client speaks version {ours}: {newer} is newer",
            remedy="install the module and the Python package of one release, then rmmod and modprobe khook",
        )
        self.theirs = theirs
        self.ours = ours


class KhookDenied(KhookError):  # noqa: N818
    """Every command needs CAP_NET_ADMIN in the initial user namespace."""

    def __init__(self) -> None:
        super().__init__(
            "khook answers only to CAP_NET_ADMIN in the initial user namespace",
            errnos.EPERM,
            "run as root on the node, or add NET_ADMIN to the pod's capabilities without hostUsers: false",
        )


class KhookRefused(KhookError):  # noqa: N818
    """A command was refused: `errno` as khook.h lists it, `message` the sentence of the kernel."""

    def __init__(self, command: str, errno: int, message: str) -> None:
        super().__init__(f"{command}: {message}", errno)
        self.command = command
        self.reason = message


class KhookTimeout(KhookError):  # noqa: N818
    """No answer in time: an overrun socket may have dropped it."""

    def __init__(self, command: str, limit_s: float) -> None:
        super().__init__(f"{command}: no answer from khook within {limit_s:g} s", errnos.ETIMEDOUT)


class KhookClosed(KhookError):  # noqa: N818
    """The connection was closed, so there will be no answer."""

    def __init__(self) -> None:
        super().__init__("the connection to khook is closed", errnos.ENOTCONN)


class EventsLost(KhookError):  # noqa: N818
    """The kernel or this process dropped events. What is true now is in the dumps."""

    def __init__(self) -> None:
        super().__init__(
            "events of khook were lost", errnos.ENOBUFS, "rebuild from watches() and holds(), then go on"
        )
