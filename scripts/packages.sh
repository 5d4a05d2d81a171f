# Sourced by the other scripts: the distribution's packages that building, testing and the smoke run need, and how to
# get them. Debian 12 and Ubuntu 24.04 (with its component universe) call them the same.
# shellcheck shell=bash disable=SC2034

export LC_ALL=C.UTF-8

build_packages=(
  cmake g++ ninja-build pkgconf
  catch2 libcli11-dev libdnnl-dev libopenmpi-dev libpcre2-dev libspdlog-dev libxxhash-dev libyaml-cpp-dev libzstd-dev
  nlohmann-json3-dev openmpi-bin zlib1g-dev
)

# stage TEXT: one line that says what starts, and the seconds since the script began.
stage() { printf '\n== [%3d s] %s\n' "$SECONDS" "$1"; }

# fail TEXT: one line on standard error, exit 2.
fail() {
  printf '%s: %s\n' "$(basename "$0")" "$1" >&2
  exit 2
}

installed() { [[ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" == installed ]]; }

# need_packages NAME...: installs those that are missing; who is not root is told the line to run, exit 2.
need_packages() {
  command -v dpkg-query >/dev/null || fail "no dpkg here: install the equivalents of these Debian packages yourself, then build with cmake (see README.md): $*"
  local missing=() name
  for name in "$@"; do installed "$name" || missing+=("$name"); done
  ((${#missing[@]})) || return 0
  local install="apt-get install -y --no-install-recommends ${missing[*]}"
  if ((EUID != 0)); then
    printf 'sudo apt-get update && sudo %s\n' "$install"
    exit 2
  fi
  stage "Installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq && $install -qq >"${TMPDIR:-/tmp}/olmotrain-apt.log" 2>&1 </dev/null && return 0
  tail -n 5 "${TMPDIR:-/tmp}/olmotrain-apt.log" >&2
  fail "not installed: ${missing[*]}; Ubuntu has them in its component universe; scripts/run.sh --text FILE does without bible-kjv"
}
