# SPDX-License-Identifier: Apache-2.0
"""The spotgpu command. It starts lean: what a sub-command needs is imported when that sub-command runs.

Exit status: 0 all is well; 1 something is wrong (a check failed, no agent answers, nothing found); 2 bad
input.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from spotgpu import __version__
from spotgpu.errors import SpotgpuError, UsageError
from spotgpu.names import ADMIN_SOCKET, CONFIG_FILE, KHOOK_FAMILY_VERSION, TRACES_ENV, TRACES_FILE


class _Parser(argparse.ArgumentParser):
    """Errors in one line, as all of ours are."""

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"{self.prog}: {message} (see `{self.prog} --help`)\n")
        sys.exit(2)


def run(argv: Sequence[str]) -> int:
    """Run one command line and return its exit status.

    Args:
        argv: arguments without the program's name.
    """
    arguments = _parser().parse_args(argv)
    try:
        status: int = arguments.run(arguments)
        sys.stdout.flush()
    except SpotgpuError as error:
        from spotgpu.output import error_text

        sys.stderr.write(error_text(error, f"spotgpu {arguments.command}", arguments.output == "json"))
        return error.exit_status
    except BrokenPipeError:
        # The reader (head, less) has had enough. Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    return status


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="spotgpu",
        description="Lends an idle owner's GPUs to spot jobs and gives them back "
        "the moment the owner touches one.",
        epilog="Exit status: 0 all is well, 1 something is wrong, 2 bad input.",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for add in (_add_agent, _add_status, _add_doctor, _add_trace, _add_version):
        add(commands)
    return parser


def _command(
    commands: argparse._SubParsersAction[_Parser], name: str, help_: str, description: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=help_, description=description, allow_abbrev=False)
    parser.add_argument(
        "--output", "-o", choices=("text", "json"), default="text", help="text for people, json for programs"
    )
    return parser


# agent ------------------------------------------------------------------------------------------------------


def _add_agent(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = _command(
        commands,
        "agent",
        "run the node agent",
        "Runs until SIGTERM: watches the owners of a node, lends their idle devices, hands them back. "
        "Logs JSON lines on stderr.",
    )
    parser.add_argument(
        "--standalone",
        metavar="CONFIG",
        nargs="?",
        const=Path(CONFIG_FILE),
        type=Path,
        required=True,
        help=f"a node with containerd and no Kubernetes, configured by this file (default {CONFIG_FILE})",
    )
    parser.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), default="info", help="default: info"
    )
    parser.add_argument("--check", action="store_true", help="read and check the configuration, then end")
    parser.set_defaults(run=_agent)


def _agent(arguments: argparse.Namespace) -> int:
    from spotgpu_agent.__main__ import run_agent

    return run_agent(arguments.standalone, log_level=arguments.log_level, check=arguments.check)


# status -----------------------------------------------------------------------------------------------------


def _add_status(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = _command(
        commands,
        "status",
        "show gates, watches, holds, leases and devices",
        "Asks the agent. If none answers, shows what the kernel module says, and exits with 1.",
    )
    parser.add_argument(
        "--socket",
        type=Path,
        default=Path(ADMIN_SOCKET),
        help=f"the agent's admin socket (default {ADMIN_SOCKET})",
    )
    parser.set_defaults(run=_status)


def _status(arguments: argparse.Namespace) -> int:
    from spotgpu import status

    found = status.gather(arguments.socket)
    _print(found.to_json() if arguments.output == "json" else found.to_text())
    return 0 if found.agent else 1


# doctor -----------------------------------------------------------------------------------------------------


def _add_doctor(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = _command(
        commands,
        "doctor",
        "check whether this node can run spotgpu",
        "Checks kernel, module, containerd, NVML, permissions and clock, and says what to do "
        "about what is wrong.",
    )
    parser.add_argument(
        "--module", type=Path, metavar="KHOOK.KO", help="check this module, not the installed one"
    )
    parser.add_argument(
        "--containerd",
        type=Path,
        metavar="SOCKET",
        default=Path("/run/containerd/containerd.sock"),
        help="containerd's socket (default /run/containerd/containerd.sock)",
    )
    parser.set_defaults(run=_doctor)


def _doctor(arguments: argparse.Namespace) -> int:
    import logging

    from spotgpu_agent import doctor

    logging.lastResort = None  # what modules log on the way is in the verdicts
    if arguments.module is not None and not arguments.module.is_file():
        raise UsageError(f"there is no file {arguments.module}", "--module", "name a built khook.ko")
    checks = doctor.examine(arguments.module, arguments.containerd)
    _print(doctor.to_json(checks) if arguments.output == "json" else doctor.to_text(checks))
    return 1 if any(check.status == "fail" for check in checks) else 0


# trace ------------------------------------------------------------------------------------------------------


def _add_trace(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = _command(
        commands,
        "trace",
        "draw hand-backs",
        "Draws the waterfall of a hand-back from the agent's trace file: of the last one, "
        "unless told otherwise.",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "trace_id", metavar="TRACE_ID", nargs="?", help="a trace id, or the 4 digits or more that begin one"
    )
    which.add_argument("--last", metavar="N", type=_count, default=None, help="the last N hand-backs")
    which.add_argument("--list", action="store_true", help="one line for each of the last 50 hand-backs")
    parser.add_argument(
        "--file",
        type=Path,
        help=f"the trace file (default ${TRACES_ENV}, or {TRACES_FILE})",
    )
    parser.add_argument(
        "--html", type=Path, metavar="OUT", help="write a self-contained page here (- for stdout)"
    )
    parser.add_argument("--ascii", action="store_true", help="draw without block characters")
    parser.add_argument("--width", type=_count, help="columns to draw in (default: the terminal's)")
    parser.set_defaults(run=_trace)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:9]) <= 10_000):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to 10000")
    return int(text)


def _trace(arguments: argparse.Namespace) -> int:
    from spotgpu import tracecmd

    if arguments.file is not None and not arguments.file.is_file():
        raise UsageError(f"there is no file {arguments.file}", "--file", "name a trace file of the agent")
    return tracecmd.run(
        tracecmd.Request(
            file=arguments.file or Path(os.environ.get(TRACES_ENV) or TRACES_FILE),
            trace_id=arguments.trace_id,
            last=arguments.last or (50 if arguments.list else 1),
            listing=arguments.list,
            html=arguments.html,
            as_json=arguments.output == "json",
            ascii_only=arguments.ascii,
            width=arguments.width,
        ),
        sys.stdout,
        sys.stderr,
    )


# version ----------------------------------------------------------------------------------------------------


def _add_version(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = _command(
        commands, "version", "show the version", "Shows the version of spotgpu and of the khook ABI."
    )
    parser.set_defaults(run=_version)


def _version(arguments: argparse.Namespace) -> int:
    python = ".".join(map(str, sys.version_info[:3]))
    if arguments.output == "json":
        from spotgpu.output import to_json

        _print(to_json({"spotgpu": __version__, "khook_abi": KHOOK_FAMILY_VERSION, "python": python}))
    else:
        _print(f"spotgpu {__version__} (khook ABI {KHOOK_FAMILY_VERSION}, Python {python})\n")
    return 0


def _print(text: str) -> None:
    """Print text that the terminal may not be able to show."""
    from spotgpu.output import draws

    if not draws(sys.stdout, text):
        text = text.encode("ascii", "backslashreplace").decode()
    sys.stdout.write(text)
