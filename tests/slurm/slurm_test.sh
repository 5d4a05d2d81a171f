#!/usr/bin/env bash
# Trains on two ranks through sbatch and `srun --mpi=pmix` in a real Slurm of one node: stopped by signal, queued again
# (by the site, and by the script where the site does not), resumed to the end with the very steps of a straight run.
#   slurm_test.sh PROGRAM SOURCE_FOLDER
# Exit status: 0 passed, 1 failed, 77 skipped, with the reason on the last line.
set -uo pipefail
program=$(readlink -f "$1") source_folder=$(readlink -f "$2")
source "$source_folder/tests/slurm/cluster.sh"
export LC_ALL=C.UTF-8

cluster_needs
cluster_start RequeueExit=70-80
cd "$scratch/work" || exit 1

# Tokens below 96 that follow a rule, u16.
for ((i = 0, token = 1; i < 4096; ++i)); do
  ((i % 7)) && token=$(((token * 5 + 7) % 96)) || token=$((i / 7 % 96))
  printf -v code '\\x%02x\\x00' "$token"
  printf '%b' "$code"
done >tokens.npy
cat >run.yaml <<'END'
run: {steps: 1500, seed: 3, threads: 1}
model:
  d_model: 32
  n_layers: 3
  n_heads: 4
  n_kv_heads: 2
  head_dim: 8
  vocab_size: 96
  dense: {layers: 1, hidden: 48}
  moe: {experts: 8, top_k: 2, hidden: 16, shared_hidden: 24}
data: {train: [tokens.npy], sequence_length: 16, dtype: uint16}
batch: {rows: 8, micro_rows: 2}
optim: {lr: 5e-3}
schedule: {kind: wsd, warmup: 10, decay: 100}
checkpoint: {every: 500, keep_last: 1}
END

# submit NAME [SETTING...]: a job that trains in the folder NAME; its log is NAME.log.
submit() {
  local name=$1
  shift
  sbatch --parsable --ntasks-per-node=2 --time=10 --output="$name.log" --export="ALL,OLMOTRAIN=$program,OMP_NUM_THREADS=1" \
    "$source_folder/scripts/launch_slurm.sbatch" run.yaml --set "run.folder=$name" parallel.ep=2 "$@" ||
    fail "sbatch refuses $name"
}
steps_of() { if [[ -f $1/metrics.jsonl ]]; then wc -l <"$1/metrics.jsonl"; else echo 0; fi; }
has_steps() { (($(steps_of "$1") >= $2)); }
ended() { [[ $(state_of "$1") =~ ^(COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL)$ ]]; }
restarted() { (($(field "$1" Restarts) > 0)); }
completed() {
  wait_for 120 "job $2 to end" ended "$1"
  [[ $(state_of "$1") == COMPLETED ]] || fail "$2 ended as $(state_of "$1"), exit $(field "$1" ExitCode)"
}
losses() { sed -E 's/.*"train\/CE loss": ?([^,}]+).*/\1/' "$1/metrics.jsonl"; }
same_run() {
  [[ $(steps_of "$1") == 1500 ]] || fail "$1 has $(steps_of "$1") steps of 1500"
  diff <(losses straight) <(losses "$1") >/dev/null || fail "$1 took other steps than the straight run"
  local shard
  for shard in straight/step001500/*.safetensors; do
    cmp "$shard" "$1/step001500/${shard##*/}" || fail "$1 ended with other weights or moments"
  done
}
# Starts a run, asks it to stop in the middle, and sees it queued again and finished.
stopped_and_resumed() {
  local name=$1 job
  job=$(submit "$name") || exit 1
  wait_for 60 "50 steps of $name" has_steps "$name" 50
  scancel --signal=USR1 "$job"
  wait_for 60 "$name to be queued again" restarted "$job"
  [[ -e $name/latest ]] || fail "$name was queued again without a checkpoint"
  completed "$job" "$name"
  [[ $(field "$job" Restarts) == 1 ]] || fail "$name was started again $(field "$job" Restarts) times"
  same_run "$name"
}

echo 'a straight run'
completed "$(submit straight)" straight
[[ $(losses straight | sort -u | wc -l) -gt 100 ]] || fail 'the losses of the straight run cannot be read'

echo 'stopped, queued again by the site, resumed'
stopped_and_resumed site

echo 'a user error is not queued again'
job=$(submit wrong model.d_modle=3) || exit 1
wait_for 60 'the wrong run to end' ended "$job"
[[ $(field "$job" ExitCode) == 2:0 && $(field "$job" Restarts) == 0 ]] ||
  fail "the wrong run ended as $(state_of "$job"), exit $(field "$job" ExitCode), $(field "$job" Restarts) restarts"
grep -q d_modle wrong.log || fail 'the log of the wrong run does not name the key'

echo 'ranks that nothing connects are refused'
srun --mpi=none -n 2 "$program" train run.yaml --set run.folder=apart >apart.log 2>&1
status=$?
if ((status != 2)) || ! grep -q 'mpi=pmix' apart.log || [[ -e apart/metrics.jsonl ]]; then
  fail "two processes without PMI ended with $status"
fi

echo 'cancelled: saves, and is not queued again'
job=$(submit cancelled) || exit 1
wait_for 60 '50 steps of cancelled' has_steps cancelled 50
scancel "$job"
wait_for 60 'the cancelled run to end' ended "$job"
[[ $(state_of "$job") == CANCELLED && -e cancelled/latest ]] || fail "the cancelled run is $(state_of "$job")"

echo 'stopped, queued again by the script, resumed'
write_conf
scontrol reconfigure || fail 'slurmctld does not take the new configuration'
stopped_and_resumed script
grep -q 'queueing job' script.log || fail 'the script did not queue the job again'
echo passed
