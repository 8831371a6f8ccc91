# SPDX-License-Identifier: Apache-2.0
"""Helper processes: real ones, that answer, fail, hang and die."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from spotgpu_agent.child import MAX_ABANDONED, Child
from spotgpu_agent.errors import ChildError
from tests.unit.agent.helper import in_loop, until

CODE = """
import os, sys, time
from spotgpu_agent.serving import serve

def answer(request):
    op = request["op"]
    if op == "echo":
        return {"echo": request["text"], "pid": os.getpid()}
    if op == "fail":
        raise OSError(5, "input/output error")
    if op == "hang":
        time.sleep(1000)
    if op == "chatter":
        print("library noise")
        return {"ok": 1}
    os._exit(3)

sys.exit(serve(answer))
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A helper's module, on the import path of processes started from here."""
    (tmp_path / "spotgpu_test_helper.py").write_text(CODE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    return "spotgpu_test_helper"


class Abandoned:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@in_loop
async def test_answers_errors_and_chatter(module: str) -> None:
    abandoned = Abandoned()
    child = Child("test", module, abandoned)
    await child.start()
    reply = await child.ask({"op": "echo", "text": "a\nb\u2028" * 10_000}, 20)
    assert reply["echo"] == "a\nb\u2028" * 10_000
    with pytest.raises(ChildError, match="input/output error"):
        await child.ask({"op": "fail"}, 20)
    assert (await child.ask({"op": "chatter"}, 20)) == {"ok": 1}
    again = await child.ask({"op": "echo", "text": ""}, 20)
    assert again["pid"] == reply["pid"], "an error answer costs no child"
    assert child.pids() == (reply["pid"],)
    await child.close()
    assert abandoned.count == 0


@in_loop
async def test_requests_wait_for_one_another(module: str) -> None:
    child = Child("test", module, Abandoned())
    await child.start()
    replies = await asyncio.gather(*(child.ask({"op": "echo", "text": str(n)}, 20) for n in range(20)))
    assert [reply["echo"] for reply in replies] == [str(n) for n in range(20)]
    await child.close()


@in_loop
async def test_a_child_that_hangs_is_left_behind_and_replaced(module: str) -> None:
    abandoned = Abandoned()
    child = Child("test", module, abandoned)
    await child.start()
    (first,) = child.pids()
    with pytest.raises(ChildError, match=r"no answer in 0\.2 s"):
        await child.ask({"op": "hang"}, 0.2)
    assert abandoned.count == 1
    with pytest.raises(ChildError, match=r"started anew|no answer"):
        await child.ask({"op": "echo", "text": ""}, 0.2)

    async def answers() -> bool:
        try:
            return bool((await child.ask({"op": "echo", "text": "x"}, 5))["pid"] != first)
        except ChildError:
            return False

    await until(answers)
    await child.close()


@in_loop
async def test_a_child_that_ends_is_replaced(module: str) -> None:
    abandoned = Abandoned()
    child = Child("test", module, abandoned)
    await child.start()
    with pytest.raises(ChildError, match="ended"):
        await child.ask({"op": "exit"}, 20)

    async def answers() -> bool:
        try:
            return bool(await child.ask({"op": "echo", "text": "x"}, 5))
        except ChildError:
            return False

    await until(answers)
    await child.close()


@in_loop
async def test_children_that_cannot_be_killed_are_not_replaced_for_ever(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    abandoned = Abandoned()
    child = Child("test", module, abandoned)
    # A process in D state does not die of SIGKILL; here it gets none.
    monkeypatch.setattr("subprocess.Popen.kill", lambda process: None)
    left = []
    for _ in range(MAX_ABANDONED):

        async def hangs() -> bool:
            try:
                await child.ask({"op": "hang"}, 0.2)
            except ChildError as error:
                return "no answer" in error.message
            return False

        await until(hangs)
        left = list(child.pids())
    assert abandoned.count == MAX_ABANDONED
    await asyncio.sleep(1.0)
    with pytest.raises(ChildError, match="started anew"):
        await child.ask({"op": "echo", "text": ""}, 0.5)
    assert sorted(child.pids()) == sorted(left), "no fourth one"
    monkeypatch.undo()
    await child.close()
    for pid in left:
        os.kill(pid, 9)


@in_loop
async def test_a_module_that_does_not_start_is_an_error(module: str) -> None:
    child = Child("test", "spotgpu_no_such_module", Abandoned())
    with pytest.raises(ChildError, match="ended"):
        await child.start()
    await child.close()


@in_loop
async def test_a_start_that_is_broken_off_leaves_nothing_open(module: str) -> None:
    for delay_s in (0.0, 0.001, 0.02, 0.1):
        child = Child("test", module, Abandoned())
        start = asyncio.create_task(child.start())
        await asyncio.sleep(delay_s)
        child.closing()
        start.cancel()
        await asyncio.gather(start, return_exceptions=True)
        await child.close()
    # What stayed open would be told as a ResourceWarning, which fails the test.
