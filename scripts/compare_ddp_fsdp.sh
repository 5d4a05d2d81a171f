#!/usr/bin/env bash
# Measures data parallelism with experts that stay on their ranks against FSDP, which gathers every block for each
# micro-batch: speed, bytes, and waiting for communication, in one table.
set -euo pipefail
usage='scripts/compare_ddp_fsdp.sh [OPTION...]
  -n N           ranks, each with one thread and, where there are as many cores, bound to one. Default: 2
  --config FILE  the shape, in place of configs/bench/moe128.yaml
  --few FILE     the shape with few experts, which FSDP must not be slow at, in place of configs/bench/moe8.yaml
  --steps K      measured steps, the best of which counts. Default: 2
  --micro M      micro-batches of a step on each rank. Default: 8
  --binary FILE  measure this program; otherwise build/olmotrain of this clone is built
The table (columns: docs/bench.md) compares runs of the same tokens. On two cores it takes about 15 minutes; fewer
micro-batches are faster, and make FSDP look better. Exit status: 0 done; 1 a run failed.'

caller=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/packages.sh

number() { [[ $2 =~ ^[1-9][0-9]{0,5}$ ]] || fail "$1 needs a number from 1 on, not '$2'"; }
file() {
  [[ $2 == /* ]] && path=$2 || path=$caller/$2
  [[ -r $path ]] || fail "$1: '$2' cannot be read"
}

ranks=2 steps=2 micro=8 many=configs/bench/moe128.yaml few=configs/bench/moe8.yaml binary=''
while (($#)); do
  case $1 in
    -h | --help) echo "$usage"; exit 0 ;;
    -n | --config | --few | --steps | --micro | --binary) (($# > 1)) || fail "$1 needs a value; --help explains" ;;
    *) fail "unknown argument $1; scripts/compare_ddp_fsdp.sh --help" ;;
  esac
  case $1 in
    -n) number "$1" "$2"; ranks=$2 ;;
    --config) file "$1" "$2"; many=$path ;;
    --few) file "$1" "$2"; few=$path ;;
    --steps) number "$1" "$2"; steps=$2 ;;
    --micro) number "$1" "$2"; micro=$2 ;;
    --binary) file "$1" "$2"; binary=$path ;;
  esac
  shift 2
done
((ranks > 1)) || fail '-n needs 2 ranks or more: one rank has nobody to send to'
command -v mpirun >/dev/null || fail 'no mpirun here; install openmpi-bin'

if [[ -z $binary ]]; then
  need_packages "${build_packages[@]}"
  stage 'Building build/olmotrain'
  cmake --preset release -Wno-dev --log-level=WARNING
  cmake --build build --target olmotrain -j "$(nproc)"
  binary=build/olmotrain
fi

cores=$(lscpu -p=CORE,SOCKET | grep -v '^#' | sort -u | wc -l)
allowed=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
if ((cores > allowed)); then cores=$allowed; fi
launch=(mpirun -np "$ranks")
if ((EUID == 0)); then launch+=(--allow-run-as-root); fi
if ((ranks <= cores)); then
  launch+=(--map-by core --bind-to core)
else
  printf 'compare_ddp_fsdp.sh: %s ranks on %s cores: figures are of ranks that share cores\n' "$ranks" "$cores" >&2
  launch+=(--oversubscribe --bind-to none)
  export OMP_WAIT_POLICY=passive
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# key FILE NAME: the value of a key of a run file, as the program resolves it.
key() { "$binary" config "$1" | awk -v name="$2" '$1 == name ":" { print $2; exit }'; }

# measure NAME CONFIG KEY=VALUE...: one run of `olmotrain bench`, on one rank with all threads when NAME is "one rank".
failed=0
measure() {
  local name=$1 config=$2 out="$work/out.json" rows
  shift 2
  rows=$((ranks * micro * $(key "$config" micro_rows)))
  local command=("${launch[@]}" "$binary" bench "$config" --json --steps "$steps" --set "batch.rows=$rows")
  if [[ $name == 'one rank' ]]; then
    command=("$binary" bench "$config" --json --steps "$steps" --set "batch.rows=$rows" "run.threads=$ranks")
  else
    command+=(run.threads=1)
  fi
  if ! "${command[@]}" "$@" >"$out" 2>"$work/err"; then
    printf '%-22s failed: %s\n' "$name" "$(grep -m 1 . "$work/err")"
    failed=1
    return
  fi
  # The first DDP run of a shape is what the others are compared with.
  awk -v name="$name" -v base="$work/base" '
    /"(communication|waiting|operators)": \[/ { section = $1 }
    /^  \]/ { section = "" }
    { value = $2; gsub(/[",]/, "", value) }
    section == "" && $1 == "\"tokens_per_second\":" { speed = value }
    section == "" && $1 == "\"share_of_peak\":" { share = value }
    section == "\"communication\":" && $1 == "\"bytes\":" { bytes += value }
    section == "\"waiting\":" && $1 == "\"group\":" { group = value }
    section == "\"waiting\":" && $1 == "\"operation\":" { operation = value }
    section == "\"waiting\":" && $1 == "\"seconds\":" {
      waited += value
      if (value + 0 >= 5e-5) waits = waits sprintf("%s%s %s %.1f", waits == "" ? "" : ", ", group, operation, 1e3 * value)
    }
    END {
      if (speed == "") exit 1
      if ((getline first < base) <= 0) { first = speed; print speed > base }
      printf "%-22s %9.0f %7.2f %7.1f%% %10.1f %9.1f   %s\n", name, speed, speed / first, 100 * share, bytes / 1048576, 1e3 * waited, waits
    }' "$out" || { printf '%-22s failed: no figures in its output\n' "$name"; failed=1; }
}

# compare CONFIG TITLE RUN...: a table; each run is "NAME|KEY=VALUE ...".
compare() {
  local config=$1 run settings
  stage "$2"
  rm -f "$work/base"
  printf '%-22s %9s %7s %8s %10s %9s   %s\n' '' tokens/s ratio 'of peak' 'MiB sent' 'ms waited' 'of which'
  for run in "${@:3}"; do
    read -ra settings <<<"${run#*|}"
    measure "${run%%|*}" "$config" "${settings[@]}"
  done
}

stages=() # of a pipeline, as far as the blocks go round
if ((ranks <= $(key "$many" n_layers))); then stages=("PP|parallel.pp=$ranks"); fi
compare "$many" "$many: $(key "$many" experts) experts, $ranks ranks, $micro micro-batches" \
  "DDP + EP|parallel.ep=$ranks" "DDP + EP rowwise|parallel.ep=$ranks parallel.expert_path=rowwise" 'DDP|' \
  'FSDP|parallel.strategy=fsdp' "${stages[@]}" 'one rank|'
compare "$few" "$few: $(key "$few" experts) experts, $ranks ranks, $micro micro-batches" \
  'DDP|' 'FSDP|parallel.strategy=fsdp' 'one rank|'
echo
echo 'ratio: tokens/s over the first line; MiB sent and ms waited: of rank 0 in a step'
exit "$failed"
