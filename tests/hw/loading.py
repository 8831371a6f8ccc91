# SPDX-License-Identifier: Apache-2.0
"""Import trace_ioctls, a program without a suffix, so that its functions can be tested."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

SCRIPT = Path(__file__).parent / "trace_ioctls"


def load() -> ModuleType:
    """Return the program as a module; the same each time, so that its classes are the same."""
    name = "spotgpu_trace_ioctls"
    if name not in sys.modules:
        loader = SourceFileLoader(name, str(SCRIPT))
        spec = importlib.util.spec_from_loader(name, loader)
        assert spec
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses look their module up
        loader.exec_module(module)
    return sys.modules[name]
