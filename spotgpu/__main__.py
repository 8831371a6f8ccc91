# SPDX-License-Identifier: Apache-2.0
"""`python -m spotgpu` and the `spotgpu` script."""

from __future__ import annotations

import sys

from spotgpu.cli import run


def main() -> None:
    """Run the command and exit with its status."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
