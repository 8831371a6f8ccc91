# SPDX-License-Identifier: Apache-2.0
"""The node agent: decides and carries out the hand-back."""
