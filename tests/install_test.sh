#!/usr/bin/env bash
# What is installed starts for another user, wherever LibTorch is: install_test.sh BUILD CMAKE
set -euo pipefail
build=$1 cmake=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
fail() {
  echo "FAILED: $*"
  exit 1
}
install_with() {
  (umask 022 && "$cmake" "-DCMAKE_INSTALL_PREFIX=$work/prefix" "-DDEMI_INSTALL_LIBTORCH=$1" -P "$build/cmake_install.cmake") >"$work/log" ||
    fail "it does not install"
}
libraries() { find "$work/prefix" -name 'libtorch_cpu.so*'; }

install_with ON
grep -qE 'Copying LibTorch [0-9.]+ \([0-9]+ MB\)' "$work/log" || fail "it does not say what it copies, and how large that is"
copied=$(libraries)
[ -n "$copied" ] || fail "no LibTorch was copied"
folder=$(dirname "$copied")
built_with=$(sed -n 's/^set(_demi_built_with "\(.*\)")/\1/p' "$build/demiConfig.cmake")
grep -q "^LibTorch $built_with, copied from" "$folder/libtorch.txt" || fail "libtorch.txt does not name $built_with"
ldd "$work/prefix/bin/demi" >"$work/loaded"
loaded=$(sed -n 's/.*libtorch_cpu.so => \([^ ]*\) .*/\1/p' "$work/loaded")
[ "$(realpath "$loaded")" = "$(realpath "$copied")" ] || fail "the program does not load the copy: $(grep torch "$work/loaded")"
# Nothing of what it loads lies where LibTorch was installed.
torch=$(sed -n 's/^set(_demi_built_with_library_dir "\(.*\)")/\1/p' "$build/demiConfig.cmake")
! grep -qF "=> $torch/" "$work/loaded" || fail "a library of LibTorch was left out: $(grep -F "=> $torch/" "$work/loaded")"
for written in man/man1/demi.1 bash-completion/completions/demi zsh/site-functions/_demi fish/vendor_completions.d/demi.fish; do
  [ -s "$work/prefix/share/$written" ] || fail "share/$written is not installed"
done
for installed in demi/python/demi_export.py demi/python/demi_checkpoint.py doc/demi/licences.md; do
  [ -s "$work/prefix/share/$installed" ] || fail "share/$installed is not installed"
done
for package in libfmt-dev nlohmann-json3-dev libcli11-dev; do
  [ ! -e "/usr/share/doc/$package/copyright" ] || [ -s "$work/prefix/share/doc/demi/licences/$package.txt" ] || fail "the licence of $package is not installed"
done
if [ "$(id -u)" = 0 ]; then
  # As somebody who may not read the installer's home.
  setpriv --reuid=65534 --regid=65534 --clear-groups env -i HOME=/ PATH=/usr/bin:/bin "$work/prefix/bin/demi" --version ||
    fail "another user cannot start it"
else
  echo "SKIPPED for another user: only root can become one"
fi

# A LibTorch that stays where it is takes the place of the copy.
install_with OFF
[ -z "$(libraries)" ] || fail "the copy of an earlier install is still there"
[ ! -e "$folder/libtorch.txt" ] || fail "libtorch.txt is still there"
"$work/prefix/bin/demi" --version

# Another LibTorch since the build: its libraries are not those that demi was compiled for.
sed 's/set(_demi_torch_version "[^"]*")/set(_demi_torch_version "2.0.0")/' "$build/cmake_install.cmake" >"$work/cmake_install.cmake"
! "$cmake" "-DCMAKE_INSTALL_PREFIX=$work/other" -DDEMI_INSTALL_LIBTORCH=ON -P "$work/cmake_install.cmake" >"$work/log" 2>&1 ||
  fail "another LibTorch was copied"
tr -s '\n ' ' ' <"$work/log" | grep -q "demi was built with LibTorch 2.0.0, and .* is $built_with now" || { cat "$work/log"; fail "the refusal does not say why"; }
