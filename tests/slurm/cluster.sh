# Sourced by the tests here: a Slurm of one node in a scratch folder, with its own munge, ports and state, so that it
# touches no other one. Needs root, as slurmd starts the jobs of any user.
# shellcheck shell=bash

# skip REASON: ends the test as skipped (CTest's SKIP_RETURN_CODE).
skip() {
  echo "skipped: $1"
  exit 77
}

cluster_needs() {
  ((EUID == 0)) || skip 'a Slurm can be started by root only'
  local program
  for program in munged slurmctld slurmd sbatch srun scancel scontrol; do
    PATH=$PATH:/usr/sbin command -v "$program" >/dev/null || skip "no $program here: apt-get install slurm-wlm munge"
  done
  compgen -G '/usr/lib/*/slurm*/mpi_pmix*.so' >/dev/null || skip 'this Slurm has no pmix plugin'
  (($(nproc) >= 2)) || skip 'two ranks need two CPUs'
}

# wait_for SECONDS WHAT COMMAND...: polls until the command succeeds; otherwise says so and fails the test.
wait_for() {
  local end=$((SECONDS + $1)) what=$2
  shift 2
  until "$@"; do
    ((SECONDS < end)) || fail "waited in vain for $what"
    sleep 0.3
  done
}

fail() {
  echo "FAILED: $1"
  tail -n 6 "$scratch"/*.log 2>/dev/null
  tail -n 20 "$scratch"/work/*.log 2>/dev/null
  exit 1
}

free_port() {
  local port
  while :; do
    port=$((20000 + RANDOM % 20000))
    (: <>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "$port"; return; }
  done
}

# write_conf [LINE...]: slurm.conf, with further lines.
write_conf() {
  cat >"$SLURM_CONF" <<END
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$control_port
SlurmdPort=$node_port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$scratch/munge.socket,cred_expire=5
StateSaveLocation=$scratch/state
SlurmdSpoolDir=$scratch/spool
SlurmctldPidFile=$scratch/slurmctld.pid
SlurmdPidFile=$scratch/slurmd.pid
SlurmctldLogFile=$scratch/slurmctld.log
SlurmdLogFile=$scratch/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
SchedulerParameters=sched_interval=2
ReturnToService=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
$(printf '%s\n' "$@")
END
}

# Starts the cluster; `scratch` is its folder, and is gone when the test ends, with every process of it.
cluster_start() {
  export PATH=$PATH:/usr/sbin
  scratch=$(mktemp -d "${TMPDIR:-/tmp}/olmotrain-slurm-XXXXXX")
  trap cluster_stop EXIT
  export SLURM_CONF=$scratch/slurm.conf
  host=$(hostname -s) control_port=$(free_port) node_port=$(free_port)
  mkdir "$scratch"/{state,spool,work}
  dd if=/dev/urandom of="$scratch/munge.key" bs=128 count=1 status=none
  chmod 600 "$scratch/munge.key"
  munged --force --socket="$scratch/munge.socket" --key-file="$scratch/munge.key" --pid-file="$scratch/munged.pid" \
    --log-file="$scratch/munged.log" --seed-file="$scratch/munge.seed" || fail 'munged does not start'
  write_conf "$@"
  slurmctld || fail 'slurmctld does not start'
  slurmd || fail 'slurmd does not start'
  wait_for 30 'an idle node' node_is_idle
}

node_is_idle() { [[ $(sinfo --noheader --format=%t 2>/dev/null) == idle ]]; }

cluster_stop() {
  local job pid
  for job in $(squeue --noheader --format=%A 2>/dev/null); do scancel --signal=KILL --full "$job"; scancel "$job"; done
  for pid in slurmd slurmctld munged; do
    [[ -s $scratch/$pid.pid ]] || continue
    read -r pid <"$scratch/$pid.pid"
    kill "$pid" 2>/dev/null
    for _ in {1..50}; do
      kill -0 "$pid" 2>/dev/null || break
      sleep 0.1
    done
    kill -9 "$pid" 2>/dev/null
  done
  rm -rf "$scratch"
}

# state_of JOB, and field JOB NAME of `scontrol show job`.
field() { scontrol --oneliner show job "$1" | tr ' ' '\n' | sed -n "s/^$2=//p" | head -n 1; }
state_of() { field "$1" JobState; }
is_state() { [[ $(state_of "$1") == "$2" ]]; }
