#!/usr/bin/env bash
# Starts `olmotrain train` on several ranks with Open MPI's mpirun.
set -euo pipefail
usage='scripts/launch_mpirun.sh [OPTION...] RUN.yaml [TRAIN OPTION...]
  scripts/launch_mpirun.sh -n 4 configs/smoke.yaml --set parallel.ep=2
  scripts/launch_mpirun.sh --hostfile hosts run.yaml --set parallel.pp=2 parallel.ep=8

Options, before the run file:
  -n N             ranks in all. Without it: one for each GPU of this machine, or the slots of the host file
  --hostfile FILE  one line for each machine, "NAME slots=RANKS". They need the same binary, data and run folder at the
                   same paths, and ssh from here without a password
  --per-node N     ranks on each machine; otherwise the slots of the first line of the host file, or N of -n
  --threads N      cores that each rank is bound to; otherwise the cores of this machine, shared out evenly
  --grace SECONDS  time to save when mpirun itself, not this script, gets a SIGTERM (mpirun kills after 1 second).
                   Twice that is also how long a job with a failed rank takes to end
  -x NAME          pass on this variable of the environment too (OLMOTRAIN_*, OMP_*, NCCL_*, ... are passed on anyway)
  --mpirun WORD    one more argument for mpirun; repeats
  --binary FILE    the program, otherwise build/olmotrain of this clone
  --print          print the command and stop

SIGTERM, SIGINT (Ctrl-C) and SIGUSR1 to this script mean: finish the step, save, stop. A second one at least five seconds
after the first ends the run at once.
Exit status: 0 done, 1 failure, 2 something for you to put right, 75 stopped on request after saving: start the same
command again and it goes on from there.'

fail() {
  printf 'launch_mpirun.sh: %s\n' "$1" >&2
  exit 2
}
number() { [[ $2 =~ ^[1-9][0-9]{0,5}$ ]] || fail "$1 needs a number from 1 on, not '$2'"; }

ranks='' hostfile='' per_node='' threads='' grace='' print=0 variables=() extra=()
binary=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")/build/olmotrain
while (($#)); do
  case $1 in
    -h | --help) echo "$usage"; exit 0 ;;
    --print) print=1; shift; continue ;;
    -n | -np | --hostfile | --per-node | --threads | --grace | -x | --mpirun | --binary)
      (($# > 1)) || fail "$1 needs a value; scripts/launch_mpirun.sh --help"
      ;;
    -*) fail "unknown option $1 (options of train go after the run file); scripts/launch_mpirun.sh --help" ;;
    *) break ;;
  esac
  case $1 in
    -n | -np) number "$1" "$2"; ranks=$2 ;;
    --hostfile) hostfile=$2 ;;
    --per-node) number "$1" "$2"; per_node=$2 ;;
    --threads) number "$1" "$2"; threads=$2 ;;
    --grace) number "$1" "$2"; grace=$2 ;;
    -x) variables+=("$2") ;;
    --mpirun) extra+=("$2") ;;
    --binary) binary=$2 ;;
  esac
  shift 2
done
(($#)) || fail 'no run file; scripts/launch_mpirun.sh --help'
[[ -r $1 ]] || fail "the run file '$1' cannot be read"
[[ -x $binary ]] || fail "no program at $binary; build it (scripts/run.sh does, or cmake --build build) or give --binary"
command -v mpirun >/dev/null || fail 'no mpirun here; install openmpi-bin'

# Ranks, and how many of them share this machine.
if [[ -n $hostfile ]]; then
  [[ -r $hostfile ]] || fail "the host file '$hostfile' cannot be read"
  if [[ -z $per_node ]]; then
    first=$(grep -m 1 -Ev '^[[:space:]]*(#|$)' "$hostfile") || fail "the host file '$hostfile' names no machine"
    [[ $first =~ slots[[:space:]]*=[[:space:]]*([1-9][0-9]*) ]] ||
      fail "'$first' of the host file says no slots=RANKS; add it, or give --per-node"
    per_node=${BASH_REMATCH[1]}
  fi
else
  if [[ -z $ranks ]]; then
    gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU') || true
    ((gpus)) || fail 'no GPU here to count; say how many ranks with -n'
    ranks=$gpus
  fi
  per_node=${per_node:-$ranks}
fi
if [[ -n $ranks ]] && ((per_node > ranks)); then per_node=$ranks; fi

# Cores of this machine that we may use; the others of a host file are taken to be the same.
cores=$(lscpu -p=CORE,SOCKET | grep -v '^#' | sort -u | wc -l)
allowed=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
if ((cores > allowed)); then cores=$allowed; fi

command=(mpirun)
if [[ -n $ranks ]]; then command+=(-n "$ranks"); fi
if [[ -n $hostfile ]]; then command+=(--hostfile "$hostfile"); fi
if [[ -z $threads ]] && ((per_node > cores)); then
  printf 'launch_mpirun.sh: %s ranks on %s cores: they share cores, and none is bound\n' "$per_node" "$cores" >&2
  command+=(--map-by "ppr:$per_node:node" --oversubscribe --bind-to none)
else
  command+=(--map-by "ppr:$per_node:node:PE=${threads:-$((cores / per_node))}" --bind-to core)
fi
if ((EUID == 0)); then command+=(--allow-run-as-root); fi
if [[ -n $grace ]]; then command+=(--mca odls_base_sigkill_timeout "$grace"); fi
while read -r name; do
  variables+=("$name")
done < <(compgen -e | grep -E '^(OLMOTRAIN|OMP|GOMP|DNNL|ONEDNN|NCCL|CUDA)_|^(PATH|LD_LIBRARY_PATH)$')
for name in "${variables[@]}"; do command+=(-x "$name"); done
command+=("${extra[@]}" "$binary" train "$@")

if ((print)); then
  printf '%q ' "${command[@]}"
  echo
  exit 0
fi

# mpirun answers a SIGTERM by killing the ranks a second later, but hands a SIGUSR1 on and waits. So it runs in a process
# group of its own, where a Ctrl-C does not reach it, and every request to stop becomes a SIGUSR1.
# shellcheck disable=SC2317  # called by the trap
stop() { signalled=1; kill -USR1 "$mpirun" 2>/dev/null || true; }
set -m
signalled=0
"${command[@]}" </dev/null &
mpirun=$!
trap stop TERM INT USR1
status=0
while :; do
  wait "$mpirun" && now=0 || now=$?
  if ((now != 127)); then status=$now; fi  # 127: it had ended when the signal came
  ((signalled)) || break                   # a trap ends `wait` before mpirun does
  signalled=0
done
if ((status == 75)); then
  echo 'launch_mpirun.sh: stopped on request after saving (75); the same command goes on from there' >&2
fi
exit "$status"
