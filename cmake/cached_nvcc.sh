#!/usr/bin/env bash
# nvcc behind a cache, as ccache is for the host compiler: cached_nvcc.sh DEPFILE NVCC ARGUMENT... -o OUTPUT SOURCE... [OBJECT...]
# OUTPUT is copied from the cache folder if the same compilers made it from the same arguments and contents, in any checkout. DEPFILE
# gets what the sources include. Without a cache folder that can be used, nvcc compiles and a line says why.
#   CCACHE_RECACHE   in the environment: compile, and keep the result in place of an older one
#   CCACHE_DISABLE   neither look into the cache nor keep anything
set -euo pipefail
checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/say.sh
. "$checkout/scripts/say.sh"
depfile=$1 nvcc=$2
shift 2
arguments=("$@") output='' host=c++ flags=() sources=() linked=()
while [ $# -gt 0 ]; do
  case $1 in
    -o) output=$2 && shift ;;
    -ccbin) host=$2 && shift ;;
    *.cu | *.cpp) sources+=("$1") ;;
    *.o | *.a) linked+=("$1") ;;
    *) flags+=("$1") ;;
  esac
  shift
done
name=${output##*/}

# A file that is included for one architecture alone is not listed, neither here nor by nvcc -MD.
included=()
for source in "${sources[@]}"; do
  listed=$("$nvcc" "${flags[@]}" -ccbin "$host" -M "$source")
  mapfile -t -O "${#included[@]}" included < <(files_of_depfile <<<"$listed")
done

# key_now: what the result is kept by. Names of files below the checkout are relative, those of objects do not count.
key_now() {
  local text
  text=$(
    "$nvcc" --version && "$host" --version && printf '%s\n' "${NVCC_PREPEND_FLAGS:-}" "${NVCC_APPEND_FLAGS:-}" "${flags[@]}" &&
      sha256sum -- "${BASH_SOURCE[0]}" "${included[@]}" && { [ ${#linked[@]} = 0 ] || sha256sum -- "${linked[@]}" | cut -d ' ' -f 1; }
  ) || return
  sha256sum <<<"${text//"$checkout"/.}" | cut -d ' ' -f 1
}

# take_kept: copies what is kept by the key to OUTPUT. An entry's name ends in the hash of its content.
take_kept() {
  local entry
  for entry in "$folder/$key"-*; do
    [ -e "$entry" ] || continue
    if cp "$entry" "$output.part" && [ "$(sha256sum <"$output.part")" = "${entry##*-}  -" ]; then
      mv -f "$output.part" "$output"
      touch "$entry" 2>/dev/null || true  # used today
      return 0
    fi
    rm -f "$output.part"
    say "$entry is damaged: $name is compiled anew"
    rm -f "$entry" || true
  done
  return 1
}

# keep: nothing if a file changed while nvcc read it. What was not used for 30 days is removed.
keep() {
  local now part=$folder/part.$key.$$ entry
  now=$(key_now) && [ "$now" = "$key" ] || return 0
  entry=$folder/$key-$(sha256sum <"$output" | cut -d ' ' -f 1)
  cp "$output" "$part" && rm -f "$folder/$key"-* && mv -f "$part" "$entry" || { rm -f "$part" && return 1; }
  find "$folder" -type f -mtime +30 -delete || true
}

# A home that does not exist is not made.
folder=''
if [ -z "${CCACHE_DISABLE+set}" ]; then
  if cache=$(cache_dir 2>/dev/null) && { [ -n "${DEMI_CACHE:-}${XDG_CACHE_HOME:-}" ] || [ -d "$HOME" ]; } && mkdir -p "$cache/nvcc" 2>/dev/null; then
    folder=$cache/nvcc
  else
    say "there is no cache folder ${cache:+$cache/nvcc and none can be made}: $name is compiled and not kept"
  fi
fi
key=''
[ -z "$folder" ] || key=$(key_now)
if [ -z "$key" ] || [ -n "${CCACHE_RECACHE+set}" ] || ! take_kept; then
  "$nvcc" "${arguments[@]}"
  [ -z "$key" ] || keep || say "$folder cannot be written to: $name is not kept"
fi
{ printf '%s:' "$output" && printf ' \\\n  %s' "${included[@]// /\\ }" && echo; } >"$depfile"
