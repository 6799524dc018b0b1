#!/usr/bin/env bash
# The wheel and the tarball of scripts/package.sh: what is in them, that they work, and what they say if something is missing:
# package_test.sh SOURCE BUILD
set -euo pipefail
source=$1 build=$2
libtorch=$(sed -n 's/^set(_demi_built_with_library_dir "\(.*\)")/\1/p' "$build/demiConfig.cmake")
libtorch=$(dirname "$libtorch")
work=$(mktemp -d "$build/package-test.XXXX")
trap 'rm -rf "$work"' EXIT
fail() {
  echo "FAILED: $*"
  exit 1
}
export DEMI_LIBTORCH=$libtorch
# Without the CUDA kernels, which nvcc takes minutes for.
"$source/scripts/package.sh" "$work/dist" -DDEMI_CUDA=OFF || {
  [ -x "$source/build/package_env/bin/auditwheel" ] || { echo "SKIPPED: the tools for packages cannot be fetched"; exit 77; }
  fail "scripts/package.sh"
}
unset DEMI_LIBTORCH
[ -z "$(find "$work/dist" -name '*.part')" ] || fail "a file that is not whole was left"
mkdir "$work/opt"
tar -C "$work/opt" -xf "$work"/dist/demi-*.tar.xz
prefix=$(echo "$work"/opt/demi-*)

# No name of this machine's folders.
! grep -raFl -e "$source" -e "$build" -e "$libtorch" "$prefix" || fail "these files name folders of this machine"
# What the libraries export is demi's.
for library in "$prefix"/lib/libdemi.so "$prefix"/lib/libdemi_lab.so; do
  nm -D --defined-only --demangle "$library" | cut -d' ' -f3- >"$work/names"
  [ "$(wc -l <"$work/names")" -gt 500 ] || fail "$library exports $(wc -l <"$work/names") names"
  sed -E 's/^(typeinfo|typeinfo name|vtable|VTT|guard variable|construction vtable) for //; s/^(non-virtual|virtual) thunk to //' "$work/names" |
    grep -vE '^([a-z_:A-Z0-9<>*&, ]+ )?demi::' >"$work/others" && { head -n 5 "$work/others"; fail "$library exports names that are not demi's"; }
done
# It needs what every Linux with this glibc has, what it brings, and LibTorch.
find "$prefix" -type f | while read -r file; do
  { readelf -d "$file" 2>/dev/null || true; } | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'  # most are no libraries
done | sort -u | while read -r needed; do
  case $needed in
    libtorch*.so | libc10*.so | libgomp.so.1 | libdemi*.so*) ;;
    lib[cm].so.6 | libdl.so.2 | librt.so.1 | libpthread.so.0 | libresolv.so.2 | libgcc_s.so.1 | libstdc++.so.6 | ld-linux*.so.*) ;;
    libz.so.1 | libcuda.so.1 | libcudart.so.*) ;;
    *) [ -e "$prefix/lib/bundled/$needed" ] || fail "$needed is needed, and not in the package" ;;
  esac
done

"$source/scripts/try_package.sh" --libtorch "$(dirname "$libtorch")" "$work/dist"

# says STATUS TEXT COMMAND...: it ends with this status and says the text.
says() {
  local expected=$1 text=$2 status=0
  shift 2
  "$@" >"$work/log" 2>&1 || status=$?
  [ "$status" = "$expected" ] || { cat "$work/log"; fail "$* ends with $status"; }
  tr -s '\n ' ' ' <"$work/log" | grep -qF "$text" || { cat "$work/log"; fail "$* does not say: $text"; }
}
# headers FOLDER VERSION: what tells a LibTorch's version.
headers() {
  local numbers
  IFS=. read -ra numbers <<<"$2"
  mkdir -p "$1/lib" "$1/include/ATen" "$1/include/torch/headeronly"
  touch "$1/lib/libtorch_cpu.so" "$1/include/ATen/ATen.h"
  printf '#define TORCH_VERSION_MAJOR %s\n#define TORCH_VERSION_MINOR %s\n#define TORCH_VERSION_PATCH %s\n' "${numbers[@]}" \
    >"$1/include/torch/headeronly/version.h"
}
version=${prefix##*+torch} version=${version%%-*}
headers "$work/another" 2.99.0
demi=$prefix/bin/demi
says 2 "there is no LibTorch at $work/opt/torch or $work/opt/libtorch" "$demi" --version
says 2 "which has no lib/libtorch_cpu.so" env DEMI_LIBTORCH="$work" "$demi" --version
says 2 "demi was compiled against LibTorch $version, and $work/another is 2.99" env DEMI_LIBTORCH="$work/another" "$demi" --version
says 0 "demi 0" env DEMI_LIBTORCH="$libtorch" "$demi" --version
says 2 "nor in LD_LIBRARY_PATH" env LD_LIBRARY_PATH=/usr/lib:/nowhere "$demi" --version
says 0 "demi 0" env LD_LIBRARY_PATH="/nowhere:$libtorch/lib" "$demi" --version
ln -s "$demi" "$work/link"
says 0 "demi 0" env DEMI_LIBTORCH="$libtorch" "$work/link" --version
cp -r "$source/tests/consumer/find_package" "$work/project"
cp "$source/tests/consumer/consumer.cpp" "$work/project/main.cpp"
configure() { env -u DEMI_CACHE HOME=/nonexistent cmake -S "$work/project" -B "$work/project/build" "-DCMAKE_PREFIX_PATH=$prefix" "$@"; }
says 1 "No LibTorch at" configure
says 1 "$work/opt/demi-" configure
ln -s "$work/another" "$work/opt/torch"
says 1 "demi was built with LibTorch $version" configure --fresh
rm "$work/opt/torch"
mv "$prefix/libexec/demi" "$work/moved"
says 2 "libexec/demi is missing" env DEMI_LIBTORCH="$libtorch" "$demi" --version
mv "$work/moved" "$prefix/libexec/demi"
rm "$prefix"/lib/libdemi.so
says 1 "libdemi.so" configure --fresh "-DDEMI_LIBTORCH=$libtorch"

# pkg-config finds LibTorch under both of its names.
for name in torch libtorch; do
  for flag in --cflags --libs; do
    PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config "$flag" demi | grep -qE "/\.\./$name/(include|lib)( |$)" || fail "demi.pc does not look in $name: $flag"
  done
done
for file in share/man/man1/demi.1 share/bash-completion/completions/demi share/demi/python/demi_export.py share/doc/demi/licences.md share/doc/demi/licences/libcli11-dev.txt; do
  [ -s "$prefix/$file" ] || fail "$file is not in the package"
done

# The wheel in a Python whose torch is missing, of another version, or half there.
python3 -m venv "$work/venv"
site=$(echo "$work"/venv/lib/python3*/site-packages)
"$work/venv/bin/pip" install -q --disable-pip-version-check --no-deps "$work"/dist/*.whl
demi=$work/venv/bin/demi
says 2 "this Python has no torch" "$demi" --version
cp -r "$work/another" "$site/torch"
says 2 "not installed as a package" "$demi" --version
mkdir "$site/torch-2.99.0.dist-info"
printf 'Metadata-Version: 2.1\nName: torch\nVersion: 2.99.0\n' >"$site/torch-2.99.0.dist-info/METADATA"
says 2 "demi was compiled against LibTorch $version, and this Python has torch 2.99.0" "$demi" --version
says 2 "this Python has torch 2.99.0" "$work/venv/bin/python" -m demi_torch --libtorch
sed -i "s/2.99.0/$version.9/" "$site/torch-2.99.0.dist-info/METADATA"
rm "$site/torch/lib/libtorch_cpu.so"
says 2 "has no lib/libtorch_cpu.so" "$demi" --version
says 2 "python -m demi_torch --cmake-prefix" "$work/venv/bin/python" -m demi_torch
for module in export checkpoint; do
  cmp -s "$source/scripts/demi_$module.py" "$site/demi_torch/$module.py" || fail "demi_torch.$module is not scripts/demi_$module.py"
done
