# SPDX-License-Identifier: Apache-2.0
"""Names and formats shared by all rooms, and the spotgpu command."""

__version__ = "0.1.0"
