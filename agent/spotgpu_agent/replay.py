# SPDX-License-Identifier: Apache-2.0
"""Record what the core was told and what it decided; play it again and compare.

    python -m spotgpu_agent.replay FILE

A record is JSON lines: first the state it began with, then every event with its time and the commands that
came of it. Played again, the core must give the same commands; exit status 1 and the line number when not.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from spotgpu_agent.codec import CodecError, decode, encode, encode_tagged
from spotgpu_agent.commands import Decision
from spotgpu_agent.core import step
from spotgpu_agent.errors import ConfigError
from spotgpu_agent.events import Event
from spotgpu_agent.model import State

FORMAT: Final = 1


class Recorder:
    """Appends to a record; opened anew (and emptied) at every start of the agent."""

    def __init__(self, path: Path, state: State) -> None:
        try:
            self._file = path.open("w", buffering=1)
        except OSError as error:
            raise ConfigError(
                error.strerror or str(error), "record", "name a file that can be written"
            ) from error
        self._write({"format": FORMAT, "state": encode(state)})

    def add(self, event: Event, now_ns: int, decision: Decision) -> None:
        """One turn of the core."""
        commands = [encode_tagged(command) for command in decision.commands]
        reasons = [encode(reason) for reason in decision.reasons]
        self._write({"now": now_ns, "event": encode_tagged(event), "commands": commands, "reasons": reasons})

    def close(self) -> None:
        """No more turns."""
        self._file.close()

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")


class ReplayError(ValueError):
    """A record can't be played, or gives other commands; the message says in which line."""


def play(lines: Iterable[str]) -> Iterator[tuple[int, Event, Decision]]:
    """Every turn of a record, decided anew.

    Yields:
        Line number, event, decision.

    Raises:
        ReplayError: the record is broken, or a decision differs from the recorded one.
    """
    numbered = enumerate(lines, 1)
    state = _begin(next(numbered, (1, ""))[1])
    for number, text in numbered:
        line = _json(number, text)
        try:
            event: Event = decode(Event, line.get("event"), "event")
        except CodecError as error:
            raise ReplayError(f"line {number}: {error}") from error
        decision = step(state, event, int(line["now"]))
        commands = [encode_tagged(command) for command in decision.commands]
        if commands != line.get("commands"):
            raise ReplayError(f"line {number}: recorded {line.get('commands')}, now {commands}")
        state = decision.state
        yield number, event, decision


def _begin(text: str) -> State:
    line = _json(1, text)
    if line.get("format") != FORMAT:
        raise ReplayError(f"line 1: no record of format {FORMAT}")
    try:
        state: State = decode(State, line.get("state"), "state")
    except CodecError as error:
        raise ReplayError(f"line 1: {error}") from error
    return state


def _json(number: int, text: str) -> dict[str, Any]:
    try:
        line = json.loads(text)
    except ValueError as error:
        raise ReplayError(f"line {number}: torn") from error
    if not isinstance(line, dict):
        raise ReplayError(f"line {number}: no object")
    return line


def main(argv: list[str]) -> int:
    """Play a file and print each turn."""
    if len(argv) != 1:
        print("usage: python -m spotgpu_agent.replay FILE", file=sys.stderr)
        return 2
    try:
        with Path(argv[0]).open() as lines:
            for number, event, decision in play(lines):
                why = "; ".join(f"{reason.code}: {reason.text}" for reason in decision.reasons)
                what = ", ".join(type(command).__name__ for command in decision.commands)
                print(f"{number} {event.owner} {type(event).__name__} -> {what or 'nothing'} ({why})")
    except OSError as error:
        print(f"{argv[0]}: {error.strerror}", file=sys.stderr)
        return 2
    except ReplayError as error:
        print(f"{argv[0]}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
