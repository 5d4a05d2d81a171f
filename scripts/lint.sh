#!/usr/bin/env bash
# Style of the sources that git knows.
#   scripts/lint.sh              clang-format: lists what it would change
#   scripts/lint.sh --fix        clang-format: changes it
#   scripts/lint.sh --tidy [FILE...]   clang-tidy on these files, or on every one (slow)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/packages.sh

mapfile -t sources < <(git ls-files '*.cpp' '*.h')
case ${1:-} in
  '')
    need_packages clang-format
    clang-format --dry-run -Werror "${sources[@]}"
    echo "${#sources[@]} files are formatted as .clang-format says"
    ;;
  --fix)
    need_packages clang-format
    clang-format -i "${sources[@]}"
    ;;
  --tidy)
    need_packages "${build_packages[@]}" clang-tidy libomp-dev
    shift
    cmake --preset release -Wno-dev --log-level=WARNING
    (($#)) || set -- "${sources[@]}"
    printf '%s\n' "$@" | grep '\.cpp$' | xargs -P "$(nproc)" -n 1 clang-tidy -p build --quiet
    ;;
  *)
    echo 'usage: scripts/lint.sh [--fix | --tidy [FILE...]]' >&2
    exit 2
    ;;
esac
