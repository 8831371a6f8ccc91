# SPDX-License-Identifier: Apache-2.0
"""The agent's errors.

SpotgpuError (spotgpu.errors)
├── UsageError                exit status 2: bad input, nothing armed
│   ├── ConfigError           a field of the configuration
│   ├── PlatformError         this node can't run the agent: kernel, cgroups, module, driver
│   └── StateError            the state file is not ours
└── AgentError                exit status 1: something the agent needs failed at run time
    ├── BackendError          the hold back-end refused or went away
    ├── ContainerdError       containerd can't be reached or refused
    └── ChildError            a child process (NVML, handle scan) gave no answer
"""

from __future__ import annotations

from spotgpu.errors import SpotgpuError, UsageError


class ConfigError(UsageError):
    """A field of the configuration is wrong; `field` is its path, `owners[0].devices[1]`."""


class PlatformError(UsageError):
    """This node lacks what the agent needs."""


class AgentError(SpotgpuError):
    """Something the agent needs failed while it ran."""


class BackendError(AgentError):
    """The hold back-end refused a command or is gone.

    Args:
        message: the back-end's own sentence.
        errno: positive error number, 0 when there is none.
        field: see SpotgpuError.
        remedy: see SpotgpuError.
    """

    def __init__(
        self, message: str, errno: int = 0, field: str | None = None, remedy: str | None = None
    ) -> None:
        super().__init__(message, field, remedy)
        self.errno = errno


class ContainerdError(AgentError):
    """Containerd can't be reached, or refused a call."""


class ChildError(AgentError):
    """A child process gave no answer in time, or a broken one."""


class StateError(UsageError):
    """The state file can't be used: of another program, or of a newer version."""
