# SPDX-License-Identifier: Apache-2.0
"""What one guest has said of its tests, as pytest reports for the host. Pure: events in, reports out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from tests.vm.console import Fault, describe

Report = Mapping[str, Any]
ALLOW_SKIPS = "SPOTGPU_ALLOW_SKIPS"


@dataclass
class Outcomes:
    """The state of one guest's test run.

    `reports` are finished and unfinished tests' serialised reports by guest node id; `finished` maps a test
    to the mark on the console after it; `running` is the test that began and has not finished; `allow` are
    console lines announced so far.
    """

    reports: dict[str, list[Report]] = field(default_factory=dict)
    finished: dict[str, str] = field(default_factory=dict)
    running: str | None = None
    allow: list[str] = field(default_factory=list)

    def take(self, event: Mapping[str, Any]) -> None:
        """Apply one event of the guest. Raises ValueError for an event not known here."""
        match event:
            case {"start": str(nodeid)}:
                self.running = nodeid
                self.reports.setdefault(nodeid, [])
            case {"report": {"nodeid": str(nodeid)} as report}:
                self.reports.setdefault(nodeid, []).append(report)
            case {"finish": str(nodeid), "mark": str(mark)}:
                self.finished[nodeid] = mark
                self.running = None
            case {"allow": str(pattern)}:
                self.allow.append(pattern)
            case _:
                raise ValueError(f"a guest's event of no known kind: {event}")


def strict_skip(report: pytest.TestReport, environment: Mapping[str, str]) -> pytest.TestReport:
    """Turn a skip into a failure that names its reason; an xfail stays, and so does an allowed skip."""
    if report.outcome != "skipped" or hasattr(report, "wasxfail") or environment.get(ALLOW_SKIPS) == "1":
        return report
    # (path, line, reason) as pytest makes it; a list after its journey as JSON.
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple | list) else str(report.longrepr)
    report.outcome = "failed"
    report.longrepr = f"skipped in the guest: {reason} ({ALLOW_SKIPS}=1 allows it)"
    return report


def failure(
    item_id: str,
    location: tuple[str, int | None, str],
    text: str,
    when: Literal["call", "teardown"],
    *,
    lost: bool = False,
) -> pytest.TestReport:
    """Return a report that fails a test for a reason outside of it; `lost`: the test never ended."""
    return pytest.TestReport(item_id, location, {}, "failed", text, when, lost=lost)


def lost_text(nodeid: str, outcomes: Outcomes, reason: str, first: bool) -> str:
    """Say why `nodeid` has no outcome: its guest was lost under it, or before it began.

    The whole reason, which may hold a console, is given under the test that ran, else under the `first` to
    ask.
    """
    if outcomes.running == nodeid:
        return f"lost: the guest was lost while this test ran\n{reason}"
    culprit = f"the guest was lost while {outcomes.running} ran: " if outcomes.running else ""
    whole = first and not outcomes.running
    return f"lost: not run; {culprit}{reason if whole else reason.splitlines()[0]}"


def fault_text(faults: Sequence[Fault]) -> str:
    """Say that the kernel complained."""
    return f"the guest's kernel complained ({len(faults)} on the console):\n{describe(faults)}"
