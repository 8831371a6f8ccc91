# SPDX-License-Identifier: Apache-2.0
"""The gang scheduler; empty until its first decision lands."""
