#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make check: every static check, each named with its time; all are run, the first failure is not the last word.
set -uo pipefail
. "$(dirname "$0")/lib.sh"
cd "$TOP"
export PATH=$TOP/build/venv/bin:$PATH PYTHONPATH=$ROOMS
failed=()

check() {
	local name=$1
	shift
	say "check: $name"
	"$@" || failed+=("$name")
}

kernel_c() {
	git ls-files -co --exclude-standard 'kmod/*.c' 'kmod/*.h' 'tests/sim/kernel/*.c' 'tests/sim/kernel/*.h'
}

kernel_c_formatted() {
	kernel_c | xargs clang-format --style=file:kmod/.clang-format --dry-run --Werror
}

# Every file that can carry a comment says its licence in its first three lines.
spdx() {
	local file bad=0
	while read -r file; do
		[ -s "$file" ] || continue
		head -n 3 "$file" | grep -q SPDX-License-Identifier || {
			echo "$file: no SPDX-License-Identifier in its first three lines"
			bad=1
		}
	done < <(git ls-files -co --exclude-standard '*.py' '*.c' '*.h' '*.sh' '*.S' '*Makefile' '*Kbuild' '*.proto' '*.toml' '.ci/run' 'tests/hw/*')
	return $bad
}

check "SPDX lines" spdx
check "ruff" ruff check -q .
check "ruff format" ruff format -q --check .
check "mypy --strict" mypy --no-error-summary spotgpu kmod/spotgpu_khook probes/spotgpu_probes agent/spotgpu_agent \
	runtime/spotgpu_runtime scheduler/spotgpu_scheduler tests tests/hw/trace_ioctls
check "import-linter" lint-imports
check "clang-format" kernel_c_formatted
check "checkpatch" tests/tools/checkpatch.sh
check "W=1 and sparse on every kernel" python tests/vm/build.py --check

if [ ${#failed[@]} -gt 0 ]; then
	say "check: FAILED: ${failed[*]}"
	exit 1
fi
say "check: all passed"
