# SPDX-License-Identifier: Apache-2.0
"""Stubs of device_plugin.proto, generated; its header says how."""
