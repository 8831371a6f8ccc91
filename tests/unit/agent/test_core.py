# SPDX-License-Identifier: Apache-2.0
"""The core, against a modelled node: what it does in each case, and what it never does whatever happens."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotgpu.names import DeviceState, EvictionMethod, EvictionReason, Outcome, Trigger, Witness
from spotgpu_agent import commands as c
from spotgpu_agent import events as e
from spotgpu_agent.core import busy, step
from spotgpu_agent.model import (
    Arming,
    AtDeadline,
    LeaseState,
    OnHold,
    OwnerState,
    ProcessMemory,
    ReleaseOn,
    Spot,
    State,
)
from tests.unit.agent.worlds import (
    CALLER,
    DEVICE,
    GIB,
    MS,
    POLICY,
    S,
    SpotLife,
    World,
    holder,
    lent,
    owner_container,
    owner_state,
    spot_container,
    with_policy,
)


def a_world(spots: int = 1, **fields: object) -> World:
    lives = [SpotLife(spot_container(number)) for number in range(1, spots + 1)]
    return World(spots=lives, **fields)  # type: ignore[arg-type]


# The whole act ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spots", [0, 1, 8])
def test_a_held_owner_is_released_once_everything_is_proven(spots: int) -> None:
    world = lent(a_world(spots))
    world.owner_calls()
    world.run(S)
    assert [(r.by, r.free) for r in world.releases] == [(Outcome.RELEASED, True)]
    (report,) = world.finished
    assert report.outcome is Outcome.RELEASED
    assert not report.missing
    assert report.error_type is None
    assert world.availability() is DeviceState.ACTIVE
    assert sorted(world.tidied) == [f"spot{n}" for n in range(1, spots + 1)]
    assert not world.leases
    assert not world.fenced
    assert not world.owner.spots


def test_a_spot_that_the_kernel_killed_before_the_hold_was_heard_of_is_part_of_the_hand_back() -> None:
    world = lent(a_world(khook_lag_ns=53 * MS))  # the cgroup is told empty after 52
    world.owner_calls()
    world.run(S)
    assert [(r.by, r.free) for r in world.releases] == [(Outcome.RELEASED, True)]
    (report,) = world.finished
    assert report.spots == ("spot1",)
    times = [report.first_ns, report.kill_ns, report.killed_ns, report.empty_ns, report.release_ns]
    assert None not in times
    assert times == sorted(time for time in times if time is not None)
    assert [evicted.method for evicted in world.evictions] == [EvictionMethod.KHOOK]
    assert world.tidied == ["spot1"]
    assert not world.owner.spots


def test_a_spot_that_ended_by_itself_before_the_hold_is_not_part_of_the_hand_back() -> None:
    world = lent(a_world())
    world.dead(world.spots[0])
    world.run(10 * MS)
    world.owner_calls()
    world.run(S)
    (report,) = world.finished
    assert report.outcome is Outcome.RELEASED
    assert report.spots == ()
    assert not world.evictions


def test_the_device_is_lendable_again_after_max_inactive_and_not_before() -> None:
    world = lent(a_world())
    world.owner_calls()
    world.run(S)
    world.owner_done()
    world.run(POLICY.max_inactive_ns - S)
    assert world.availability() is DeviceState.ACTIVE
    world.run(3 * S)
    assert world.availability() is DeviceState.LENDABLE


def test_ten_rounds_leave_nothing_behind() -> None:
    world = lent(a_world())
    for number in range(2, 12):
        world.owner_calls()
        world.run(S)
        world.owner_done()
        world.run(8 * S)
        world.spots.append(SpotLife(spot_container(number)))
        world.give(world.snapshot())
        world.run(S)
        assert world.availability() is DeviceState.LENT
    assert [r.free for r in world.releases] == [True] * 10
    assert len(world.owner.spots) == 1


def test_notify_leaves_the_kill_to_the_agent_which_fences_too() -> None:
    world = lent(a_world(2, policy=with_policy(on_hold=OnHold.NOTIFY)))
    world.owner_calls()
    world.run(S)
    assert [r.free for r in world.releases] == [True]
    assert {eviction.method for eviction in world.evictions} == {EvictionMethod.CGROUP_KILL}
    assert world.finished[0].killed_by_agent


@pytest.mark.parametrize(("obeys_ns", "method"), [(100 * MS, "grace"), (None, "cgroup.kill")])
def test_notify_with_grace_terminates_first_and_kills_after_it(obeys_ns: int | None, method: str) -> None:
    world = a_world(policy=with_policy(on_hold=OnHold.NOTIFY, evict_grace_ns=S))
    world.spots[0].obeys_term_ns = obeys_ns
    lent(world).owner_calls()
    world.run(3 * S)
    assert [r.free for r in world.releases] == [True]
    assert [eviction.method for eviction in world.evictions] == [method]


def test_the_agent_kills_too_when_the_kernels_kill_does_not_work() -> None:
    world = lent(a_world(kernel_kills=False))
    world.owner_calls()
    world.run(S)
    assert [(r.by, r.free) for r in world.releases] == [(Outcome.RELEASED, True)]


def test_release_on_empty_is_the_kernels_and_a_clean_device_is_reported_so() -> None:
    world = lent(a_world(policy=with_policy(release_on=ReleaseOn.EMPTY)))
    world.owner_calls()
    world.run(S)
    assert [r.by for r in world.releases] == [Outcome.EMPTY]
    assert [report.outcome for report in world.finished] == [Outcome.EMPTY]
    assert not world.owner.quarantined


def test_release_on_empty_with_memory_that_never_returns_is_dirty() -> None:
    world = lent(a_world(policy=with_policy(release_on=ReleaseOn.EMPTY), memory_ns=None))
    world.owner_calls()
    world.run(12 * S)
    (report,) = world.finished
    assert report.outcome is Outcome.DIRTY
    assert report.missing == (Witness.MEMORY,)
    assert report.end_ns == world.releases[0].at_ns, "the wait ended with the release, not the verdict"
    assert [device for device, _ in world.owner.quarantined] == [DEVICE]


def test_a_spot_process_that_cannot_die_ends_at_the_deadline_named_and_quarantined() -> None:
    world = a_world(2)
    world.spots[1].dies_ns = None
    lent(world).owner_calls()
    world.run(12 * S)
    (report,) = world.finished
    assert report.outcome is Outcome.DEADLINE
    assert report.error_type == "cgroup_unproven"
    assert report.missing[0] is Witness.CGROUP
    assert Witness.CGROUP in report.late
    assert "spot2 still has processes" in world.owner.quarantined[0][1]
    world.owner_done()
    world.run(60 * S)
    assert world.availability() is DeviceState.ACTIVE, "never lent again while it is stuck"
    assert world.tidied == ["spot1"]


def test_the_quarantine_ends_with_the_proof_and_only_then() -> None:
    world = a_world()
    world.spots[0].dies_ns = None
    lent(world).owner_calls()
    world.run(12 * S)
    assert world.owner.quarantined
    world.owner_done()
    world.dead(world.spots[0])
    world.run(3 * S)
    assert not world.owner.quarantined
    world.run(8 * S)
    assert world.availability() is DeviceState.LENDABLE


def test_at_deadline_eio_keeps_the_owner_out_until_the_devices_are_free() -> None:
    world = a_world(policy=with_policy(at_deadline=AtDeadline.EIO))
    world.spots[0].dies_ns = None
    lent(world).owner_calls()
    world.run(12 * S)
    assert world.owner.blocked
    assert world.watch_state == "blocked"
    world.dead(world.spots[0])
    world.run(3 * S)
    assert not world.owner.blocked
    assert world.watch_state == "open"


def test_memory_that_never_returns_names_memory() -> None:
    world = lent(a_world(memory_ns=None))
    world.owner_calls()
    world.run(12 * S)
    (report,) = world.finished
    assert (report.outcome, report.missing) == (Outcome.DEADLINE, (Witness.MEMORY,))
    assert "4032 MiB over" in world.owner.quarantined[0][1]


def test_an_unlisted_holder_is_named() -> None:
    world = lent(a_world())
    world.stranger_until_ns = world.now + 60 * S
    world.owner_calls()
    world.run(12 * S)
    (report,) = world.finished
    assert report.missing == (Witness.HANDLES,)
    assert [str(found) for found in report.holders] == ["proc(666)"]
    assert "proc(666) in /system.slice/other" in world.owner.quarantined[0][1]


def test_a_late_holder_delays_the_release_and_is_late() -> None:
    world = lent(a_world())
    world.stranger_until_ns = world.now + S
    world.owner_calls()
    world.run(3 * S)
    assert [(r.by, r.free) for r in world.releases] == [(Outcome.RELEASED, True)]
    assert world.finished[0].late == (Witness.HANDLES,)


def test_answers_that_never_come_leave_it_to_the_deadline() -> None:
    world = lent(a_world(memory_mute=10_000))
    world.owner_calls()
    world.run(12 * S)
    (report,) = world.finished
    assert (report.outcome, report.missing) == (Outcome.DEADLINE, (Witness.MEMORY,))
    assert "no answer" in world.owner.quarantined[0][1]


@pytest.mark.parametrize("lost", [{"Held"}, {"LeaseEmpty"}, {"ReturnEnded"}, {"LeaseEmpty", "ReturnEnded"}])
def test_lost_events_never_leave_the_agent_behind(lost: set[str]) -> None:
    world = lent(a_world(lost=frozenset(lost)))
    world.owner_calls()
    world.run(15 * S)
    assert len(world.releases) == 1
    assert world.owner.handback is None
    if "Held" not in lost:
        assert world.releases[0].by is Outcome.RELEASED


def test_the_owner_container_deleted_while_held() -> None:
    world = a_world()
    world.spots[0].dies_ns = 5 * S
    lent(world).owner_calls()
    world.run(100 * MS)
    world.give(e.ContainersSeen("dev", None, (world.spots[0].container,)))
    assert [report.outcome for report in world.finished] == [Outcome.ABANDONED]
    assert world.watch_state == "none"
    world.run(8 * S)
    assert world.owner.drain is None
    assert world.tidied == ["spot1"]


def test_a_new_owner_container_gets_a_new_watch() -> None:
    world = lent(a_world())
    world.container = replace(world.container, cgroup=12)
    world.give(world.snapshot())
    assert world.watch_state == "none"
    world.run(S)
    assert [eviction.reason for eviction in world.evictions] == [EvictionReason.OWNER_STARTING]
    assert world.owner.container is not None
    assert world.owner.container.cgroup == 12


# Getting to lendable ----------------------------------------------------------------------------------------


def test_an_owner_with_open_handles_at_the_start_gets_its_device_back() -> None:
    world = a_world()
    world.owner_open = True
    world.give(world.snapshot())
    world.run(S)
    assert world.availability() is DeviceState.ACTIVE
    (report,) = world.finished
    assert (report.trigger, report.outcome) == (Trigger.HANDLES, Outcome.RELEASED)
    assert [eviction.reason for eviction in world.evictions] == [EvictionReason.OWNER_BACK]
    assert world.watch_state == "none"


def test_a_return_between_idle_sample_and_watch_is_seen_by_the_recount() -> None:
    world = a_world()
    world.give(world.snapshot())
    world.give(world.usage(e.Purpose.IDLE))
    assert world.owner.arming is Arming.DETECTING
    world.owner_open = True  # a context made before the watch was set makes no call that could be held
    world.run(500 * MS)
    assert world.availability() is DeviceState.ACTIVE
    assert world.watch_state == "none"
    assert [report.trigger for report in world.finished] == [Trigger.HANDLES]


def test_a_spot_container_on_an_active_device_is_evicted() -> None:
    world = a_world(0)
    world.owner_open = True
    world.give(world.snapshot())
    world.run(S)
    world.spots.append(SpotLife(spot_container()))
    world.give(world.snapshot())
    world.run(S)
    assert not world.living()
    assert [eviction.reason for eviction in world.evictions] == [EvictionReason.OWNER_BACK]


def test_a_spot_container_that_starts_while_the_owner_is_held_is_killed_too() -> None:
    world = lent(a_world())
    world.owner_calls()
    world.run(2 * MS)
    world.spots.append(SpotLife(spot_container(2), dies_ns=300 * MS))
    world.give(world.snapshot())
    world.run(2 * S)
    assert [(r.by, r.free) for r in world.releases] == [(Outcome.RELEASED, True)]
    assert sorted(world.tidied) == ["spot1", "spot2"]


def test_a_spot_container_that_ends_by_itself_leaves_the_device_lendable() -> None:
    world = lent(a_world())
    world.dead(world.spots[0])
    world.run(S)
    assert world.availability() is DeviceState.LENDABLE
    assert not world.leases
    assert not world.evictions


def test_a_refused_spot_container_is_evicted() -> None:
    world = a_world()
    world.spots[0].container = replace(world.spots[0].container, refused="shares the host's pid namespace")
    world.give(world.snapshot())
    world.run(S)
    assert [eviction.reason for eviction in world.evictions] == [EvictionReason.ADMIN]


def test_a_lease_the_kernel_refuses_ends_in_eviction() -> None:
    world = a_world(refuse_lease=True)
    world.give(world.snapshot())
    world.run(S)
    assert not world.living()
    assert [eviction.reason for eviction in world.evictions] == [EvictionReason.DEVICE_UNHEALTHY]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"holders": None}, "usage-unknown"),
        ({"holders": (holder("/default/dev/child", devices=()),)}, "owner-active"),
        ({"holders": (holder("/elsewhere"),)}, "stranger-active"),
        ({"memory": None}, "usage-unknown"),
        ({"utilisation": None}, "usage-unknown"),
        ({"utilisation": ()}, "device-working"),
        ({"utilisation": ((DEVICE, 1),)}, "device-working"),
    ],
)
def test_what_is_not_known_idle_is_busy(change: dict[str, object], code: str) -> None:
    idle = e.Usage("dev", e.Purpose.IDLE, 1, 2, (), ((DEVICE, 0),), ((DEVICE, 0),))
    owner = replace(owner_state(), container=owner_container())
    assert busy(owner, idle) is None
    why = busy(owner, replace(idle, **change))  # type: ignore[arg-type]
    assert why is not None
    assert why[0] == code


def test_allowed_holders_and_other_devices_do_not_count() -> None:
    owner = replace(owner_state(), container=owner_container())
    others = (holder("/system.slice/exporter/x"), holder("/elsewhere", devices=("GPU-9",)))
    idle = e.Usage("dev", e.Purpose.IDLE, 1, 2, others, ((DEVICE, 0),), ((DEVICE, 0),))
    assert busy(owner, idle) is None


def test_a_gap_between_samples_breaks_the_idle_time() -> None:
    world = a_world(0)
    world.owner_open = True
    world.give(world.snapshot())
    world.run(2 * S)
    world.owner_done()
    world.run(2 * S)
    world.queue.clear()
    world.now += 60 * S  # nobody looked
    world.give(world.usage(e.Purpose.IDLE))
    assert world.owner.arming is Arming.NO
    assert world.owner.idle_since_ns == world.now


# A person, and the kernel's word ----------------------------------------------------------------------------


def test_admin_evict_keeps_the_device_lendable() -> None:
    world = lent(a_world())
    world.give(e.Admin("dev", e.AdminAction.EVICT))
    world.run(S)
    assert not world.living()
    assert world.availability() is DeviceState.LENDABLE
    assert world.watch_state == "watching"
    assert not world.finished


def test_admin_return_gives_the_device_back_without_a_hold() -> None:
    world = lent(a_world())
    world.give(e.Admin("dev", e.AdminAction.RETURN))
    world.run(S)
    assert not world.living()
    assert world.availability() is DeviceState.ACTIVE
    assert [(report.trigger, report.outcome) for report in world.finished] == [
        (Trigger.ADMIN, Outcome.RELEASED)
    ]


def test_admin_return_while_held_lets_the_owner_through_unproven() -> None:
    world = a_world()
    world.spots[0].dies_ns = 5 * S
    lent(world).owner_calls()
    world.run(50 * MS)
    world.give(e.Admin("dev", e.AdminAction.RETURN))
    world.run(100 * MS)
    assert [report.outcome for report in world.finished] == [Outcome.UNDETECTED]
    assert world.owner.quarantined
    world.run(7 * S)
    assert not world.owner.quarantined


def test_admin_lend_skips_the_wait_but_not_the_conditions() -> None:
    world = a_world(0)
    world.owner_open = True
    world.give(world.snapshot())
    world.run(2 * S)
    world.give(e.Admin("dev", e.AdminAction.LEND))
    world.run(2 * S)
    assert world.availability() is DeviceState.ACTIVE
    world.owner_done()
    world.give(e.Admin("dev", e.AdminAction.LEND))
    world.run(2 * S)
    assert world.availability() is DeviceState.LENDABLE


def test_an_owner_that_returns_during_an_admin_eviction_is_answered() -> None:
    world = a_world()
    world.spots[0].dies_ns = S
    lent(world).give(e.Admin("dev", e.AdminAction.EVICT))
    world.run(100 * MS)
    world.owner_calls()
    world.run(3 * S)
    assert [(r.by, r.free) for r in world.releases] == [(Outcome.RELEASED, True)]
    assert [eviction.container for eviction in world.evictions] == ["spot1"]


def test_lost_gates_end_the_lease() -> None:
    world = lent(a_world())
    world.give(e.GatesLost("dev", "module nvidia went away"))
    world.run(S)
    assert not world.living()
    assert world.availability() is DeviceState.ACTIVE
    world.run(20 * S)
    assert world.availability() is DeviceState.ACTIVE, "no gates, no lending"
    world.give(e.GatesArmed("dev"))
    world.run(20 * S)
    assert world.availability() is DeviceState.LENDABLE


@pytest.mark.parametrize(
    ("kind", "availability"),
    [
        (e.Adopted.TRUSTED, DeviceState.LENT),
        (e.Adopted.UNTRUSTED, DeviceState.ACTIVE),
        (e.Adopted.OPEN, DeviceState.RETURNING),
        (e.Adopted.BLOCKED, DeviceState.RETURNING),
        (e.Adopted.HOLDING, DeviceState.ACTIVE),
    ],
)
def test_what_a_watch_of_the_agent_before_is_worth(kind: e.Adopted, availability: DeviceState) -> None:
    world = a_world()
    world.give(world.snapshot())
    decision = step(world.state, e.WatchAdopted("dev", 7, kind, (101, 55)), world.now)
    owner = decision.state.owners[0]
    assert owner.availability is availability
    assert c.Unlease("dev", 7, 55) in decision.commands, "leases of containers that are gone are taken back"
    assert (c.Undetect("dev", 7) in decision.commands) is (kind is e.Adopted.UNTRUSTED)


def test_an_adopted_hold_is_finished() -> None:
    world = a_world()
    world.give(world.snapshot())
    world.watch_state, world.watches, world.return_id = "holding", 1, 5
    world.first_ns = world.now - S
    world.leases = {101}
    world.give(e.WatchAdopted("dev", 1, e.Adopted.HOLDING, (101,)))
    world.give(e.Held("dev", 1, 5, world.first_ns, CALLER))
    world.run(2 * S)
    assert [(r.by, r.free) for r in world.releases] == [(Outcome.RELEASED, True)]
    assert world.finished[0].first_ns == world.first_ns


def test_an_orphaned_return_is_verified_afterwards() -> None:
    world = a_world(memory_ns=None)
    world.spots[0].dies_ns = S
    lent(world).owner_calls()
    world.run(100 * MS)
    world.give(e.Orphaned("dev", 1))
    world.run(S)
    world.let_go(Outcome.ORPHAN)
    world.run(12 * S)
    assert [report.outcome for report in world.finished] == [Outcome.DIRTY]


def test_an_unknown_owner_changes_nothing() -> None:
    state = State((owner_state(),))
    decision = step(state, e.GatesArmed("nobody"), 1)
    assert decision.state == state
    assert decision.reasons[0].code == "unknown-owner"


# Whatever happens -------------------------------------------------------------------------------------------

NS = st.integers(0, 50).map(lambda n: 1_000 * S + n * 20 * MS)
SPOTS = st.lists(st.sampled_from([spot_container(n) for n in (1, 2, 3)]), unique=True).map(tuple)
PATHS = ["/default/dev", "/default/dev/sub", "/default/spot1", "/system.slice/exporter", "/elsewhere"]
HOLDERS = st.none() | st.lists(st.builds(holder, st.sampled_from(PATHS)), max_size=2).map(tuple)
AMOUNTS = st.none() | st.just(()) | st.sampled_from([0, GIB, 60 << 20]).map(lambda used: ((DEVICE, used),))
PROCESSES = st.none() | st.just(()) | st.just((ProcessMemory(DEVICE, 900, GIB, "/default/dev"),))
IDS = st.integers(1, 2) | st.just(-1)
CGROUPS = st.sampled_from([101, 102, 103])
EVENTS: st.SearchStrategy[e.Event] = st.one_of(
    st.builds(e.ContainersSeen, st.just("dev"), st.none() | st.just(owner_container()), SPOTS),
    st.builds(e.WatchAdopted, st.just("dev"), st.just(7), st.sampled_from(e.Adopted), st.just((101,))),
    st.builds(e.WatchSet, st.just("dev"), st.just(7)),
    st.builds(e.WatchFailed, st.just("dev"), st.just("no")),
    st.builds(e.GatesLost, st.just("dev"), st.just("gone")),
    st.builds(e.GatesArmed, st.just("dev")),
    st.builds(e.LeaseSet, st.just("dev"), CGROUPS),
    st.builds(e.LeaseFailed, st.just("dev"), CGROUPS, st.just("no")),
    st.builds(e.Usage, st.just("dev"), st.sampled_from(e.Purpose), NS, NS, HOLDERS, AMOUNTS, AMOUNTS),
    st.builds(e.Held, st.just("dev"), st.just(7), st.integers(1, 2), NS, st.just(CALLER)),
    st.builds(e.LeaseEmpty, st.just("dev"), IDS, NS, NS, NS),
    st.builds(e.CgroupEmpty, st.just("dev"), CGROUPS, NS),
    st.builds(e.Killed, st.just("dev"), CGROUPS, NS, st.booleans(), st.none() | st.just("EPERM")),
    st.builds(e.HandlesSeen, st.just("dev"), IDS, NS, NS, HOLDERS),
    st.builds(e.MemorySeen, st.just("dev"), IDS, NS, NS, AMOUNTS, PROCESSES),
    st.builds(e.ReleaseRefused, st.just("dev"), IDS, st.just("ESTALE")),
    st.builds(e.ReturnEnded, st.just("dev"), IDS, st.sampled_from(Outcome), NS, NS, NS, NS),
    st.builds(e.Orphaned, st.just("dev"), IDS),
    st.builds(e.Timer, st.just("dev"), st.sampled_from(e.TimerName), IDS),
    st.builds(e.Admin, st.just("dev"), st.sampled_from(e.AdminAction)),
)


class Evidence:
    """What the events have shown since a return began, kept apart from the core's own book-keeping."""

    def __init__(self, owner: OwnerState) -> None:
        self.pending = {spot.container.cgroup for spot in owner.spots if not spot.empty}
        self.leased = {s.container.cgroup for s in owner.spots if s.lease is LeaseState.SET}
        self.handles = False
        self.memory = False

    def hear(self, event: e.Event, before: OwnerState, back_id: int) -> None:
        if isinstance(event, e.CgroupEmpty):
            self.pending.discard(event.cgroup)
        elif isinstance(event, e.LeaseEmpty | e.ReturnEnded) and event.id == back_id and event.empty_ns:
            self.pending -= {s.container.cgroup for s in before.spots if s.lease is LeaseState.SET}
        elif isinstance(event, e.ContainersSeen):
            known = {spot.container.cgroup for spot in before.spots}
            started = {spot.cgroup for spot in event.spots} - known
            self.pending |= started
            if started:
                self.handles = self.memory = False
        elif isinstance(event, e.HandlesSeen) and event.id == back_id and not self.pending:
            allowed = ("/default/dev", "/system.slice/exporter")
            clean = event.holders is not None and all(h.cgroup.startswith(allowed) for h in event.holders)
            self.handles = self.handles or clean
        elif isinstance(event, e.MemorySeen) and event.id == back_id and not self.pending and event.used:
            own = sum(p.used for p in event.processes or ())
            room = dict(before.baseline).get(DEVICE, 0) + POLICY.memory_slack
            self.memory = self.memory or dict(event.used)[DEVICE] - own <= room


@settings(max_examples=500, deadline=None)
@given(st.lists(EVENTS, max_size=40), st.sampled_from([OnHold.KILL, OnHold.NOTIFY]))
def test_never_a_release_before_three_witnesses_and_always_a_reason(
    stream: list[e.Event], on_hold: OnHold
) -> None:
    state = State((owner_state(policy=with_policy(on_hold=on_hold)),))
    evidence: Evidence | None = None
    now = 1_000 * S
    for event in stream:
        now += 10 * MS
        before = state.owners[0]
        decision = step(state, event, now)
        assert decision.reasons
        state = decision.state
        after = state.owners[0]
        back = after.handback or before.handback
        fresh = after.handback is not None and (
            before.handback is None or before.handback.id != after.handback.id
        )
        if fresh:
            evidence = Evidence(before)
            if isinstance(event, e.ContainersSeen):
                evidence.hear(event, before, after.handback.id if after.handback else 0)
        elif evidence is not None and back is not None:
            evidence.hear(event, before, back.id)
        for command in decision.commands:
            if isinstance(command, c.Release) and command.id is not None:
                assert evidence is not None
                assert not evidence.pending, "released with a spot cgroup not seen empty"
                assert evidence.handles, "released without the handles' witness"
                assert evidence.memory, "released without the memory's witness"
            if isinstance(command, c.Finish) and command.report.error_type is None:
                assert not command.report.missing
        became = {DeviceState.LENDABLE, DeviceState.LENT}
        if after.availability in became and before.availability is DeviceState.ACTIVE:
            trusted = isinstance(event, e.WatchAdopted) and event.kind is e.Adopted.TRUSTED
            assert trusted or (isinstance(event, e.Usage) and event.purpose is e.Purpose.RECOUNT)
            if isinstance(event, e.Usage):
                assert event.holders is not None
                assert not any(h.cgroup.startswith("/default/dev") for h in event.holders)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from([None, 20 * MS, 400 * MS, 3 * S]), max_size=3),
    st.sampled_from([None, 0, 30 * MS, 2 * S]),
    st.integers(0, 3),
    st.integers(0, 3),
    st.booleans(),
    st.frozensets(
        st.sampled_from(["Held", "LeaseEmpty", "ReturnEnded", "CgroupEmpty", "Killed", "LeaseSet"])
    ),
    st.sampled_from([0, 500 * MS, 60 * S]),
    st.sampled_from([OnHold.KILL, OnHold.NOTIFY]),
    st.sampled_from([0, 500 * MS]),
    st.sampled_from(AtDeadline),
)
def test_the_owner_always_gets_through_and_by_proof_only_onto_a_free_device(
    deaths: list[int | None],
    memory_ns: int | None,
    memory_mute: int,
    handles_mute: int,
    kernel_kills: bool,
    lost: frozenset[str],
    stranger_ns: int,
    on_hold: OnHold,
    grace_ns: int,
    at_deadline: AtDeadline,
) -> None:
    policy = with_policy(on_hold=on_hold, evict_grace_ns=grace_ns, at_deadline=at_deadline)
    world = World(
        policy=policy,
        spots=[SpotLife(spot_container(n), dies_ns) for n, dies_ns in enumerate(deaths, 1)],
        memory_ns=memory_ns,
        memory_mute=memory_mute,
        handles_mute=handles_mute,
        kernel_kills=kernel_kills,
    )
    lent(world)
    world.lost = lost
    world.stranger_until_ns = world.now + stranger_ns
    began = world.now
    world.owner_calls()
    world.run(20 * S)
    (release,) = world.releases
    assert release.at_ns - began <= policy.deadline_ns
    assert release.by in (Outcome.RELEASED, Outcome.DEADLINE, Outcome.DEADLINE_EIO)
    if release.by is Outcome.RELEASED:
        assert release.free, "let through by proof onto a device that was not free"
    assert world.owner.handback is None
    assert world.availability() is not DeviceState.RETURNING or "Held" in lost
    if not release.free and "Held" not in lost:
        assert world.finished[-1].error_type is not None


@settings(max_examples=100, deadline=None)
@given(st.lists(EVENTS, max_size=25), st.lists(EVENTS, max_size=25), st.randoms(use_true_random=False))
def test_two_owners_never_touch_each_other(
    first: list[e.Event], second: list[e.Event], random: object
) -> None:
    named = [replace(event, owner="other") for event in second]
    streams = [list(first), list(named)]
    both = State((owner_state("dev"), owner_state("other")))
    alone = [State((owner_state("dev"),)), State((owner_state("other"),))]
    now = 1_000 * S
    while any(streams):
        now += MS
        which = random.choice([n for n in (0, 1) if streams[n]])  # type: ignore[attr-defined]
        event = streams[which].pop(0)
        together, apart = step(both, event, now), step(alone[which], event, now)
        assert (together.commands, together.reasons) == (apart.commands, apart.reasons)
        both, alone[which] = together.state, apart.state
    assert both.owners == (alone[0].owners[0], alone[1].owners[0])


def drained(order: tuple[e.Event, ...]) -> OwnerState:
    """The owner after a hold with two spot containers and these events in this order."""
    spots = tuple(Spot(spot_container(n), lease=LeaseState.SET) for n in (1, 2))
    start = replace(
        owner_state(),
        container=owner_container(),
        watch=7,
        watching=True,
        spots=spots,
        availability=DeviceState.LENT,
    )
    state = step(State((start,)), e.Held("dev", 7, 1, 1_000 * S, CALLER), 1_000 * S).state
    for event in order:
        state = step(state, event, 1_001 * S).state
    return state.owners[0]


def test_the_order_of_empty_cgroups_does_not_matter() -> None:
    kernel = e.LeaseEmpty("dev", 1, 1_000 * S + MS, 1_000 * S + 2 * MS, 1_000 * S + 50 * MS)
    agent = [e.CgroupEmpty("dev", n, 1_000 * S + 50 * MS + n * MS) for n in (101, 102)]
    events: list[e.Event] = [kernel, *agent]
    ends = {drained(order) for order in itertools.permutations(events)}
    assert len({replace(owner, drain=None) for owner in ends}) == 1
    assert {owner.drain.empty_ns for owner in ends if owner.drain} == {1_000 * S + 50 * MS}


def test_the_order_of_handles_and_memory_does_not_matter_and_repeats_change_nothing() -> None:
    empty = e.LeaseEmpty("dev", 1, 1_000 * S, 1_000 * S, 1_000 * S + 50 * MS)
    handles = e.HandlesSeen("dev", 1, 1_000 * S + 51 * MS, 1_000 * S + 60 * MS, ())
    memory = e.MemorySeen("dev", 1, 1_000 * S + 51 * MS, 1_000 * S + 55 * MS, ((DEVICE, 0),), ())
    ends = {drained((empty, handles, memory)), drained((empty, memory, handles))}
    ends.add(drained((empty, empty, memory, memory, handles, handles, memory)))
    assert len(ends) == 1
    (owner,) = ends
    assert owner.handback is not None
    assert owner.handback.releases == 1


@pytest.mark.parametrize("early", [1_000 * S, 1_000 * S + 49 * MS])
def test_a_sample_begun_before_the_cgroups_were_empty_proves_nothing(early: int) -> None:
    empty = e.LeaseEmpty("dev", 1, 1_000 * S, 1_000 * S, 1_000 * S + 50 * MS)
    owner = drained(
        (
            empty,
            e.HandlesSeen("dev", 1, early, 1_000 * S + 60 * MS, ()),
            e.MemorySeen("dev", 1, early, 1_000 * S + 60 * MS, ((DEVICE, 0),), ()),
        )
    )
    assert owner.drain is not None
    assert owner.drain.missing == (Witness.HANDLES, Witness.MEMORY)


def test_a_new_spot_container_undoes_what_was_proven() -> None:
    empty = e.LeaseEmpty("dev", 1, 1_000 * S, 1_000 * S, 1_000 * S + 50 * MS)
    handles = e.HandlesSeen("dev", 1, 1_000 * S + 51 * MS, 1_000 * S + 60 * MS, ())
    owner = drained((empty, handles, e.ContainersSeen("dev", owner_container(), (spot_container(3),))))
    assert owner.drain is not None
    assert owner.drain.missing == (Witness.CGROUP, Witness.HANDLES, Witness.MEMORY)


def test_a_spot_container_the_kernel_does_not_know_is_killed_by_the_agent_at_once() -> None:
    spots = (Spot(spot_container(1), lease=LeaseState.SET), Spot(spot_container(2)))
    start = replace(owner_state(), container=owner_container(), watch=7, watching=True, spots=spots)
    decision = step(State((start,)), e.Held("dev", 7, 1, 1_000 * S, CALLER), 1_000 * S)
    assert [command.cgroup for command in decision.commands if isinstance(command, c.Kill)] == [102]
    assert [command.cgroup for command in decision.commands if isinstance(command, c.Fence)] == [102, 101]


def test_a_memory_sample_without_one_of_the_devices_proves_nothing() -> None:
    start = replace(owner_state(devices=(DEVICE, "GPU-1")), container=owner_container(), watch=7)
    state = step(State((start,)), e.Held("dev", 7, 1, 1_000 * S, CALLER), 1_000 * S).state
    state = step(state, e.MemorySeen("dev", 1, 1_001 * S, 1_001 * S, ((DEVICE, 0),), ()), 1_001 * S).state
    drain = state.owners[0].drain
    assert drain is not None
    assert drain.memory is None
    assert drain.unknown == (Witness.MEMORY,)
