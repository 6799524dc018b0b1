#!/usr/bin/env bash
# Compiles through ccache: compile.sh CHECKOUT CCACHE COMPILER ARGUMENTS...
#
# What makes ccache 4.7 hit across checkouts: paths below the checkout are taken relative (base_dir), the folder that the compiler runs
# in does not count (hash_dir off), and GCC keeps the precompiled header's name in what it preprocesses (-fpch-preprocess, with the
# sloppiness that ccache's manual names for precompiled headers).
#
# A precompiled header has 600 MB, which ccache would read for each file behind it, and GCC writes another one each time. With
# pch_external_checksum ccache takes HEADER.gch.sum in its place: here the hash of what the header preprocesses to, macros included, with
# the compiler and its flags. It is written before the header is compiled, which happens whenever a file that it reads has changed. The
# header itself is looked up by it, too: pch_defines alone would take one whose macros have changed for the same.
set -euo pipefail
export CCACHE_BASEDIR=$1 CCACHE_NOHASHDIR=1 CCACHE_PCH_EXTSUM=1
export CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
shift

if [[ " $* " == *" -x c++-header "* ]]; then
  header='' preprocessor=() previous=''
  for argument in "${@:2}"; do
    case $previous in
      -o) header=$argument ;;
      -MT | -MF) ;;
      *)
        case $argument in
          -c | -o | -MD | -MT | -MF | -fpch-preprocess) ;;
          *) preprocessor+=("$argument") ;;
        esac
        ;;
    esac
    previous=$argument
  done
  rm -f "$header" "$header.sum"  # else GCC would read the header of before in place of what it is made from
  {
    "$2" --version && printf '%s\n' "${preprocessor[@]:1}" | grep -v / && "${preprocessor[@]}" -E -dD -P
  } | sha256sum >"$header.sum.part" && mv "$header.sum.part" "$header.sum" && export CCACHE_EXTRAFILES=$header.sum
fi
exec "$@"
