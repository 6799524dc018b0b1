#!/usr/bin/env bash
# Whether each symbol that a plugin leaves to others is in a library that it names: plugin_links_test.sh PLUGIN
# The linker lets a library refer to what is nowhere, and a machine without a driver never opens the plugin. Libraries of NVIDIA's that
# are not on this machine are left out, and so are the symbols that are LibTorch's to find there. Exit codes: 0 yes, 1 no, 77 no tools.
set -euo pipefail
plugin=$1
command -v nm ldd >/dev/null || exit 77
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# names FILE OPTION: of its dynamic symbols, without versions.
names() { nm -D "$2" "$1" | awk '{ print $NF }' | sed 's/@.*//'; }
failures=0
fail() {
  echo "FAILED: $1"
  failures=1
}

nm -D --undefined-only "$plugin" | awk '$1 == "U" { print $2 }' | sed 's/@.*//' | sort -u >"$work/taken"
needed=(libtorch_cuda.so)
! c++filt <"$work/taken" | grep 'c10::cuda::' >/dev/null || needed+=(libc10_cuda.so)
for library in "${needed[@]}"; do
  readelf -d "$plugin" | grep -q "NEEDED.*\[$library\]" || fail "$plugin does not name $library"
done
ldd "$plugin" | awk '$3 ~ /^\// { print $3 } $1 ~ /^\// { print $1 }' >"$work/libraries"
grep -q '/libcudart\.so' "$work/libraries" || { echo "skipped: no CUDA runtime is beside LibTorch" && exit 77; }
while read -r library; do names "$library" --defined-only; done <"$work/libraries" | sort -u >"$work/defined"
[ -s "$work/taken" ] || fail "$plugin takes nothing from anybody"
nowhere=$(comm -23 "$work/taken" "$work/defined" | c++filt)
[ -z "$nowhere" ] || fail "in none of the libraries that $plugin names: $nowhere"
entry=demi_$(basename "$plugin" .so | sed 's/^libdemi_//')_plugin
[ "$(names "$plugin" --defined-only | grep -v '^_Z')" = "$entry" ] || fail "$plugin exports other names than $entry"

[ "$failures" -eq 0 ] && echo "$(wc -l <"$work/taken") symbols, each in one of $(wc -l <"$work/libraries") libraries"
