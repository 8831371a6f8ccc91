#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# First program of a guest: load the disk's modules, mount the root and the job's disk, hand over to pid1.sh.
# vda is the root (a throw-away overlay), vdb the job's disk (read-only), vdc the Python site (read-only).
b=/bin/busybox
$b mount -t devtmpfs devtmpfs /dev
while read -r module; do
	$b insmod "/lib/$module.ko" || echo "spotgpu-vm: module $module does not load"
done </lib/order
$b mount -t ext4 -o noatime /dev/vda /root || exec $b poweroff -f
$b mount -t tmpfs -o mode=0755 run /root/run
$b mkdir /root/run/vm
$b mount -t ext4 -o ro,noatime /dev/vdb /root/run/vm || exec $b poweroff -f
$b mount -t ext4 -o ro,noatime /dev/vdc /root/opt/spotgpu/site || exec $b poweroff -f
$b umount /dev
exec $b switch_root /root /run/vm/harness/pid1.sh
