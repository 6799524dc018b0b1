# shellcheck shell=bash
# Plain lines on stderr, for the scripts that source this file.
say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
die() {
  say "$@"
  exit 1
}
wrong_usage() {
  say "$@"
  exit 2
}

# free_mib DIR: free space where DIR is, or will be.
free_mib() {
  local dir=$1
  while [ ! -e "$dir" ]; do dir=$(dirname "$dir"); done
  df -Pk "$dir" | awk 'NR == 2 { print int($4 / 1024) }'
}

# need_space DIR MIB WHAT
need_space() {
  local free
  free=$(free_mib "$1")
  [ "$free" -ge "$2" ] || die "no disk space for $3: $2 MiB needed at $1, $free MiB free"
}

# cache_dir: where downloads are kept (cmake/LibTorch.cmake and the program look in the same place). An empty variable is none. A relative
# DEMI_CACHE would be another folder wherever one stands; a relative XDG_CACHE_HOME does not count, as its specification says.
cache_dir() {
  local home=${XDG_CACHE_HOME:-}
  [[ $home == /* ]] || home=${HOME:+$HOME/.cache}
  [ -n "${DEMI_CACHE:-$home}" ] || die "no folder for what is fetched: neither DEMI_CACHE nor HOME is set; set DEMI_CACHE to an absolute path"
  [[ ${DEMI_CACHE:-/} == /* ]] || die "DEMI_CACHE=$DEMI_CACHE is a relative path; set it to an absolute one, such as $PWD/$DEMI_CACHE"
  printf '%s\n' "${DEMI_CACHE:-$home/demi}"
}

# compilers_at_once: DEMI_JOBS, or as many as there are cores and memory for. A torch source file takes up to 2 GB to compile.
compilers_at_once() {
  local jobs=${DEMI_JOBS:-}
  if [ -z "$jobs" ]; then
    jobs=$(awk '/^MemAvailable/ { print int($2 / 2097152) }' /proc/meminfo)
    [ "$jobs" -le "$(nproc)" ] || jobs=$(nproc)
    [ "$jobs" -ge 1 ] || jobs=1
  fi
  printf '%s\n' "$jobs"
}

# files_of_depfile: the files behind the target of a compiler's rule for make, a line each. The rule comes from stdin.
files_of_depfile() { sed -e '1s/^[^:]*://' -e 's/\\$//' -e 's/\\ /\x01/g' | tr -s ' ' '\n' | sed '/^$/d' | tr '\001' ' '; }
