#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the kernel's own checkpatch.pl, taken from Debian's linux-source package, over our kernel C.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

fetch() {
	local version dir
	version=$(apt-cache policy linux-source-6.1 | awk '/Candidate:/ {print $2}')
	dir=$CACHE/checkpatch/$version
	if [ ! -x "$dir/complete" ]; then
		say "checkpatch: taking it from linux-source-6.1 $version"
		rm -rf "$dir"
		mkdir -p "$dir"
		(cd "$dir" && apt-get download -qq -o APT::Sandbox::User=root linux-source-6.1 >/dev/null)
		# tar ends once it has all three, which ends what feeds it with SIGPIPE: so look at the result instead.
		dpkg-deb --fsys-tarfile "$dir"/*.deb 2>/dev/null | tar -xO ./usr/src/linux-source-6.1.tar.xz |
			tar -xJ -C "$dir" --strip-components=2 --occurrence=1 \
				linux-source-6.1/scripts/{checkpatch.pl,spelling.txt,const_structs.checkpatch} || true
		rm -f "$dir"/*.deb
		[ -s "$dir/checkpatch.pl" ] && [ -s "$dir/spelling.txt" ] && [ -s "$dir/const_structs.checkpatch" ] ||
			die "checkpatch.pl could not be taken from linux-source-6.1 $version"
		install -m 755 /dev/null "$dir/complete"
	fi
	ln -sfn "$dir" "$TOP/build/checkpatch"
}

mkdir -p "$TOP/build"
locked checkpatch fetch
cd "$TOP"
# --no-tree: we are not in a kernel tree. Ignored, with why:
#   LINUX_VERSION_CODE  a module built out of tree for three kernels must ask
#   FILE_PATH_CHANGES   there is no MAINTAINERS file to update
#   SPDX_LICENSE_TAG    khook.h has the uapi exception, which the 6.1 script takes only under include/uapi
git ls-files -co --exclude-standard 'kmod/*.c' 'kmod/*.h' 'tests/sim/kernel/*.c' 'tests/sim/kernel/*.h' |
	xargs perl build/checkpatch/checkpatch.pl --no-tree --terse --show-types --no-summary \
		--max-line-length=100 --ignore LINUX_VERSION_CODE,FILE_PATH_CHANGES,SPDX_LICENSE_TAG -f
