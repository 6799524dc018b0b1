#!/usr/bin/env bash
# Fuzzes the readers of other programs' files with libFuzzer under AddressSanitizer and UndefinedBehaviorSanitizer.
# scripts/fuzz.sh [SECONDS [MODULE...]]   60 seconds for each reader unless given; the modules: core checkpoint imported tokens report data
#   huggingface (which needs build/release), all of them unless given. Needs clang++ with libFuzzer (apt-get install clang
#   libclang-rt-14-dev).
# A module's readers stand in its fuzz_testing.h, the inputs from which they start in tests/fuzz/corpus/READER. Each unit test tries these
# inputs and some thousand that are made of them (demi/core/fuzz_testing.h), those of lab/recipes too. Works in build/fuzz, and prints how
# many inputs it tried. Exit codes: 0 nothing was found, 1 an input made a reader fail (build/fuzz/READER-crash-*) or it cannot be built.
# New inputs that are worth keeping:
#   DEMI_FUZZ_TARGET=READER build/fuzz/MODULE_fuzz -merge=1 tests/fuzz/corpus/READER build/fuzz/READER
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/say.sh
. scripts/say.sh

seconds=${1:-60}
[[ $seconds =~ ^[0-9]+$ ]] || wrong_usage "for how many seconds?"
modules=("${@:2}")
[ ${#modules[@]} -gt 0 ] || modules=(core checkpoint imported tokens report data huggingface)
command -v clang++ >/dev/null || die "clang++ is missing: apt-get install clang"
torch=${DEMI_LIBTORCH:-$(cache_dir)/libtorch-2.15.0/torch}
[ -e "$torch/lib/libtorch_cpu.so" ] || die "no LibTorch at $torch: run scripts/setup.sh or set DEMI_LIBTORCH"

build=build/fuzz
mkdir -p $build
flags=(-std=c++20 -O1 -g -ffunction-sections -fdata-sections -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize=vptr
  -DDEMI_HAVE_PNG -DDEMI_HAVE_JPEG -DDEMI_VERSION='"0"' -I. -isystem "$torch/include" -isystem "$torch/include/torch/csrc/api/include")

# What the readers of a module are made of; of a folder's files only what they call is linked.
core=(cmake/fmt.cpp demi/core/{error,json}.cpp)
files=(demi/core/{atomic_file,crc32,crc32c,descriptor,huge_pages}.cpp demi/checkpoint/input_file.cpp)
safetensors=(demi/checkpoint/{content_checksum,folder,manifest,run_id,safetensors_header,safetensors_read}.cpp)
prepare() {
  folder=lab/$1 libraries=()
  case $1 in
    core) folder=demi/core sources=() ;;
    checkpoint) folder=demi/checkpoint sources=("${files[@]}" "${safetensors[@]}") ;;
    imported)
      folder=demi/imported
      sources=("${files[@]}" "${safetensors[@]}"
        demi/imported/{archive,field,graph_reader,other_kind,program_reader,python_place,size_expression,stored_tensors,symbolic,tree_spec,zip_archive}.cpp)
      ;;
    tokens) sources=(lab/tokens/*.cpp) libraries=(-lutf8proc) ;;
    report) sources=("${files[@]}" lab/report/{format,metrics_log,run_folder}.cpp) ;;
    data) sources=("${files[@]}" lab/files/damage.cpp lab/data/{csv,picture,picture_jpeg,picture_png,text_set,tokenizer,vocabulary}.cpp) libraries=(-lpng -ljpeg -lutf8proc) ;;
    huggingface)
      sources=("${files[@]}" "${safetensors[@]}" demi/checkpoint/contents.cpp demi/tensor/dtype.cpp lab/huggingface/{config,folder}.cpp)
      # What reads the tensors is the release build's.
      [ -e build/release/libdemi_lab.so ] || die "no build/release/libdemi_lab.so, which reads the tensors: run scripts/build.sh"
      libraries=(-Lbuild/release -ldemi_lab -ldemi -Wl,-rpath,"$PWD/build/release")
      ;;
    *) wrong_usage "no such module: $1; known: core checkpoint imported tokens report data huggingface" ;;
  esac
  header=$folder/fuzz_testing.h name=${folder//\//::}
  name=${name/lab::/demi::}
  [ "$1" != core ] || header=demi/core/json_fuzz_testing.h name=demi
}

# compile SOURCE OBJECT FLAG...: unless the object is newer.
compile() {
  objects+=("$2")
  [ ! "$2" -nt "$1" ] || return 0
  say "compiling $1"
  clang++ "${flags[@]}" "${@:3}" -c "$1" -o "$2"
}

status=0
for module in "${modules[@]}"; do
  prepare "$module"
  objects=()
  compile tests/fuzz/fuzz.cpp "$build/${module}_fuzz.o" "-DDEMI_FUZZ_HEADER=\"$header\"" "-DDEMI_FUZZ_NAMESPACE=$name"
  for source in "${core[@]}" "${sources[@]}"; do
    [[ $source == *_test.cpp ]] || compile "$source" "$build/${source//\//_}.o"
  done
  nvidia=$(printf -- '-Wl,-rpath-link,%s ' "$torch"/../nvidia/*/lib)
  # shellcheck disable=SC2086
  clang++ -fsanitize=fuzzer,address,undefined -fno-sanitize=vptr "${objects[@]}" -o "$build/${module}_fuzz" -Wl,--gc-sections \
    "${libraries[@]}" -L"$torch/lib" -ltorch_cpu -lc10 -Wl,-rpath,"$torch/lib" $nvidia
  readers=$("$build/${module}_fuzz" -runs=0 2>/dev/null) || true
  [ -n "$readers" ] || die "$build/${module}_fuzz does not run, or names no reader"
  for reader in $readers; do
    say "fuzzing $reader for $seconds seconds"
    mkdir -p "$build/$reader"
    DEMI_FUZZ_TARGET=$reader DEMI_SOURCE_DIR=$PWD "$build/${module}_fuzz" -max_total_time="$seconds" -max_len=8192 -timeout=10 \
      -rss_limit_mb=4096 -malloc_limit_mb=1024 -print_final_stats=1 -artifact_prefix="$build/$reader-" "$build/$reader" \
      "tests/fuzz/corpus/$reader" 2>&1 | tail -n 12 || status=1
  done
done
exit $status
