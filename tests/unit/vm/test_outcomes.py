# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.vm.console import Fault
from tests.vm.outcomes import Outcomes, failure, fault_text, lost_text, strict_skip
from tests.vm.pytest_host import TEST_LIMIT_S, Console, Watchdog, chosen_kernels, chosen_variants

LOCATION = ("tests/guest/test_x.py", 3, "test_x")


def told(*events: dict[str, Any]) -> Outcomes:
    outcomes = Outcomes()
    for event in events:
        outcomes.take(event)
    return outcomes


def report(outcome: Any, longrepr: Any) -> pytest.TestReport:
    return pytest.TestReport("x::y", LOCATION, {}, outcome, longrepr, "call")


def test_reports_are_kept_by_test() -> None:
    outcomes = told(
        {"start": "x::a"},
        {"report": {"nodeid": "x::a", "when": "setup"}},
        {"report": {"nodeid": "x::a", "when": "call"}},
        {"finish": "x::a", "mark": "end of 1"},
        {"start": "x::b"},
    )
    assert [each["when"] for each in outcomes.reports["x::a"]] == ["setup", "call"]
    assert outcomes.finished == {"x::a": "end of 1"}
    assert outcomes.running == "x::b"


def test_announced_console_lines_are_kept() -> None:
    assert told({"allow": "WARNING: mine"}).allow == ["WARNING: mine"]


def test_an_unknown_event_is_refused() -> None:
    with pytest.raises(ValueError, match="no known kind"):
        told({"finished": "x::a"})


@pytest.mark.parametrize("kind", [tuple, list])
def test_a_skip_fails_and_names_its_reason(kind: Any) -> None:
    strict = strict_skip(report("skipped", kind(["file.py", 3, "Skipped: no sparse"])), {})
    assert strict.failed
    assert str(strict.longrepr).startswith("skipped in the guest: Skipped: no sparse")


def test_a_skip_may_be_allowed() -> None:
    assert strict_skip(report("skipped", ("f", 3, "why")), {"SPOTGPU_ALLOW_SKIPS": "1"}).skipped


def test_an_expected_failure_is_no_skip() -> None:
    expected = report("skipped", "xfail")
    expected.wasxfail = "known"
    assert strict_skip(expected, {}).skipped


@pytest.mark.parametrize("outcome", ["passed", "failed"])
def test_other_outcomes_stay(outcome: str) -> None:
    assert strict_skip(report(outcome, None), {}).outcome == outcome


REASON = "guest lost: kernel panic\nconsole line 1: BUG:"


def test_the_running_test_gets_the_whole_reason() -> None:
    text = lost_text("x::a", told({"start": "x::a"}), REASON, first=False)
    assert text.startswith("lost: ")
    assert "BUG:" in text


def test_a_test_that_did_not_run_names_the_one_that_did() -> None:
    text = lost_text("x::b", told({"start": "x::a"}), REASON, first=True)
    assert text == "lost: not run; the guest was lost while x::a ran: guest lost: kernel panic"


def test_if_no_test_ran_the_first_gets_the_whole_reason() -> None:
    assert "BUG:" in lost_text("x::a", told(), REASON, first=True)
    assert "BUG:" not in lost_text("x::a", told(), REASON, first=False)


def test_a_failure_from_outside_is_marked_lost_if_it_is() -> None:
    assert failure("x", LOCATION, "text", "teardown").failed
    assert getattr(failure("x", LOCATION, "text", "call", lost=True), "lost", False)


def test_faults_are_shown_with_their_context() -> None:
    assert "console line 7: BUG: x" in fault_text([Fault(7, "BUG: x", "quiet\nBUG: x")])


@pytest.fixture
def console_log(tmp_path: Path) -> Path:
    return tmp_path / "console.log"


def headlines(faults: list[Fault]) -> list[str]:
    return [fault.headline for fault in faults]


def test_a_console_reports_each_fault_once(console_log: Path) -> None:
    console = Console(console_log)
    assert console.new_faults([], None) == []
    console_log.write_text("[1] BUG: one\n[2] end of 1,\n[3] BUG: two\n[4] end of 2,\n")
    assert headlines(console.new_faults([], "end of 1,")) == ["[1] BUG: one"]
    assert headlines(console.new_faults([], "end of 2,")) == ["[3] BUG: two"]
    assert console.new_faults([], None) == []


def test_announced_lines_are_no_faults(console_log: Path) -> None:
    console_log.write_text("[1] BUG: one\n[2] BUG: two\n")
    assert headlines(Console(console_log).new_faults(["one"], None)) == ["[2] BUG: two"]


def test_a_console_that_lags_is_waited_for(console_log: Path) -> None:
    console_log.write_text("[1] fine\n")
    late = threading.Timer(0.3, console_log.write_text, ["[1] fine\n[2] BUG: late\n[3] end of 1,\n"])
    late.start()
    assert headlines(Console(console_log).new_faults([], "end of 1,")) == ["[2] BUG: late"]


def test_the_watchdog_ends_a_guest_whose_test_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    watchdog = Watchdog({"x::soak"})
    monkeypatch.setattr("time.monotonic", lambda: TEST_LIMIT_S + 1.0)
    watchdog.heard({"start": "x::a"}, now_s=0.0)
    assert "x::a" in str(watchdog.verdict())
    watchdog.heard({"finish": "x::a", "mark": ""}, now_s=1.0)
    assert watchdog.verdict() is None
    watchdog.heard({"start": "x::soak"}, now_s=0.0)
    assert watchdog.verdict() is None
    watchdog.give_up("interrupted")
    assert watchdog.verdict() == "interrupted"


def test_kernels_come_from_options_then_environment_then_the_table() -> None:
    assert chosen_kernels([], {}) == ["6.1", "6.12", "7.x"]
    assert chosen_kernels([], {"SPOTGPU_KERNELS": "7.x,6.1"}) == ["6.1", "7.x"]
    assert chosen_kernels(["6.12"], {"SPOTGPU_KERNELS": "7.x"}) == ["6.12"]
    with pytest.raises(pytest.UsageError, match=r"5\.4"):
        chosen_kernels(["5.4"], {})


def test_builds_are_all_some_or_none() -> None:
    assert chosen_variants([]) == ["kmod", "kmod-selftest", "sim"]
    assert chosen_variants(["sim"]) == ["sim"]
    assert chosen_variants(["none"]) == []
    with pytest.raises(pytest.UsageError, match="nonsense"):
        chosen_variants(["nonsense"])
