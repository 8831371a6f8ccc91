# SPDX-License-Identifier: Apache-2.0
"""Where Debian packages come from: the host's own apt configuration, for every release we boot."""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.vm.cache import locked
from tests.vm.guests import Guest
from tests.vm.host import HarnessError, cache_root, run, say, step

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
KERNEL_META = "linux-image-cloud-amd64"
RESOLVED_FOR_S = 7 * 86400
# Host settings that decide whether a download works at all; the rest of the host's apt taste stays out of the
# guest.
_HONOURED = re.compile(r"^Acquire::(https?|ftp|Retries|ForceIPv[46]|Check-Date|Check-Valid-Until)(::|\b)")


@dataclass(frozen=True)
class Mirrors:
    """Base addresses of the two Debian archives, as the host itself uses them; security may be absent."""

    main: str
    security: str | None


def parse_targets(text: str) -> Mirrors:
    """Pick the Debian archives out of `apt-get indextargets --format '$(REPO_URI)|$(RELEASE)|$(COMPONENT)'`.

    The main archive is the one that serves `<release>-updates` or a Debian release name in component main;
    third-party repositories have other release names. Raises HarnessError when there is none.
    """
    main = security = None
    for line in text.splitlines():
        uri, release, component = line.split("|")[:3]
        if component != "main":
            continue
        base = release.split("-")[0].split("/")[0]
        if base not in _DEBIAN_RELEASES:
            continue
        if release.endswith(("-security", "/updates")):
            security = security or uri
        else:
            main = main or uri
    if main is None:
        raise HarnessError(
            "the host's apt configuration has no Debian archive (say, bookworm main); "
            "add one to /etc/apt/sources.list.d and run apt-get update"
        )
    return Mirrors(main, security)


_DEBIAN_RELEASES = frozenset(
    ("stable", "oldstable", "testing", "unstable", "bullseye", "bookworm", "trixie", "forky", "sid")
)


def host_mirrors() -> Mirrors:
    """Ask the host's apt where it fetches Debian from."""
    return parse_targets(run(["apt-get", "indextargets", "--format", "$(REPO_URI)|$(RELEASE)|$(COMPONENT)"]))


def source_lines(guest: Guest, mirrors: Mirrors) -> list[str]:
    """Return the sources.list lines for a guest: release, updates, security, kernel's suite."""
    suites = [(mirrors.main, guest.release), (mirrors.main, f"{guest.release}-updates")]
    if mirrors.security:
        suites.append((mirrors.security, f"{guest.release}-security"))
    if guest.kernel_suite:
        suites.append((mirrors.main, guest.kernel_suite))
    return [f"deb [signed-by={KEYRING}] {uri} {suite} main" for uri, suite in suites]


def preferences(guest: Guest) -> str:
    """Return apt preferences that take the kernel, and nothing else, from the guest's kernel suite."""
    if not guest.kernel_suite:
        return ""
    packages = "src:linux src:linux-signed-amd64 src:linux-base"
    return f"Package: {packages}\nPin: release n={guest.kernel_suite}\nPin-Priority: 900\n"


def honoured_options() -> list[str]:
    """Return the host's proxy, CA and retry settings as lines of apt configuration."""
    dump = run(["apt-config", "dump", "--no-empty", "--format", '%F "%v";%n', "Acquire"])
    return [line for line in dump.splitlines() if _HONOURED.match(line)]


def kernel_version(guest: Guest) -> str:
    """Return the version of the kernel package that would be installed now.

    The answer is kept for a week, so that a warm run needs no network. Raises HarnessError if the mirror has
    no kernel of the guest's series.
    """
    note = cache_root() / "apt" / f"{guest.key}.json"
    with locked(note.with_suffix(".lock")):
        if note.exists():
            known = json.loads(note.read_text())
            if known["guest"] == _described(guest) and time.time() - known["asked"] < RESOLVED_FOR_S:
                return str(known["version"])
        version = _ask_apt(guest)
        if not version.startswith(guest.kernel_prefix):
            raise HarnessError(
                f"guest {guest.key}: {KERNEL_META} in {guest.kernel_suite or guest.release} is {version}, "
                f"which is not of the {guest.kernel_prefix} series"
            )
        temporary = note.with_suffix(".tmp")
        temporary.write_text(
            json.dumps({"guest": _described(guest), "asked": time.time(), "version": version})
        )
        temporary.rename(note)
    say(f"guest {guest.key}: kernel package version {version}")
    return version


def _described(guest: Guest) -> dict[str, object]:
    described: dict[str, object] = json.loads(json.dumps(asdict(guest)))
    return described


def _ask_apt(guest: Guest) -> str:
    home = cache_root() / "apt" / guest.key
    for folder in ("state/lists/partial", "cache/archives/partial", "etc"):
        (home / folder).mkdir(parents=True, exist_ok=True)
    (home / "etc/sources.list").write_text("\n".join(source_lines(guest, host_mirrors())) + "\n")
    (home / "etc/preferences").write_text(preferences(guest))
    options = [
        f"Dir::State={home}/state",
        "Dir::State::status=/dev/null",
        f"Dir::Cache={home}/cache",
        f"Dir::Etc::sourcelist={home}/etc/sources.list",
        "Dir::Etc::sourceparts=/dev/null",
        f"Dir::Etc::preferences={home}/etc/preferences",
        "Dir::Etc::preferencesparts=/dev/null",
        "APT::Architecture=amd64",
        "APT::Architectures=amd64",
        "APT::Sandbox::User=root",
        "Acquire::Languages=none",
    ]
    arguments = [part for option in options for part in ("-o", option)]
    with step(f"guest {guest.key}: asking apt for the newest kernel"):
        run(["apt-get", *arguments, "update", "--error-on=any"], log=_fresh(home / "update.log"))
        policy = run(["apt-cache", *arguments, "policy", KERNEL_META])
    found = re.search(r"Candidate: (\S+)", policy)
    if not found or found[1] == "(none)":
        raise HarnessError(f"guest {guest.key}: the mirror offers no {KERNEL_META}:\n{policy}")
    return found[1]


def _fresh(log: Path) -> Path:
    log.unlink(missing_ok=True)
    return log
