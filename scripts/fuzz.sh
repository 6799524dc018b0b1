#!/usr/bin/env bash
# Fuzzes the readers of a checkpoint's files with libFuzzer under AddressSanitizer and UndefinedBehaviorSanitizer.
# scripts/fuzz.sh [SECONDS]   600 unless given. Needs clang++ with libFuzzer (apt-get install clang libclang-rt-14-dev).
# Starts from tests/fuzz/corpus, works in build/fuzz, and prints how many inputs it tried. Exit codes: 0 nothing was found,
# 1 an input made the readers fail (build/fuzz/crash-*) or it cannot be built. New inputs that are worth keeping:
#   build/fuzz/checkpoint_fuzz -merge=1 tests/fuzz/corpus build/fuzz/corpus
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/say.sh
. scripts/say.sh

seconds=${1:-600}
[[ $seconds =~ ^[0-9]+$ ]] || wrong_usage "for how many seconds?"
command -v clang++ >/dev/null || die "clang++ is missing: apt-get install clang"
torch=${DEMI_LIBTORCH:-$(cache_dir)/libtorch-2.15.0/torch}
[ -e "$torch/lib/libtorch_cpu.so" ] || die "no LibTorch at $torch: run scripts/setup.sh or set DEMI_LIBTORCH"

build=build/fuzz
mkdir -p $build/corpus
sources=(tests/fuzz/checkpoint_fuzz.cpp cmake/fmt.cpp demi/core/{crc32c,error,huge_pages}.cpp
  demi/checkpoint/{input_file,manifest,safetensors_header,safetensors_read}.cpp)
objects=()
for source in "${sources[@]}"; do
  object=$build/$(basename "$source" .cpp).o
  objects+=("$object")
  if [ ! "$object" -nt "$source" ]; then
    say "compiling $source"
    clang++ -std=c++20 -O1 -g -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize=vptr -I. -isystem "$torch/include" \
      -isystem "$torch/include/torch/csrc/api/include" -c "$source" -o "$object"
  fi
done
nvidia=$(printf -- '-Wl,-rpath-link,%s ' "$torch"/../nvidia/*/lib)
# shellcheck disable=SC2086
clang++ -fsanitize=fuzzer,address,undefined -fno-sanitize=vptr "${objects[@]}" -o $build/checkpoint_fuzz \
  -L"$torch/lib" -ltorch_cpu -lc10 -Wl,-rpath,"$torch/lib" $nvidia
say "fuzzing for $seconds seconds"
cd $build
./checkpoint_fuzz -max_total_time="$seconds" -max_len=4096 -timeout=10 -rss_limit_mb=4096 -malloc_limit_mb=256 \
  -print_final_stats=1 corpus ../../tests/fuzz/corpus
