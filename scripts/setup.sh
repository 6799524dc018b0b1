#!/usr/bin/env bash
# Installs what demi is built with: system packages by apt, LibTorch from its Python wheel. Asks nothing, does nothing twice.
set -euo pipefail
# shellcheck source=scripts/say.sh
. "$(dirname "${BASH_SOURCE[0]}")/say.sh"

usage() {
  cat <<'END'
scripts/setup.sh [options]
  --libtorch VERSION   the LibTorch to fetch (2.15.0; 2.11.0 or newer)
  --packages           only the system packages (what needs root)
  --no-packages        no system packages: they are there in some other way
  --no-libtorch        no LibTorch: you have one
Environment: DEMI_CACHE is where LibTorch is kept (~/.cache/demi); DEMI_PROGRESS_SECONDS is the time between two lines that say how
far a download is (5).
Exit codes: 0 everything is there, 1 something cannot be installed, 2 usage.
END
}

# The compiler and the build, then the libraries, then the images that the demonstration trains on.
packages=(
  g++ cmake ninja-build ccache
  libcli11-dev libfmt-dev nlohmann-json3-dev zlib1g-dev libcurl4-openssl-dev libarchive-dev libjpeg-dev libpng-dev
  libutf8proc-dev libmd-dev
  libgtest-dev libgmock-dev pkgconf
  dataset-fashion-mnist
)

version=2.15.0 want_packages=yes want_libtorch=yes
while [ $# -gt 0 ]; do
  case $1 in
    --libtorch)
      version=${2:-}
      [ -n "$version" ] || wrong_usage "--libtorch wants a version, such as 2.11.0"
      shift
      ;;
    --packages) want_libtorch=no ;;
    --no-packages) want_packages=no ;;
    --no-libtorch) want_libtorch=no ;;
    -h | --help)
      usage
      exit 0
      ;;
    *) wrong_usage "unknown option $1; scripts/setup.sh --help lists them" ;;
  esac
  shift
done
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || wrong_usage "--libtorch $version is no version; it reads like 2.11.0"
[ "$(printf '%s\n' 2.11.0 "$version" | sort -V | head -n 1)" = 2.11.0 ] ||
  wrong_usage "LibTorch $version is too old; demi needs 2.11.0 or newer"

progress_seconds=${DEMI_PROGRESS_SECONDS:-5}
[[ $progress_seconds =~ ^[0-9]*\.?[0-9]+$ && $progress_seconds =~ [1-9] ]] ||
  wrong_usage "DEMI_PROGRESS_SECONDS=$progress_seconds is no time in seconds above 0"

log=$(mktemp)
part=""
reporter=""
cleanup() {
  [ -z "$reporter" ] || kill "$reporter" 2>/dev/null || true
  rm -f "$log"
  [ -z "$part" ] || rm -rf "$part"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

# watched SAY_PROGRESS COMMAND...: runs the command with its words in $log. Meanwhile the function SAY_PROGRESS is called every few
# seconds. The command runs in the foreground, since bash lets a background one ignore Ctrl-C.
watched() {
  local say_progress=$1 status=0
  shift
  : >"$log"
  while kill -0 $$ 2>/dev/null; do
    # Waits without a child that would outlive the loop: nothing ever comes out of a pipe that is open for writing, too.
    read -r -t "$progress_seconds" <> <(:) || true
    "$say_progress" || true
  done &
  reporter=$!
  "$@" >"$log" 2>&1 </dev/null || status=$?
  kill "$reporter" 2>/dev/null || true
  wait "$reporter" 2>/dev/null || true
  reporter=""
  return "$status"
}

# failed WHAT: says why the command that wrote $log failed, as far as its words tell, and ends.
failed() {
  grep -vE '^(dl|pm)status:' "$log" | tail -n 8 | sed 's/^/    /' >&2 || true
  if grep -qi 'no space left\|not enough free space' "$log"; then
    die "$1 failed: the disk is full"
  elif grep -qiE 'temporary failure|could not resolve|failed to establish|connection (failed|refused|timed out|reset|aborted|broken)|network is unreachable|timed? ?out|unable to connect|retry\(' "$log"; then
    die "$1 failed: the network, or the package server, cannot be reached; run it again when it can"
  fi
  die "$1 failed; the lines above say why"
}

# missing_packages PACKAGE...: those that dpkg does not have installed.
missing_packages() {
  comm -23 <(printf '%s\n' "$@" | sort -u) \
    <(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "$@" 2>/dev/null | awk '$1 == "installed" { print $2 }' | sort -u)
}

# The last line that apt-get wrote to its status descriptor: "dlstatus:1:23.4:Retrieving file 3 of 60", "pmstatus:g++:45.1:Unpacking g++".
say_apt_progress() {
  local state kind percent what
  state=$(grep -E '^(dl|pm)status:' "$log" | tail -n 1)
  IFS=: read -r kind _ percent what <<<"$state"
  case $kind in
    dlstatus) say "apt-get downloads, ${percent%.*} %: $what" ;;
    pmstatus) say "apt-get installs, ${percent%.*} %: $what" ;;
    *) say "apt-get is at work" ;;
  esac
}

install_packages() {
  local missing root=()
  command -v dpkg-query >/dev/null || die "this is no Debian system: install the equivalents of '${packages[*]}' and pass --no-packages"
  mapfile -t missing < <(missing_packages "$@")
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" != 0 ]; then
    sudo -n true 2>/dev/null ||
      die "installing ${missing[*]} needs root, and there is no sudo without a password: run '${BASH_SOURCE[0]} --packages' as root once, then this again"
    root=(sudo -n)
  fi
  need_space /var 1500 "system packages"
  say "installing ${#missing[@]} system packages with apt-get: ${missing[*]}"
  local apt=("${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
  apt+=(-o APT::Status-Fd=1)  # sudo closes every descriptor above 2
  watched say_apt_progress "${apt[@]}" -o APT::Update::Error-Mode=any update || failed "apt-get update"
  watched say_apt_progress "${apt[@]}" install --no-install-recommends "${missing[@]}" || failed "apt-get install"
}

# megabytes FOLDER...: what the folders that exist hold. They may change meanwhile.
megabytes() { du -scb "$@" 2>/dev/null | awk 'END { print int($1 / 1e6) }' || true; }

# pip of Debian 12 has no progress that a program could read, but writes the size of each wheel before it fetches it, and its folders grow.
say_pip_progress() {
  local unpacked whole
  unpacked=$(megabytes "$part"/tmp/pip-target-*)
  if [ "$unpacked" -gt 1 ]; then
    say "unpacking LibTorch: $unpacked MB so far"
    return
  fi
  whole=$(sed -n 's/.*Downloading .*(\([0-9.]*\) \([kMG]B\))$/\1 \2/p' "$log" |
    awk '{ sum += $1 * ($2 == "GB" ? 1000 : $2 == "MB" ? 1 : 0.001) } END { printf "%.0f", sum }')
  if [ "$whole" = 0 ]; then
    say "pip asks for LibTorch"
  else
    say "fetching LibTorch: $(megabytes "$part"/tmp/pip-unpack-*) of $whole MB"
  fi
}

# pip_into FOLDER ARGUMENTS...
pip_into() {
  local folder=$1
  shift
  # pip unpacks under TMPDIR before it moves: the same disk, and removed with the rest.
  TMPDIR=$part/tmp watched say_pip_progress python3 -m pip install --no-cache-dir --no-compile --only-binary=:all: --progress-bar off \
    --disable-pip-version-check --no-warn-conflicts --target "$folder" "$@"
}

has_gpu() { [ -e /dev/nvidia0 ] || { command -v nvidia-smi && nvidia-smi -L; } >/dev/null 2>&1; }

# nvidia_requirements METADATA: the CUDA packages that the wheel names, without a GPU the two that libtorch_cpu needs to load.
nvidia_requirements() {
  local named
  named=$(sed -n 's/^Requires-Dist: \(\(cuda-toolkit\|nvidia-\)[^;]*\).*/\1/p' "$1" | tr -d ' ')
  if has_gpu; then
    printf '%s\n' "$named"
  else
    printf '%s\n' "$named" | sed -n 's/^cuda-toolkit\[.*\]/cuda-toolkit[cudart,cupti]/p'
  fi
}

# Into a folder beside it first, so that an interrupted download is never taken for a whole one.
fetch_libtorch() {
  local names
  need_space "$(dirname "$dir")" "$(has_gpu && echo 8000 || echo 1900)" "LibTorch"
  say "fetching LibTorch $version (0.5 GB to fetch, 1.2 GB on disk; with an NVIDIA GPU 2.7 GB more) into $dir"
  part=$dir.part
  rm -rf "$part"
  mkdir -p "$part/tmp" 2>"$log" || failed "making $part"
  pip_into "$part/new" --no-deps "torch==$version" || failed "fetching LibTorch $version with pip"
  mapfile -t names < <(nvidia_requirements "$part/new/torch-$version"*.dist-info/METADATA)
  if [ -n "${names[*]}" ]; then
    pip_into "$part/cuda" "${names[@]}" || failed "fetching LibTorch's CUDA libraries with pip"
    mv "$part/cuda/nvidia" "$part/cuda"/*.dist-info "$part/new/"
  fi
  [ -e "$part/new/torch/lib/libtorch_cpu.so" ] || die "the torch $version wheel holds no lib/libtorch_cpu.so"
  # The Python side is never used from C++.
  rm -rf "$part/new/torchgen" "$part/new/functorch" "$part/new/torch/lib/libtorch_python.so"
  find "$part/new" -name '*.py' -delete -o -name '*.pyi' -delete
  find "$part/new" -type d -empty -delete
  rm -rf "$dir"
  mv "$part/new" "$dir"
  rm -rf "$part"
  part=
}

# With a GPU the CUDA libraries belong to it.
libtorch_is_whole() {
  [ -e "$dir/torch/lib/libtorch_cpu.so" ] || return 1
  [ -e "$dir/torch/lib/libtorch_cuda.so" ] || return 0  # a wheel for CPUs, of an index of the user's
  ! has_gpu || compgen -G "$dir/nvidia/*/lib/libcublas.so.*" >/dev/null
}

install_libtorch() {
  local cache
  cache=$(dirname "$dir")
  ! libtorch_is_whole || return 0
  mkdir -p "$cache" 2>"$log" || failed "making $cache"
  exec 9>"$cache/.lock" || die "cannot write to $cache"
  flock -n 9 || { say "waiting for another setup.sh that fetches LibTorch" && flock 9; }
  ! libtorch_is_whole || return 0
  has_pip || die "python3 with pip is needed to fetch LibTorch"
  fetch_libtorch
}

has_pip() { python3 -m pip --version >/dev/null 2>&1; }

dir=$(cache_dir)/libtorch-$version
if [ "$want_libtorch" = yes ] && ! libtorch_is_whole && ! has_pip; then
  packages+=(python3 python3-pip)
fi
[ "$want_packages" = no ] || install_packages "${packages[@]}"
[ "$want_libtorch" = no ] || install_libtorch
