# SPDX-License-Identifier: Apache-2.0
"""The pytest plugin on the host: a guest test becomes one item a kernel, and its reports come from the guest.

One guest a kernel runs all its selected tests, in the host's order; a test marked `own_guest` has a guest to
itself. As many guests run at once as there are slots (slots.py); none runs beside the host's own tests, which
change this process's environment. The kernel's console is read as each test finishes, so that a WARNING fails
the test under which it appeared.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import pytest

from tests.vm import host
from tests.vm.build import VARIANTS
from tests.vm.console import Fault, scan
from tests.vm.guests import GUESTS, find_guest
from tests.vm.outcomes import Outcomes, Report, failure, fault_text, lost_text, strict_skip
from tests.vm.run import LostGuest, boot, run_dir
from tests.vm.slots import slot_count

GUEST_TESTS = Path(__file__).resolve().parents[1] / "guest"
LIMIT_S = 2400.0
SOAK_LIMIT_S = 14400.0
# A test that hangs must not eat the limit of all tests after it; soak tests may take as long as they like.
TEST_LIMIT_S = 600.0
# A serial line under emulation, on a busy host, with a trace or two on it.
CONSOLE_LAG_S = 10.0
STOP_LIMIT_S = 15.0
_RUN = pytest.StashKey["GuestRun"]()
_RUNS = pytest.StashKey["GuestRuns"]()


class GuestItem(pytest.Item):
    """One test on one kernel. `guest_id` is the node id of the test inside the guest."""

    def __init__(self, *, kernel: str, original: pytest.Item, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.kernel = kernel
        self.guest_id = original.nodeid
        self.own_markers = list(original.iter_markers())
        self.keywords.update({marker.name: marker for marker in self.own_markers})
        self.keywords.update({kernel: True, original.name: True})
        self._reportinfo = original.reportinfo()

    @property
    def alone(self) -> bool:
        """Whether the test has a guest to itself."""
        return self.get_closest_marker("own_guest") is not None

    @property
    def soak(self) -> bool:
        """Whether the test may take long."""
        return self.get_closest_marker("soak") is not None

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        path, line, _ = self._reportinfo
        return path, line, self.name

    def runtest(self) -> None:
        raise AssertionError("reports of a guest test come from its guest")


class GuestRun:
    """One guest and the tests it runs."""

    def __init__(self, kernel: str, items: list[GuestItem], limit_s: float, variants: Sequence[str]) -> None:
        self._guest = find_guest(kernel)
        self._items = items
        self._limit_s = limit_s
        self._variants = variants
        self._out_dir = run_dir(kernel)
        self._events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._outcomes = Outcomes()
        self._watchdog = Watchdog({item.guest_id for item in items if item.soak})
        self._ended = False
        self._lost_told = False
        self._lost: str | None = None
        self._console = Console(self._out_dir / "console.log")

    def reports(self, item: GuestItem, config: pytest.Config) -> Iterator[pytest.TestReport]:
        """Give the reports of `item` as the guest makes them; a failure if it makes none."""
        given = 0
        while True:
            known = self._outcomes.reports.get(item.guest_id, [])
            for data in known[given:]:
                yield revive(data, item, config)
            given = len(known)
            if item.guest_id in self._outcomes.finished or self._ended:
                break
            self._take_event()
        while item is self._items[-1] and not self._ended:
            self._take_event()
        mark = None if self._ended else self._outcomes.finished.get(item.guest_id)
        faults = self._console.new_faults(self._outcomes.allow, mark)
        if faults:
            yield failure(item.nodeid, item.location, fault_text(faults), "teardown")
        if item.guest_id not in self._outcomes.finished:
            reason = self._lost or f"the guest did not run it; see {self._out_dir}/job.log"
            text = lost_text(item.guest_id, self._outcomes, reason, first=not self._lost_told)
            self._lost_told = True
            yield failure(item.nodeid, item.location, text, "call", lost=True)

    def stop(self, reason: str) -> None:
        """End the guest at the next chance."""
        self._watchdog.give_up(reason)

    def _take_event(self) -> None:
        event = self._events.get()
        if event is None:
            self._ended = True
        else:
            self._outcomes.take(event)

    def live(self) -> None:
        """Boot and stay until the guest ends (in a thread of its own)."""
        command = ["python3", "-m", "pytest", "-v", "-p", "no:cacheprovider", "-p", "tests.vm.pytest_guest"]
        command += [
            "--soak",
            "--junitxml=/results/junit.xml",
            f"-ofaulthandler_timeout={TEST_LIMIT_S / 2:.0f}",
        ]
        try:
            boot(
                self._guest,
                [*command, *(item.guest_id for item in self._items)],
                # Looking for plugins reads the metadata of every distribution: seconds, under emulation.
                env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
                timeout_s=self._limit_s,
                out_dir=self._out_dir,
                stream=False,
                variants=self._variants,
                on_event=self._on_event,
                stop=self._watchdog.verdict,
            )
        except LostGuest as error:
            # Faults are reported under the tests that they appeared in, and not again here.
            lines = str(error).splitlines()
            self._lost = "\n".join(lines[:2] if error.faults else lines)
        except host.HarnessError as error:
            self._lost = f"the harness cannot run a guest: {error}"
        finally:
            self._events.put(None)

    def _on_event(self, line: str) -> None:
        event = json.loads(line)
        self._watchdog.heard(event, time.monotonic())
        self._events.put(event)


class GuestRuns:
    """All guests of a session, begun in order by a few threads."""

    def __init__(self, runs: Iterable[GuestRun]) -> None:
        self._runs = list(runs)
        self._waiting = deque(self._runs)
        self._threads: list[threading.Thread] = []

    def begin(self, count: int) -> None:
        """See to it that so many guests run at once, as long as there are some."""
        for number in range(len(self._threads), min(count, len(self._runs))):
            thread = threading.Thread(target=self._live, name=f"guests-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self, reason: str) -> None:
        """End the guests that live, and wait for their end.

        An image or a module that is being built is not waited for long: its commands die with this process.
        """
        self._waiting.clear()
        for run in self._runs:
            run.stop(reason)
        for thread in self._threads:
            thread.join(timeout=STOP_LIMIT_S)

    def _live(self) -> None:
        while True:
            try:
                run = self._waiting.popleft()
            except IndexError:
                return
            run.live()


class Watchdog:
    """Says when a guest must be ended: a test took too long, the session is over. Two threads use it."""

    def __init__(self, patient: Set[str]) -> None:
        self._patient = patient
        self._running: tuple[str, float] | None = None
        self._reason: str | None = None

    def heard(self, event: Mapping[str, Any], now_s: float) -> None:
        """Note that a test began or finished."""
        if "start" in event:
            self._running = (event["start"], now_s)
        elif "finish" in event:
            self._running = None

    def give_up(self, reason: str) -> None:
        """End the guest at the next chance."""
        self._reason = self._reason or reason

    def verdict(self) -> str | None:
        """Return why the guest must end now, or None."""
        running = self._running
        if running and running[0] not in self._patient and time.monotonic() - running[1] > TEST_LIMIT_S:
            return f"{running[0]} ran for more than {TEST_LIMIT_S:.0f} s"
        return self._reason


class Console:
    """The kernel console of a live guest: which faults appeared since the last question."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = 0

    def new_faults(self, allow: Sequence[str], mark: str | None) -> list[Fault]:
        """Return the faults up to the line with `mark` that were not returned before and are not announced.

        The console may be some lines behind the guest's events: the mark is waited for, for a while. Without
        one, all of the console is read.
        """
        text = self._read()
        deadline = time.monotonic() + CONSOLE_LAG_S
        while mark and mark not in text and time.monotonic() < deadline:
            time.sleep(0.02)
            text = self._read()
        if mark and mark in text:
            text = text[: text.index(mark)]
        faults = [fault for fault in scan(text, allow) if fault.line_number > self._seen]
        self._seen = max(self._seen, text.count("\n"))
        return faults

    def _read(self) -> str:
        return self._path.read_text(errors="replace") if self._path.exists() else ""


def revive(data: Report, item: GuestItem, config: pytest.Config) -> pytest.TestReport:
    """Make the guest's report the host item's own."""
    report = config.hook.pytest_report_from_serializable(config=config, data=data)
    assert isinstance(report, pytest.TestReport)
    report.nodeid, report.location = item.nodeid, item.location
    return strict_skip(report, os.environ)


def chosen_kernels(options: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return the kernels to test, in the table's order. Raises pytest.UsageError for an unknown one."""
    asked = list(options) or environment.get("SPOTGPU_KERNELS", "").replace(",", " ").split()
    unknown = [key for key in asked if key not in GUESTS]
    if unknown:
        raise pytest.UsageError(f"no guest {', '.join(unknown)}; there are {', '.join(GUESTS)}")
    return [key for key in GUESTS if not asked or key in asked]


def chosen_variants(options: Sequence[str]) -> list[str]:
    """Return the builds to take along; `none` is none. Raises pytest.UsageError for one that is not there."""
    unknown = [name for name in options if name not in (*VARIANTS, "none")]
    if unknown:
        raise pytest.UsageError(f"no build {', '.join(unknown)}; there are {', '.join(VARIANTS)}, and none")
    return [name for name in VARIANTS if not options or name in options]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Replace each guest test by one item a kernel, so that -k and -m see them; guests come last."""
    tests = [item for item in items if item.path.is_relative_to(GUEST_TESTS)]
    if not tests:
        return
    kernels = chosen_kernels(config.getoption("--kernel"), os.environ)
    expanded = [
        GuestItem.from_parent(item.parent, name=f"{item.name}[{kernel}]", kernel=kernel, original=item)
        for kernel in kernels
        for item in tests
        if item.parent
    ]
    expanded.sort(key=lambda item: (kernels.index(item.kernel), item.alone))
    items[:] = [*(item for item in items if item not in tests), *expanded]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Divide the items that are left after all selection among guests."""
    groups: dict[tuple[str, str | None], list[GuestItem]] = {}
    for item in session.items:
        if isinstance(item, GuestItem):
            groups.setdefault((item.kernel, item.guest_id if item.alone else None), []).append(item)
    runs = []
    variants = chosen_variants(session.config.getoption("--guest-build"))
    for (kernel, _), group in groups.items():
        limit_s = session.config.getoption("--guest-limit") or (
            SOAK_LIMIT_S if any(item.soak for item in group) else LIMIT_S
        )
        runs.append(GuestRun(kernel, group, limit_s, variants))
        for item in group:
            item.stash[_RUN] = runs[-1]
    session.stash[_RUNS] = GuestRuns(runs)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Report a guest item from its guest; pytest's own protocol does all others."""
    if not isinstance(item, GuestItem):
        return None
    item.session.stash[_RUNS].begin(slot_count())
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in item.stash[_RUN].reports(item, item.config):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """Call a lost test lost; it counts as failed."""
    return ("failed", "L", "LOST") if getattr(report, "lost", False) else None


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let the harness's progress lines through to the terminal, past pytest's capture."""
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal:
        host.set_sink(lambda line: (terminal.ensure_newline(), terminal.write_line(line)))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End the guests that still live: after -x, a failed session or an interrupt."""
    if runs := session.stash.get(_RUNS, None):
        runs.stop("the test session ended")
    host.set_sink(None)
