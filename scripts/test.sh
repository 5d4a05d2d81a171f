#!/usr/bin/env bash
# Builds and runs the tests; ends with CTest's summary.
set -euo pipefail
usage='scripts/test.sh [--all | --sanitize | golden DIR]
  (nothing)    every test but the slow ones, in build/
  --all        the slow ones too
  --sanitize   the fast ones with AddressSanitizer and UndefinedBehaviorSanitizer, in build-sanitize/
  golden DIR   the golden suite on the files of DIR (their format: docs/testing.md)'

caller=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/packages.sh

mode=${1:-}
case $mode in
  '' | --all | --sanitize) ;;
  golden)
    folder=${2:-}
    [[ $folder == /* ]] || folder=$caller/$folder
    [[ -n ${2:-} && -d $folder ]] || fail "golden needs the folder of the cases, not '${2:-}'"
    ;;
  -h | --help) echo "$usage"; exit 0 ;;
  *) fail "unknown argument $mode; scripts/test.sh --help" ;;
esac

need_packages "${build_packages[@]}"

preset=release build=build target=all
case $mode in
  --sanitize) preset=sanitize build=build-sanitize ;;
  golden) target=golden_suite ;;
esac
stage "Building $build/"
cmake --preset "$preset" -Wno-dev --log-level=WARNING
cmake --build "$build" --target "$target" -j "$(nproc)"

if [[ $mode == golden ]]; then
  stage "Golden suite on $folder"
  exec "$build/golden_suite" "$folder"
fi

labels=()
case $mode in
  '') labels=(-LE slow) ;;
  --sanitize)
    labels=(-L fast)
    export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1
    export UBSAN_OPTIONS=print_stacktrace=1
    ;;
esac
stage 'Running the tests'
# Tests run side by side, each with a few threads: waiting threads must not spin.
OMP_WAIT_POLICY=passive ctest --test-dir "$build" --output-on-failure -j "$(nproc)" "${labels[@]}"
