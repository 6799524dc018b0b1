#!/usr/bin/env bash
# Holds the tree to its layers: scripts/check_layers.sh [ROOT]. Exit codes: 0 as it should be, 1 not.
#   - a module includes only what scripts/layers.txt allows it, and everything that is allowed there is included somewhere;
#   - a module may include only modules that stand above it in that file, so there is no circle;
#   - lab and program include public headers of demi, and those that scripts/layers.txt lends to them;
#   - a public header (PUBLIC of demi_module, or that of an update rule) includes only public headers, and neither fmt nor nlohmann, which are compiled in;
#   - only the files that scripts/layers.txt names call nlohmann's parser, so that other people's JSON passes demi::read_json, which
#     counts depth and size and refuses names that stand twice;
#   - the place that an error names, as in [data.fetch], begins with the folder's name or that of a namespace which the folder opens;
#   - headers that include CUDA's, which most machines lack, are included by CUDA's own files and tests/libtorch_replicas.h alone;
#   - a folder opens the namespace of its name and those that scripts/namespaces.txt adds, no other folder opens them, and
#     everything that is added there is opened somewhere.
set -euo pipefail
cd "${1:-$(dirname "${BASH_SOURCE[0]}")/..}"

public=$(for list in demi/*/CMakeLists.txt lab/*/CMakeLists.txt; do
  tr '\n' ' ' <"$list" | sed -n 's/.*demi_module([^)]* PUBLIC \([^)]*\)).*/\1/p' | tr -s ' ' '\n' |
    grep '\.h$' | sed "s|^|$(dirname "$list")/|" || true
done)
rules=$(sed -n 's|^#include DEMI_RULE(\(.*\))$|demi/optim/\1.h|p' demi/kernels/rules/list.h 2>/dev/null || true)
{
  sed 's/#.*//' scripts/namespaces.txt | awk 'NF { print "added", $0 }'
  sed 's/#.*//' scripts/layers.txt | awk 'NF { print "layer", $0 }'
  printf 'public %s\n' demi/demi.h $public $rules
  files=$(find demi lab cli -name '*.h' -o -name '*.cpp' -o -name '*.cu' | sort)
  grep -HE '^ *# *include *["<]((demi|lab|cli)/|fmt/|nlohmann/)' $files | sed -E 's/^([^:]*): *# *include *["<]([^">]*)[">].*/include \1 \2/'
  grep -HE '(json|Json)::(sax_)?(parse|accept)\(|>> *[a-z]*json' $files | sed -E 's/^([^:]*):.*/parses \1/' | sort -u || true
  grep -rE '^ *# *include *<((c10|ATen|torch/csrc)/cuda|cuda|nccl|torch/nn/parallel/|torch/csrc/autograd/functions/comm)' \
    --include='*.h' --include='*.cpp' $(ls -d demi lab cli tests examples benchmarks 2>/dev/null) |
    grep -vE '^(demi/(distributed/nccl|graph/cuda)/plugin.cpp|tests/libtorch_replicas.h):' | sed -E 's/^([^:]*):[^<"]*[<"]([^>"]*).*/cuda \1 \2/' || true
  grep -HoE '((\.where|kWhere)( =|\{)|refuse[a-z_]*\() *"[a-z_0-9]+\.[A-Za-z_]+["(]' $files | sed -E 's/^([^:]*):[^"]*"([a-z_0-9]+)\.(.*)["(]$/place \1 \2 \3/' || true
  awk '  # of each block that holds more than forward declarations: its file and its namespace
    $1 == "namespace" && $2 ~ /^demi(:|$)/ { opened = $2; next }
    opened == "" || /^$/ || /^(class|struct) [A-Za-z]+;$/ { next }
    !/^}/ { print "opens", FILENAME, opened }
    { opened = "" }' $files
} | awk '
  function module(path, parts, n) {
    n = split(path, parts, "/")
    return path == "demi/demi.h" ? path : n > 2 ? parts[1] "/" parts[2] : parts[1]
  }
  function library(path, parts) { split(path, parts, "/"); return parts[1] }
  function namespace_of(folder, parts, n) { n = split(folder, parts, "/"); return "demi::" parts[n] }
  function complain(text) { print "layers: " text; bad = 1 }
  BEGIN { rank["demi"] = 1; rank["lab"] = 2; rank["cli"] = 3 }
  $1 == "layer" {
    name = $2
    sub(/:$/, "", name)
    if (name == "parse") {
      for (i = 3; i <= NF; ++i) may_parse[$i] = 1
      next
    }
    if (name == "lent") {
      for (i = 3; i <= NF; ++i) lent[$i] = 1
      next
    }
    for (i = 3; i <= NF; ++i) {
      if (!($i in known)) complain("scripts/layers.txt lets " name " include " $i ", which does not stand above it")
      allowed[name, $i] = 1
    }
    known[name] = 1
    own = namespace_of(name)
    if ((own in folder_of) && !((name, own) in added))
      complain(name " has the namespace of " folder_of[own] ", " own ": give it another name, or add it to scripts/namespaces.txt")
    folder_of[own] = name
    if ((name, own) in added) is_opened[name, own] = 1
  }
  $1 == "public" { is_public[$2] = 1 }
  $1 == "added" {
    sub(/:$/, "", $2)
    for (i = 3; i <= NF; ++i) added[$2, $i] = 1
  }
  $1 == "opens" {
    from = module($2)
    own = namespace_of(from)
    if ((from, $3) in added) is_opened[from, $3] = 1
    else if (index($3 "::", own "::") != 1)
      complain($2 " opens the namespace " $3 ": " from " has " own ", and scripts/namespaces.txt adds no other")
  }
  $1 == "parses" && $2 !~ /_test\.|testing|real_data/ {
    if (!($2 in may_parse)) complain($2 " calls the parser of nlohmann: other people'"'"'s JSON is read by demi::read_json")
    parses[$2] = 1
  }
  $1 == "place" && $2 !~ /_test\.|testing/ {
    from = module($2)
    is_own = from ~ "/" $3 "$" || from == $3
    for (pair in added) {
      split(pair, p, SUBSEP)
      if (p[1] == from && ("::" p[2] "::") ~ ("::" $3 "::")) is_own = 1
    }
    if (!is_own) complain($2 " names the place " $3 "." $4 " in an error: " from " is not called " $3)
  }
  $1 == "cuda" { complain($2 " includes " $3 ", which includes CUDA'"'"'s headers: a machine without them could not build it") }
  $1 == "include" {
    from = module($2)
    if ($3 ~ /^(fmt|nlohmann)\//) {
      if ($2 in is_public) complain($2 ": a public header includes <" $3 ">, which users need not have")
      next
    }
    to = module($3)
    if (($2 in is_public) && !($3 in is_public))
      complain($2 ": a public header includes " $3 ", which is not installed (PUBLIC of demi_module)")
    if ($2 ~ /_test\.|testing|real_data/) {
      if (rank[library($3)] > rank[library($2)]) complain($2 " includes " $3 ", of a library above its own")
      next
    }
    if ($3 ~ /testing/) complain($2 " includes " $3 ", which is for tests")
    if (rank[library($2)] > rank["demi"] && library($3) == "demi" && !($3 in is_public)) {
      if (!($3 in lent)) complain($2 " includes " $3 ", which is neither public nor lent to lab and program")
      borrowed[$3] = 1
    }
    if (from == to) next
    used[from, to] = 1
    if (!(from in known)) complain(from " is not in scripts/layers.txt (" $2 ")")
    else if (!((from, to) in allowed)) complain($2 " includes " $3 ": " from " may not include " to)
  }
  END {
    for (pair in allowed)
      if (!(pair in used)) { split(pair, p, SUBSEP); complain("scripts/layers.txt lets " p[1] " include " p[2] ", which it does not") }
    for (pair in added)
      if (!(pair in is_opened)) { split(pair, p, SUBSEP); complain("scripts/namespaces.txt lets " p[1] " open " p[2] ", which it does not") }
    for (file in may_parse)
      if (!(file in parses)) complain("scripts/layers.txt lets " file " call the parser of nlohmann, which it does not")
    for (header in lent)
      if (!(header in borrowed)) complain("scripts/layers.txt lends " header ", which neither lab nor program includes")
    for (header in is_public)
      if (system("test -e " header)) complain(header " is PUBLIC, but there is no such file")
    exit bad
  }'
