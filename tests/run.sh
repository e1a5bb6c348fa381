#!/usr/bin/env bash
# Builds Baton and runs its tests, all but the slow ones and the benchmarks.
# Needs Debian 12 and root or sudo: installs what .ci/packages lists and is
# missing. Writes to build/dev only. Ends with "N passed, N failed, N skipped".
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

jobs=$(nproc)
results=$PWD/build/dev/tests.xml
times=
timed() {
  local name=$1 start=$SECONDS status=0
  shift
  printf '\n== %s\n' "$name"
  "$@" || status=$?
  times+="$name $((SECONDS - start)) s, "
  return "$status"
}

timed packages .ci/install
rm -f "$results"
timed configure cmake --preset dev
timed build cmake --build --preset dev -j "$jobs"
status=0
timed tests ctest --preset all -j "$jobs" --output-junit "$results" || status=$?

printf '\ntime: %sall %d s\n' "$times" "$SECONDS"
.ci/count_tests "$results"
exit "$status"
