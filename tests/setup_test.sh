#!/usr/bin/env bash
# What scripts/setup.sh says while packages and LibTorch are fetched: setup_test.sh SOURCE
# Programs of the names apt-get, dpkg-query, sudo and python3 stand in for the real ones and wait until it has said how far they are.
set -euo pipefail
source=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

# program NAME: its lines come from stdin.
program() {
  { echo '#!/usr/bin/env bash' && cat; } >"$work/bin/$1"
  chmod +x "$work/bin/$1"
}
mkdir "$work/bin"
# until_said TEXT: setup.sh has said it. A minute at most: then the test says what it did not say.
program until_said <<END
for ((i = 0; i < 600; ++i)); do
  grep -qs "\$1" "$work/said" && exit
  sleep 0.1
done
END
program dpkg-query <<<'exit 1'
program sudo <<<'shift; "$@"'
program nvidia-smi <<<'exit 1'
program apt-get <<'END'
echo "Reading package lists..."
if [[ $* == *"Status-Fd=1"* ]]; then
  echo "dlstatus:1:23.4500:Retrieving file 3 of 60"
  until_said "downloads, 23 %"
  echo "pmstatus:g++:45.1234:Unpacking g++ (amd64)"
  until_said "installs, 45 %"
fi
[ -z "${APT_FAILS:-}" ] || { echo "E: Temporary failure resolving"; exit 100; }
END
program python3 <<'END'
[[ $* != *--version* ]] || exit 0
echo "Collecting torch==2.15.0"
echo "  Downloading torch-2.15.0-cp311-cp311-manylinux_2_28_x86_64.whl (3.0 MB)"
wheel=$TMPDIR/pip-unpack-a
mkdir "$wheel"
head -c 1000000 /dev/zero >"$wheel/torch.whl"
until_said "1 of 3 MB"
[ -z "${PIP_FAILS:-}" ] || { echo "ERROR: No space left on device"; exit 1; }
unpacked=$TMPDIR/pip-target-a
mkdir -p "$unpacked/torch/lib" "$unpacked/torch-2.15.0.dist-info"
head -c 7000000 /dev/zero >"$unpacked/torch/lib/libtorch_cpu.so"
touch "$unpacked/torch-2.15.0.dist-info/METADATA"
until_said "7 MB so far"
while [ "$1" != --target ]; do shift; done
mv "$unpacked" "$2"
END

# setup CODE [NAME=VALUE...]: runs it on an empty cache; its words are in $said.
setup() {
  local code=$1 seen=0
  shift
  rm -rf "$work/cache"
  env "$@" PATH="$work/bin:$PATH" DEMI_CACHE="$work/cache" DEMI_PROGRESS_SECONDS=0.1 "$source/scripts/setup.sh" >"$work/said" 2>&1 || seen=$?
  said=$(cat "$work/said")
  [ "$seen" = "$code" ] || failed "exit code $seen, expected $code"
  [[ $said != *[$'\001'-$'\011\013'-$'\037']* ]] || failed "control characters"
}
failed() {
  echo "FAILED (line ${BASH_LINENO[1]}): $1, in:" && echo "$said"
  failures=$((failures + 1))
}
says() { [[ $said == *"$1"* ]] || failed "it does not say '$1'"; }
does_not_say() { [[ $said != *"$1"* ]] || failed "it says '$1'"; }

setup 0
says "setup.sh: apt-get downloads, 23 %: Retrieving file 3 of 60"
says "setup.sh: apt-get installs, 45 %: Unpacking g++ (amd64)"
says "setup.sh: fetching LibTorch: 1 of 3 MB"
says "setup.sh: unpacking LibTorch: 7 MB so far"

setup 1 APT_FAILS=yes
says "apt-get update failed: the network, or the package server, cannot be reached"
does_not_say pmstatus

setup 1 PIP_FAILS=yes
says "fetching LibTorch 2.15.0 with pip failed: the disk is full"

[ "$failures" -eq 0 ] && echo "all as expected"
