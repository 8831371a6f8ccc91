# SPDX-License-Identifier: Apache-2.0
"""Detection of owners leaving and returning with eBPF; empty until its first probe lands."""
