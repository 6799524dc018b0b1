#!/usr/bin/env bash
# Every source as clang-format 14 with the tree's .clang-format writes it. Exit codes: 0 it is, 1 it is not, or there is no clang-format.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/say.sh
. scripts/say.sh
program=$(command -v clang-format-14 || command -v clang-format) || die "clang-format is missing: apt-get install clang-format-14"
"$program" --version | grep -q 'version 14\.' || die "clang-format 14 is wanted, and this is $("$program" --version)"
git ls-files '*.h' '*.cpp' '*.cu' | xargs "$program" --dry-run -Werror
