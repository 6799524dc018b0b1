#!/usr/bin/env bash
# Installs the wheel and the tarball of scripts/package.sh, uses both, and removes them: scripts/try_package.sh [options] FOLDER
# FOLDER holds both. It runs where it is started: on this machine, or in a chroot or container that has this file, the folder and
# tests/consumer beside it. Nothing outside a temporary folder is changed, but for --packages. It prints how long each part took.
#   --packages       installs g++, cmake, make, pkgconf, python3-venv and xz-utils with apt-get first, as root
#   --libtorch DIR   a folder with torch/ (and nvidia/, torch-*.dist-info), as scripts/setup.sh and pip make it. Without it LibTorch is
#                    fetched with pip: 0.5 GB, the CPU's part alone.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/say.sh
. "$here/say.sh"

packages=no libtorch=""
while [ $# -gt 0 ]; do
  case $1 in
    --packages) packages=yes ;;
    --libtorch)
      [ -e "${2:-}/torch/lib/libtorch_cpu.so" ] || wrong_usage "--libtorch wants a folder with torch/lib/libtorch_cpu.so"
      libtorch=$(cd "$2" && pwd)
      shift
      ;;
    -*) wrong_usage "unknown option $1" ;;
    *) break ;;
  esac
  shift
done
[ -d "${1:-}" ] || wrong_usage "which folder holds the wheel and the tarball?"
dist=$(cd "$1" && pwd)
one_of() {
  if [ $# != 1 ] || [ ! -e "$1" ]; then die "$dist holds no $(basename "$1"), or several: a folder with one wheel and one tarball is wanted"; fi
  echo "$1"
}
wheel=$(one_of "$dist"/demi_torch-*.whl)
tarball=$(one_of "$dist"/demi-*.tar.xz)
minor=${wheel##*+torch} minor=${minor%%-*}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HOME=$work
unset DEMI_LIBTORCH DEMI_CACHE LD_LIBRARY_PATH CMAKE_PREFIX_PATH PKG_CONFIG_PATH
fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# timed WHAT COMMAND...: the seconds that it took, and its words if it fails.
timed() {
  local what=$1 start=$EPOCHREALTIME
  shift
  "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "$what"; }
  took=$(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
  total=$(awk -v a="${total:-0}" -v b="$took" 'BEGIN { print a + b }')
  printf '%6s s  %s\n' "$took" "$what"
}
begin() { total=0 && printf '\n%s\n' "$1"; }
end() { printf '%6.1f s  %s\n' "$total" "$1"; }

# says TEXT COMMAND...: it fails, and the text is among what it says.
says() {
  local text=$1
  shift
  ! "$@" >"$work/log" 2>&1 || fail "$* was not refused"
  tr -s '\n ' ' ' <"$work/log" | grep -qF "$text" || { cat "$work/log" >&2; fail "$* does not say: $text"; }
}

# uses HOW DEMI OPTION...: the program trains and compares; a project that find_package(demi OPTION...) leads to is built and trains.
uses() {
  local how=$1 demi=$2
  shift 2
  timed "$how: the program's first training step" "$demi" train loss-scaling --steps 1 --run-dir "$work/runs"
  end "from the file to the first training step"
  timed "$how: demi compare" "$demi" compare loss-scaling --epochs 1 --run-dir "$work/runs"
  rm -rf "$work/project" "$work/build"
  cp -r "$here/../tests/consumer/find_package" "$work/project"
  cp "$here/../tests/consumer/consumer.cpp" "$work/project/main.cpp"
  timed "$how: find_package(demi)" cmake -S "$work/project" -B "$work/build" -DCMAKE_BUILD_TYPE=Release "$@"
  timed "$how: a project's program is compiled" cmake --build "$work/build"
  timed "$how: it trains" "$work/build/mine"
  ! ldd "$work/build/mine" | grep 'not found' || fail "$how: libraries of the program are not found"
}

clean_binaries() {
  local file
  find "$1" -type f | while read -r file; do
    head -c 4 "$file" | grep -q ELF || continue
    ! readelf -d "$file" | grep -E 'R(UN)?PATH' | grep -oE '\[.*\]' | tr -d '[]' | tr ':' '\n' | grep -v '^\$ORIGIN' ||
      fail "$file looks for libraries outside its own folder"
  done
}

if [ "$packages" = yes ]; then
  begin "system packages"
  export DEBIAN_FRONTEND=noninteractive
  timed "apt-get" sh -c 'apt-get -q update && apt-get -q -y install --no-install-recommends g++ cmake make pkgconf python3-venv binutils xz-utils'
fi

begin "Python and LibTorch"
timed "python3 -m venv" python3 -m venv "$work/venv"
site=$(echo "$work"/venv/lib/python3*/site-packages)
if [ -n "$libtorch" ]; then
  ln -s "$libtorch"/* "$site"
else
  timed "pip install --no-deps torch (0.5 GB), with the CPU's two libraries of CUDA" \
    "$work/venv/bin/pip" install --no-cache-dir --no-deps "torch==$minor.*"
  mapfile -t needed < <(sed -n 's/^Requires-Dist: \(cuda-toolkit\)\[[^]]*\]\([^;]*\).*/\1[cudart,cupti]\2/p' "$site"/torch-*.dist-info/METADATA | tr -d ' ')
  timed "pip install ${needed[*]}" "$work/venv/bin/pip" install --no-cache-dir "${needed[@]}"
fi
(cd "$work/venv" && find . ! -type d | sort) >"$work/before"

begin "the wheel $(basename "$wheel")"
"$work/venv/bin/pip" install --no-deps "$wheel" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "the wheel does not install"; }
"$work/venv/bin/pip" uninstall -q -y demi-torch
(cd "$work/venv" && find . ! -type d | sort) | diff "$work/before" - || fail "the wheel is removed, and something is left"
# An older version with a file that the new one does not have.
python3 - "$wheel" "$work" <<'PYTHON'
import sys, zipfile
wheel, folder = sys.argv[1:]
name = wheel.split("/")[-1]
version = name.split("-")[1]
with zipfile.ZipFile(wheel) as new, zipfile.ZipFile(f"{folder}/{name.replace(version, '0.0.9')}", "w") as old:
    for entry in new.infolist():
        data = new.read(entry)
        if entry.filename.endswith(("/METADATA", "/RECORD")):
            data = data.replace(version.encode(), b"0.0.9")
        if entry.filename.endswith("/RECORD"):
            data += b"demi_torch/include/demi/old.h,,\n"
        entry.filename = entry.filename.replace(version, "0.0.9")
        old.writestr(entry, data)
    old.writestr("demi_torch/include/demi/old.h", "")
PYTHON
"$work/venv/bin/pip" install -q --no-deps "$work"/demi_torch-0.0.9-*.whl
[ -e "$site/demi_torch/include/demi/old.h" ] || fail "the older wheel did not install"
timed "pip install, over an older version" "$work/venv/bin/pip" install --no-deps "$wheel"
[ ! -e "$site/demi_torch/include/demi/old.h" ] || fail "a file of the older version is left"
for file in man/man1/demi.1 bash-completion/completions/demi zsh/site-functions/_demi fish/vendor_completions.d/demi.fish; do
  [ -s "$work/venv/share/$file" ] || fail "the wheel has no share/$file in the environment's prefix, where man and shells look"
done
prefix=$("$work/venv/bin/python" -m demi_torch --cmake-prefix)
clean_binaries "$prefix"
uses wheel "$work/venv/bin/demi" "-DCMAKE_PREFIX_PATH=$prefix"
cp -r "$here/../tests/consumer/pkg_config" "$work/with_make"
cp "$here/../tests/consumer/consumer.cpp" "$work/with_make/main.cpp"
export PKG_CONFIG_PATH
PKG_CONFIG_PATH=$("$work/venv/bin/python" -m demi_torch --pkg-config)
timed "wheel: pkg-config and make" make -C "$work/with_make" CXXFLAGS=-O1
timed "wheel: it trains" "$work/with_make/mine"
"$work/venv/bin/pip" uninstall -q -y demi-torch
(cd "$work/venv" && find . ! -type d | sort | grep -v __pycache__) | diff <(grep -v __pycache__ "$work/before") - || fail "the wheel is removed, and something is left"

begin "the tarball $(basename "$tarball")"
mkdir "$work/opt"
timed "tar -x" tar -C "$work/opt" -xf "$tarball"
prefix=$(echo "$work"/opt/demi-*)
says "there is no LibTorch at" "$prefix/bin/demi" --version
ln -s "$site/torch" "$work/opt/libtorch"
uses tarball "$prefix/bin/demi" "-DCMAKE_PREFIX_PATH=$prefix"
rm "$work/opt/libtorch"
DEMI_LIBTORCH=$site/torch timed "tarball: DEMI_LIBTORCH names LibTorch" "$prefix/bin/demi" --version --verbose
rm -r "$prefix"
[ -z "$(ls -A "$work/opt")" ] || fail "the tarball's folder is removed, and something is left"
