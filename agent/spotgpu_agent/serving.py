# SPDX-License-Identifier: Apache-2.0
"""The child's side of child.py: answer requests until the agent ends. Lean: a child starts in a hurry."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
from collections.abc import Callable
from typing import Any, Final

PR_SET_PDEATHSIG: Final = 1


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> int:
    """Answer requests from standard input, a socket, until it ends, or the agent does.

    Args:
        answer: one request to one answer. An OSError or ValueError of it is an answer too; others end the
        child.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the agent
    with socket.socket(fileno=os.dup(0)) as connection, connection.makefile("rwb") as stream:
        for line in stream:
            stream.write(json.dumps(_reply(answer, json.loads(line))).encode() + b"\n")
            stream.flush()
    return 0


def _reply(answer: Callable[[dict[str, Any]], dict[str, Any]], request: dict[str, Any]) -> dict[str, Any]:
    if request.get("op") == "hello":
        return {}
    try:
        return answer(request)
    except (OSError, ValueError) as error:
        return {"error": str(error)}
