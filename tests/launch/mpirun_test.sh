#!/usr/bin/env bash
# scripts/launch_mpirun.sh: refusals, the command it makes, and a run on two ranks that a SIGTERM to the script stops and
# the same command finishes.
#   mpirun_test.sh PROGRAM SOURCE_FOLDER
set -uo pipefail
program=$(readlink -f "$1") launch=$(readlink -f "$2")/scripts/launch_mpirun.sh
export LC_ALL=C.UTF-8 OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive

folder=$(mktemp -d "${TMPDIR:-/tmp}/olmotrain-launch-XXXXXX")
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
fail() {
  echo "FAILED: $1"
  cat ./*.log 2>/dev/null
  exit 1
}
# refused PART ARGUMENT...: status 2 and one line that has PART.
refused() {
  local part=$1 said status
  shift
  said=$("$launch" "$@" 2>&1)
  status=$?
  [[ $status == 2 && $said == *"$part"* && $said != *$'\n'* ]] || fail "$* gave $status: $said"
}

: >run.yaml
printf '# two machines\nleft slots=3\nright slots=3\n' >hosts
printf 'left\n' >bare
refused 'no run file'
refused 'no run file' -n 2
refused '-n needs a number' -n two run.yaml
refused '--hostfile needs a value' --hostfile
refused 'unknown option --set' --set a=b run.yaml
refused "'absent.yaml' cannot be read" -n 2 absent.yaml
refused "'nowhere' cannot be read" --binary "$program" --hostfile nowhere run.yaml
refused 'slots=RANKS' --binary "$program" --hostfile bare run.yaml
refused 'no program at' --binary ./absent -n 2 run.yaml
"$launch" --help | grep -q -e '--hostfile FILE' || fail 'no help'

# made PART ARGUMENT...: the command has PART.
made() {
  local part=$1 command
  shift
  command=$("$launch" --print --binary "$program" "$@" 2>/dev/null) || fail "--print $* failed"
  [[ $command == *"$part"* ]] || fail "$* makes: $command"
}
export OLMOTRAIN_SOMETHING=1
made ' -x OLMOTRAIN_SOMETHING ' -n 1 run.yaml
made ' -n 1 --map-by ppr:1:node:PE=' -n 1 run.yaml
made 'ppr:3:node:PE=5 ' --hostfile hosts --threads 5 run.yaml
made '--hostfile hosts ' --hostfile hosts run.yaml
made ' --bind-to none' -n 4096 run.yaml
made ' --mca odls_base_sigkill_timeout 9 ' -n 2 --grace 9 run.yaml
made " $program train run.yaml --set a=b" -n 2 run.yaml --set a=b

for ((i = 0; i < 2048; ++i)); do
  printf '%b' "$(printf '\\x%02x\\x00' $(((i * i + i / 96) % 96)))"
done >tokens.npy
cat >run.yaml <<'END'
run: {steps: 4000, seed: 3, folder: run}
model:
  d_model: 32
  n_layers: 2
  n_heads: 2
  n_kv_heads: 1
  head_dim: 16
  vocab_size: 96
  dense: {layers: 1, hidden: 48}
  moe: {experts: 4, top_k: 2, hidden: 16, shared_hidden: 16}
data: {train: [tokens.npy], sequence_length: 16, dtype: uint16}
batch: {rows: 4, micro_rows: 2}
checkpoint: {every: 100000, keep_last: 1}
END
steps() { if [[ -f run/metrics.jsonl ]]; then wc -l <run/metrics.jsonl; else echo 0; fi; }

"$launch" -n 2 --binary "$program" run.yaml >first.log 2>&1 &
script=$!
for ((i = 0; i < 300 && $(steps) < 20; ++i)); do sleep 0.1; done
(($(steps) >= 20)) || fail 'no steps in 30 seconds'
kill -TERM "$script"
wait "$script"
status=$?
[[ $status == 75 ]] || fail "stopped with $status"
stopped=$(steps)
((stopped < 4000)) || fail 'the run was over before it could be stopped'
[[ -e run/latest ]] || fail 'stopped without a checkpoint'
timeout 100 "$launch" -n 2 --binary "$program" run.yaml --set "run.steps=$((stopped + 20))" >second.log 2>&1
status=$?
[[ $status == 0 ]] || fail "went on, and ended with $status"
[[ $(steps) == $((stopped + 20)) ]] || fail "ended after step $(steps) instead of $((stopped + 20))"
grep -q "resuming after step $stopped" second.log || fail 'the second run did not go on from the first'
echo passed
