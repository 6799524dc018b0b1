#!/usr/bin/env bash
# What scripts/check_layers.sh says of a tree with one fault in it: layers_test.sh SOURCE
set -euo pipefail
source=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

# file PATH TEXT: of the small tree, which is as it should be until a test writes into it.
file() { mkdir -p "$work/tree/$(dirname "$1")" && printf '%b\n' "$2" >"$work/tree/$1"; }
small_tree() {
  rm -rf "$work/tree"
  file scripts/layers.txt 'demi/ground:\ndemi/house: demi/ground\nlab/house: demi/house\ncli: lab/house'
  file scripts/namespaces.txt 'demi/ground: demi  # public\nlab/house: demi::house'
  file demi/demi.h ''
  file demi/ground/CMakeLists.txt 'demi_module(ground PUBLIC ground.h)'
  file demi/ground/ground.h 'namespace demi {\nstruct Ground {};\n}'
  file demi/house/CMakeLists.txt 'demi_module(house PUBLIC house.h)'
  file demi/house/house.h '#include "demi/ground/ground.h"\nnamespace demi::lab {\nclass Guest;\n}\n\nnamespace demi::house {\nint of(demi::lab::Guest);\n}'
  file demi/house/attic/attic.cpp 'namespace demi::house::attic {\nint rooms = 1;\n}'
  file lab/house/CMakeLists.txt 'demi_module(house)'
  file lab/house/guest.cpp '#include "demi/house/house.h"\nnamespace demi::house {\nint guests = 1;\n}'
  file lab/house/guest.h ''
  file cli/main.cpp '#include "lab/house/guest.h"\nnamespace demi::cli {\nint main_of;\n}'
}
# check CODE: what it says is in $said.
check() {
  local seen=0
  said=$("$source/scripts/check_layers.sh" "$work/tree" 2>&1) || seen=$?
  [ "$seen" = "$1" ] || failed "exit code $seen, expected $1"
}
failed() {
  echo "FAILED (line ${BASH_LINENO[1]}): $1, in:" && echo "$said"
  failures=$((failures + 1))
}
refuses() {
  check 1
  [ "$said" = "layers: $1" ] || failed "it does not say '$1'"
  small_tree
}

small_tree
check 0

file demi/house/stray.cpp 'namespace demi::ground {\nint rooms = 1;\n}'
refuses "demi/house/stray.cpp opens the namespace demi::ground: demi/house has demi::house, and scripts/namespaces.txt adds no other"
file cli/stray.cpp '\nnamespace demi {\nstruct A;\nint rooms = 1;\n}'
refuses "cli/stray.cpp opens the namespace demi: cli has demi::cli, and scripts/namespaces.txt adds no other"
file scripts/namespaces.txt 'demi/ground: demi'
refuses "lab/house has the namespace of demi/house, demi::house: give it another name, or add it to scripts/namespaces.txt"
file scripts/namespaces.txt 'demi/ground: demi\nlab/house: demi::house\ncli: demi::shed'
refuses "scripts/namespaces.txt lets cli open demi::shed, which it does not"
file demi/ground/up.cpp '#include "demi/house/house.h"'
refuses "demi/ground/up.cpp includes demi/house/house.h: demi/ground may not include demi/house"
file scripts/layers.txt 'demi/ground:\ndemi/house: demi/ground\nlab/house: demi/house demi/ground\ncli: lab/house'
refuses "scripts/layers.txt lets lab/house include demi/ground, which it does not"
file scripts/layers.txt 'demi/house: demi/ground\ndemi/ground:\nlab/house: demi/house\ncli: lab/house'
refuses "scripts/layers.txt lets demi/house include demi/ground, which does not stand above it"
file demi/house/reader.cpp 'namespace demi::house {\nauto a = nlohmann::json::parse(text);\n}'
refuses "demi/house/reader.cpp calls the parser of nlohmann: other people's JSON is read by demi::read_json"
file cli/reader.cpp 'namespace demi::cli {\nauto a = Json::accept(text), b = json::parse(house::to_json(a));\n}'
refuses "cli/reader.cpp calls the parser of nlohmann: other people's JSON is read by demi::read_json"
file demi/house/reader.cpp 'namespace demi::house {\nvoid f() { file >> json; }\n}'
refuses "demi/house/reader.cpp calls the parser of nlohmann: other people's JSON is read by demi::read_json"
file lab/house/guest.cpp '#include "demi/house/house.h"\nnamespace demi::house {\nvoid f() { refuse({.where = "kitchen.find"}); }\n}'
refuses "lab/house/guest.cpp names the place kitchen.find in an error: lab/house is not called kitchen"
file scripts/namespaces.txt 'demi/ground: demi\nlab/house: demi::house demi::kitchen::stove'
file lab/house/guest.cpp '#include "demi/house/house.h"\nnamespace demi::kitchen::stove {\nvoid f() { refuse({.where = "kitchen.find"}); throw E({.where = "house.of"}); }\n}\nnamespace demi::house {\nint guests;\n}'
check 0
small_tree
for header in c10/cuda/CUDAStream.h cuda_runtime_api.h torch/nn/parallel/data_parallel.h; do
  file demi/house/house_test.cpp "#include <$header>"
  refuses "demi/house/house_test.cpp includes $header, which includes CUDA's headers: a machine without them could not build it"
done
file demi/house/house_test.cpp '#include <torch/cuda.h>'
check 0
file demi/house/reader_test.cpp 'namespace demi::house {\nauto a = json::parse(text);\n}'
check 0
small_tree
file scripts/layers.txt 'demi/ground:\ndemi/house: demi/ground\nlab/house: demi/house\ncli: lab/house\nparse: demi/house/reader.cpp'
refuses "scripts/layers.txt lets demi/house/reader.cpp call the parser of nlohmann, which it does not"
file demi/house/house.h '#include "demi/ground/ground.h"\n#include "demi/house/private.h"\n#include <fmt/format.h>'
file demi/house/private.h ''
check 1
[[ $said == *"demi/house/house.h: a public header includes demi/house/private.h"* ]] || failed "a private header is accepted"
[[ $said == *"demi/house/house.h: a public header includes <fmt/format.h>"* ]] || failed "fmt is accepted"

[ "$failures" -eq 0 ] && echo "all as expected"
