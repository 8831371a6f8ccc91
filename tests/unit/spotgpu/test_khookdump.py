# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from spotgpu.khookdump import told
from spotgpu.status import render
from spotgpu_khook.abi import Classifier, GateState, IoctlClass, Method, Outcome, WatchState
from spotgpu_khook.model import Caller, CgroupKey, Eviction, Fence, Gate, Hold, Stats, Watch, WatchPolicy


def test_the_dumps_in_words() -> None:
    gate = Gate(
        1,
        195 << 8,
        "nvidia",
        "nvidia_unlocked_ioctl",
        Classifier.NVIDIA_RM,
        Method.FTRACE,
        GateState.LIVE,
        9,
        1,
    )
    watch = Watch(
        2,
        CgroupKey(4711),
        WatchPolicy(),
        WatchState.HOLDING,
        1,
        5,
        10**6,
        Eviction(0, 0, 0, 0),
        0,
        Outcome.UNSPEC,
        (8, 9),
    )
    caller = Caller(70, 71, "py\x1b", 4711, 1, 195 << 8 | 255, 0xC020462B, IoctlClass.COMPUTE, 1)
    stats = Stats(1, 3000, 5000, 0, 0, 0, {"holds": 1}, {"returns": 5})
    found = told([gate], [watch], [Hold(3, 2, 5, caller, 12_345_678)], [Fence(8, 2)], stats, 30 * 10**6)
    text = render(found)
    assert "none attached" in text
    assert "nvidia_unlocked_ioctl  nvidia_rm   ftrace  live   9      1" in text
    assert "holding  1      29       10000        kill     proof       8,9" in text
    assert "3   2      py\\x1b  70   71   0xc020462b  compute  12" in text
    assert "returns  5" in text
