# SPDX-License-Identifier: Apache-2.0
"""The agent dies, or is stopped, while it matters: another goes on, or the kernel does it alone."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator

import pytest

from spotgpu_khook.abi import Outcome
from spotgpu_khook.client import Khook
from spotgpu_khook.model import CgroupKey, Watch
from tests.guestlib.agent import STEP_LIMIT_S, Rig, Touch, node
from tests.guestlib.containerd import wait_until

DEADLINE_S = 12.0


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with node("restart", gpus=3) as rig:
        rig.add_owner("held", 0)
        rig.add_owner("lent", 1)
        rig.add_owner("dead", 2, deadline=f"{DEADLINE_S}s")
        rig.start_agent()
        yield rig


def hold(rig: Rig, owner: str) -> Touch:
    """A return that can't end: the spot process hangs in the driver."""
    rig.lend(owner)
    rig.sim.set_stuck(rig.owners[owner].gpu, on=True)
    touch = rig.touch(owner)
    rig.wait_state(owner, "returning")
    return touch


def trace_id(rig: Rig, owner: str) -> str:
    """Of the hand-back that the running agent has begun."""
    assert rig.agent is not None
    wait_until(lambda: bool(rig.agent.said(owner=owner, code="owner-back")), STEP_LIMIT_S, "it is logged")  # type: ignore[union-attr]
    return str(rig.agent.said(owner=owner, code="owner-back")[-1]["trace_id"])


def finished_by_the_next(rig: Rig, end: signal.Signals, status: int) -> None:
    """End the agent in the middle of a hand-back; the next one must finish it, in the same trace."""
    violations, traced = rig.sim.guard().violations, len(rig.traced("held"))
    before = rig.executed("held")
    touch = hold(rig, "held")
    begun = trace_id(rig, "held")
    assert rig.agent is not None
    assert rig.agent.stop(end) == status
    agent = rig.start_agent()
    assert touch.pending(), "nobody let the owner through meanwhile"
    assert rig.state("held") == "returning"
    assert agent.said(msg="attached")[0]["adopted"] == 1
    rig.sim.set_stuck(0, on=False)
    assert touch.result()["errors"] == 0
    assert rig.executed("held") == before + 1
    trace = rig.trace("held", traced)
    assert trace.trace_id == begun
    assert trace.root.attributes["spotgpu.trace.resumed"] is True
    assert trace.root.attributes["spotgpu.outcome"] == "released"
    assert rig.sim.guard().violations == violations, rig.sim.guard().last
    rig.forget_spots("held")
    rig.wait_state("held", "lendable")


def test_an_agent_killed_while_holding_is_replaced_and_its_hand_back_finished(rig: Rig) -> None:
    spot = rig.lend("lent")
    finished_by_the_next(rig, signal.SIGKILL, -9)
    assert rig.state("lent") == "lent", "a running lease survives the agent"
    assert spot.populated()


def test_an_agent_stopped_in_the_middle_of_a_hand_back_leaves_it_to_the_next(rig: Rig) -> None:
    finished_by_the_next(rig, signal.SIGTERM, 0)


def test_the_surviving_lease_is_handed_back_as_any_other(rig: Rig) -> None:
    violations = rig.sim.guard().violations
    assert rig.touch("lent").result()["errors"] == 0
    assert rig.sim.guard().violations == violations
    rig.forget_spots("lent")
    rig.wait_state("lent", "lendable")


def test_a_torn_state_file_starts_closed_and_no_agent_means_the_kernel_hands_back_alone(rig: Rig) -> None:
    assert rig.agent is not None
    spot = rig.lend("lent")
    assert rig.agent.stop() == 0
    state = rig.folder / "state" / "leases.json"
    state.write_bytes(state.read_bytes()[:-30])
    agent = rig.start_agent(policy={"orphan": "1s"})
    assert any("starting closed" in line["msg"] for line in agent.lines())
    assert state.with_suffix(".json.torn").exists()
    rig.wait_state("lent", "lent")
    assert agent.said(owner="lent", code="adopted")[0]["msg"].endswith("untrusted")
    assert spot.populated(), "the owner was counted again and found idle, so the lease was made anew"

    # Two owners are back; for one of them a spot process can't die. Then the agent dies and stays dead.
    violations = rig.sim.guard().violations
    stuck = hold(rig, "dead")
    rig.sim.set_knob("teardown_ms_per_ctx", 3000)
    touch = rig.touch("lent")
    rig.wait_state("lent", "returning")
    assert agent.stop(signal.SIGKILL) == -9
    assert touch.result()["errors"] == 0
    assert rig.sim.guard().violations == violations, rig.sim.guard().last
    assert last_return(rig, "lent").outcome is Outcome.ORPHAN
    assert last_return(rig, "dead").outcome is Outcome.UNSPEC, "its deadline has not passed yet"
    wait_until(lambda: bool(last_return(rig, "dead").outcome), STEP_LIMIT_S, "the deadline passes", 0.2)
    watch = last_return(rig, "dead")
    assert watch.outcome is Outcome.DEADLINE
    rig.sim.set_stuck(2, on=False)  # it would keep the owner's process from ending too
    assert stuck.result()["errors"] == 0
    assert (watch.release_ns - watch.first_ns) / 1e9 == pytest.approx(DEADLINE_S, abs=1.0)


def last_return(rig: Rig, owner: str) -> Watch:
    """The owner's watch as khook tells it."""

    async def ask() -> list[Watch]:
        async with await Khook.connect() as khook:
            return await khook.watches()

    key = CgroupKey(rig.owners[owner].container.cgroup_id)
    return next(watch for watch in asyncio.run(ask()) if watch.key == key)
