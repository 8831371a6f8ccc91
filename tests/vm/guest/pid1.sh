#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# PID 1 of a guest: kernel file systems, cgroups, the checkout; then the job; then results out and power off.
# The shell reaps every orphan, as PID 1 must: its wait collects any child.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/root LC_ALL=C.UTF-8

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t tmpfs -o mode=1777 tmp /tmp
mount -t debugfs debugfs /sys/kernel/debug
mount -t tracefs tracefs /sys/kernel/tracing
mount -t bpf bpf /sys/fs/bpf
ln -sfn /proc/self/fd /dev/fd

# The ports have no names in /dev without udev.
port() {
	for name in /sys/class/virtio-ports/*/name; do
		read -r found <"$name"
		if [ "$found" = "spotgpu.$1" ]; then
			name=${name%/name}
			echo "/dev/${name##*/}"
		fi
	done
}
CONTROL=$(port control)
tell() { echo "$*" >"$CONTROL"; }
tell "up $(cut -d' ' -f1 /proc/uptime)"

# cgroup v2: this shell and the job in /init, every controller offered to the root's children, so that a container
# is a sibling of the job and not below it.
mount -t cgroup2 -o nsdelegate cgroup2 /sys/fs/cgroup
mkdir /sys/fs/cgroup/init
echo $$ >/sys/fs/cgroup/init/cgroup.procs
for controller in $(cat /sys/fs/cgroup/cgroup.controllers); do
	echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control
done

ulimit -n 65536
ulimit -c 0
hostname spotgpu
ip link set lo up
# Warnings and worse reach the console, where the host looks for them; the rest is in the results' dmesg.txt.
dmesg -n 5

mkdir -p /run/overlay/up /run/overlay/work /results
mount -t tmpfs results /results
mount -t overlay -o lowerdir=/run/vm/src,upperdir=/run/overlay/up,workdir=/run/overlay/work overlay /src
[ -d /run/vm/build ] && mount --bind /run/vm/build /opt/spotgpu/build
[ -d /run/vm/extra ] && cp -a /run/vm/extra/. /

. /run/vm/job/env
JOB=$(port job)
SOFT_LIMIT=${VM_SOFT_LIMIT_S:-0}
unset VM_SOFT_LIMIT_S
tell "job $(cut -d' ' -f1 /proc/uptime)"

# A beat every five seconds tells the host that the guest still schedules processes.
if [ "${VM_BEAT:-1}" = 1 ]; then
	while sleep 5; do tell beat; done &
fi
unset VM_BEAT
SPOTGPU_EVENTS=$(port events)
export SPOTGPU_EVENTS
if [ "$SOFT_LIMIT" -gt 0 ]; then
	(
		# The limit counts from the kernel's start, as the host's does.
		sleep $((SOFT_LIMIT - $(cut -d. -f1 /proc/uptime)))
		tell "late $SOFT_LIMIT"
		# Blocked tasks go to the console, which is all that is left of a guest that hangs.
		dmesg -n 7
		echo w >/proc/sysrq-trigger
		dmesg -n 5
		cat /run/job.pid && kill -TERM -"$(cat /run/job.pid)"
		sleep 3
		kill -KILL -"$(cat /run/job.pid)"
	) >/dev/null 2>&1 &
fi

cd /src || exit
# A shell starts what it runs in the background with SIGINT and SIGQUIT ignored, which its children would inherit.
SIGNALS='env --default-signal=INT,QUIT'
if [ -n "$VM_TERMINAL" ]; then
	setsid -c $SIGNALS bash -c 'stty $VM_TERMINAL; . /run/vm/job/run; exec bash -i' <>/dev/ttyS1 >&0 2>&0 &
else
	setsid $SIGNALS sh -c 'echo $$ >/run/job.pid; exec bash /run/vm/job/run' </dev/null >"$JOB" 2>&1 &
fi
wait $!
STATUS=$?

dmesg >/results/dmesg.txt
tar -C /results -cf "$(port results)" .
tell "exit $STATUS"
exec busybox poweroff -f
