#!/usr/bin/env bash
# Builds Baton and serves deploy/demo from three processes on this machine: a
# controller and two stages that pass the residual stream over UCX. Then
# generates text from one prompt, prints it with timings, and stops everything.
# Needs Debian 12 and root or sudo. Writes to build/dev and a temporary folder.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

text='It is a truth universally acknowledged, that a single man'
ids=938,371,263,1990,502,77,1159,557,1932,739,787,16,343,263,265,282,297,552
baton=build/dev/baton
work=$(mktemp -d)
started=()

finish() {
  local status=$?
  trap - EXIT INT TERM
  if ((status != 0)); then
    tail -n 20 "$work"/*.log >&2 2>/dev/null || true
  fi
  # In the order started: the controller drains while its stages still run.
  for process in "${started[@]}"; do
    kill "$process" 2>/dev/null || true
    wait "$process" || true
  done
  rm -rf "$work"
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Starts baton in the background; its output goes to files of that name.
start() {
  local name=$1
  shift
  "$baton" "$@" >"$work/$name.out" 2>"$work/$name.log" </dev/null &
  started+=($!)
}
alive() {
  local process
  for process in "${started[@]}"; do
    kill -0 "$process" 2>/dev/null || return 1
  done
}
# Waits for a line of a process's output, a minute at most.
await() {
  local what=$1 file=$work/$2.out pattern=$3 tenths=0
  printf '%s ' "$what"
  until grep -qs "$pattern" "$file"; do
    if ((++tenths > 600)) || ! alive; then
      printf 'failed after %d.%d s\n' $((tenths / 10)) $((tenths % 10))
      exit 1
    fi
    ((tenths % 10)) || printf '.'
    sleep 0.1
  done
  printf 'after %d.%d s\n' $((tenths / 10)) $((tenths % 10))
}

echo '== packages'
.ci/install
echo '== build (takes minutes the first time)'
cmake --preset dev >/dev/null
cmake --build --preset dev --target baton -j "$(nproc)"

echo '== serve deploy/demo: a controller and the stages a and b'
start controller serve deploy/demo --config deploy/config/two-stages.yaml \
  --listen 127.0.0.1:0
await 'controller: listening' controller '^baton: listening on '
address=$(sed -n 's/^baton: listening on //p' "$work/controller.out")
start a stage --controller "$address" --name a --threads 1
start b stage --controller "$address" --name b --threads 1
await 'stages: joined, loaded and connected' controller '^baton: serving '
cat "$work"/*.out

echo '== generate'
printf '%s' "$text"
"$baton" generate --server "$address" --ids "$ids" --temperature 0 \
  --max-tokens 48 --tokenizer deploy/demo
echo '== stop'
