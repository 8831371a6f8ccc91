# SPDX-License-Identifier: Apache-2.0
"""khook: the kernel module that holds an owner's ioctl, and its netlink client."""
