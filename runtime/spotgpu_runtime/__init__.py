# SPDX-License-Identifier: Apache-2.0
"""The OCI runtime wrapper that injects devices; empty until its first modifier lands."""
