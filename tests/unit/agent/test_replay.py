# SPDX-License-Identifier: Apache-2.0
"""A recorded node gives the same commands when it is played again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotgpu_agent.codec import CodecError, decode, encode, encode_tagged
from spotgpu_agent.commands import Command
from spotgpu_agent.core import step
from spotgpu_agent.events import Event
from spotgpu_agent.model import State
from spotgpu_agent.replay import Recorder, ReplayError, play
from tests.unit.agent.test_core import EVENTS
from tests.unit.agent.worlds import S, SpotLife, World, lent, owner_state, spot_container


@settings(max_examples=50, deadline=None)
@given(st.lists(EVENTS, max_size=20))
def test_events_commands_and_states_survive_json(stream: list[Event]) -> None:
    state = State((owner_state(),))
    for number, event in enumerate(stream):
        assert decode(Event, json.loads(json.dumps(encode_tagged(event)))) == event
        decision = step(state, event, 1_000 * S + number)
        state = decision.state
        assert decode(State, json.loads(json.dumps(encode(state)))) == state
        for command in decision.commands:
            assert decode(Command, json.loads(json.dumps(encode_tagged(command)))) == command


def record(path: Path) -> None:
    """A whole hand-back, recorded."""
    world = lent(World(spots=[SpotLife(spot_container(n)) for n in (1, 2)]))
    world.owner_calls()
    world.run(2 * S)
    recorder = Recorder(path, State((owner_state(),)))
    for now, event, decision in world.log:
        recorder.add(event, now, decision)
    recorder.close()


def replayed(path: Path) -> subprocess.CompletedProcess[str]:
    """`python -m spotgpu_agent.replay` with this test's import path."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "spotgpu_agent.replay", str(path)]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=60)


def test_a_record_played_again_gives_the_same_commands(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    record(path)
    turns = list(play(path.read_text().splitlines()))
    assert len(turns) > 10
    done = replayed(path)
    assert done.returncode == 0, done.stderr
    assert "dev Held -> Begin, Fence, Fence" in done.stdout
    assert "dev ReturnEnded -> Finish" in done.stdout


def test_another_decision_is_an_error_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    record(path)
    lines = path.read_text().splitlines()
    number, line = next((n, line) for n, line in enumerate(lines) if '"type": "Release"' in line)
    lines[number] = line.replace('"type": "Release"', '"type": "Undetect"')
    with pytest.raises(ReplayError, match=f"line {number + 1}: recorded"):
        list(play(lines))
    path.write_text("\n".join(lines))
    done = replayed(path)
    assert done.returncode == 1
    assert f"line {number + 1}: recorded" in done.stderr


@pytest.mark.parametrize("broken", ["", "{", "[]", '{"format": 2}', '{"format": 1, "state": {"owners": 3}}'])
def test_what_is_no_record_is_refused(broken: str) -> None:
    with pytest.raises(ReplayError, match="line 1"):
        list(play([broken]))


def test_the_codec_refuses_what_does_not_fit() -> None:
    with pytest.raises(CodecError, match="owners: int where a list belongs"):
        decode(State, {"owners": 3})
    with pytest.raises(CodecError, match="unknown field extra"):
        decode(State, {"owners": [], "extra": 1})
    with pytest.raises(CodecError, match="unknown type 'Nothing'"):
        decode(Event, {"type": "Nothing"})
