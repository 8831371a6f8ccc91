# SPDX-License-Identifier: Apache-2.0
# Shared by the scripts in this folder; sourced, not run.

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
CACHE=${SPOTGPU_CACHE:-$HOME/.cache/spotgpu}
ROOMS=$TOP:$TOP/kmod:$TOP/probes:$TOP/agent:$TOP/runtime:$TOP/scheduler
: "${STARTED:=$(date +%s)}"
export STARTED

# say TEXT: one line of progress with the time since the first command began.
say() {
	printf '[%4ds] %s\n' "$(($(date +%s) - STARTED))" "$*" >&2
}

# die TEXT: the one clear error, status 2 as everywhere in spotgpu.
die() {
	printf 'error: %s\n' "$*" >&2
	exit 2
}

# locked NAME COMMAND...: two runs at once share one cache, so each build of it is exclusive.
locked() {
	local name=$1
	shift
	mkdir -p "$CACHE"
	(
		flock 9
		"$@"
	) 9>"$CACHE/$name.lock"
}
