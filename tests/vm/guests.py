# SPDX-License-Identifier: Apache-2.0
"""The three guests: which Debian release, which kernel. One description a guest, nothing else here."""

from __future__ import annotations

from dataclasses import dataclass

PACKAGES = (
    "busybox-static",
    "containerd",
    "gcc",
    "iproute2",
    "kmod",
    "libc6-dev",
    "linux-headers-cloud-amd64",
    "linux-image-cloud-amd64",
    "make",
    "procps",
    "python3",
    "python3-bpfcc",
    "runc",
    "socat",
    "sparse",
    "strace",
    "util-linux",
)


@dataclass(frozen=True)
class Guest:
    """One Debian release with one of its kernels.

    Parameters: `key` is what the user types after `-k`; `kernel_prefix` is what `uname -r` must start with,
    so that a mirror that moved on is noticed; `python` is the guest's own Python; `kernel_suite` is the suite
    the kernel is taken from when it is not the release's own.
    """

    key: str
    release: str
    kernel_prefix: str
    python: str
    kernel_suite: str | None = None
    packages: tuple[str, ...] = PACKAGES


GUESTS: dict[str, Guest] = {
    guest.key: guest
    for guest in (
        Guest(key="6.1", release="bookworm", kernel_prefix="6.1.", python="3.11"),
        Guest(key="6.12", release="trixie", kernel_prefix="6.12.", python="3.13"),
        Guest(
            key="7.x", release="trixie", kernel_prefix="7.", python="3.13", kernel_suite="trixie-backports"
        ),
    )
}


def find_guest(key: str) -> Guest:
    """Return the guest called `key`. Raises KeyError naming the ones there are."""
    if key not in GUESTS:
        raise KeyError(f"no guest {key!r}; there are {', '.join(GUESTS)}")
    return GUESTS[key]
