#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what `make test` and `make demo` need on a fresh Debian 12: apt packages, then a venv in the cache.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

missing_packages() {
	local name
	while read -r name; do
		[ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null)" = installed ] || echo "$name"
	done <"$TOP/tests/tools/apt-packages.txt"
}

install_packages() {
	local missing
	mapfile -t missing < <(missing_packages)
	[ ${#missing[@]} -gt 0 ] || return 0
	[ "$(id -u)" = 0 ] || die "apt packages are missing (${missing[*]}): run as root, or install them first"
	say "apt: installing ${#missing[@]} packages: ${missing[*]}"
	apt-get update -qq || die "apt-get update failed: the machine's package mirror is not reachable"
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >"$CACHE/apt.log" 2>&1 ||
		die "apt-get install failed, see $CACHE/apt.log"
}

# The venv is keyed by what it is made from, and made beside its place, so that a broken one is never seen.
install_venv() {
	local key venv
	key=$(cat "$TOP/constraints.txt" "$TOP/tests/tools/requirements.txt" <(/usr/bin/python3 --version) | sha256sum | cut -c1-16)
	venv=$CACHE/venv/$key
	if [ ! -e "$venv/complete" ]; then
		say "venv: installing Python packages"
		rm -rf "$venv"
		/usr/bin/python3 -m venv --system-site-packages "$venv"
		"$venv/bin/pip" install -q --disable-pip-version-check -c "$TOP/constraints.txt" \
			-r "$TOP/tests/tools/requirements.txt"
		touch "$venv/complete"
		say "venv: ready"
	fi
	mkdir -p "$TOP/build"
	ln -sfn "$venv" "$TOP/build/venv"
}

mkdir -p "$CACHE"
locked apt install_packages
locked venv install_venv
