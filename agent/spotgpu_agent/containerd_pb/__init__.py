# SPDX-License-Identifier: Apache-2.0
"""Stubs of containerd.proto, generated; its header says how."""
