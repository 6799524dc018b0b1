#!/usr/bin/env bash
# Builds the site: scripts/site.sh [--setup|--no-setup|--names]. Pages of docs/, and the API from the public headers; its first page is
# build/site/html/index.html.
#   --setup      only what it is built with: Doxygen, and a Python environment in the cache folder
#   --no-setup   install nothing
#   --names      install nothing, and check the public names alone: their comments, uses and mentions on pages, in seconds
# Warnings are errors, and so are dead links and anchors (those to other sites are not tried), a public name without a comment, and a public
# header that no program of examples/ uses and docs/site/exceptions.txt does not name.
# Exit codes: 0 done, 1 something is wrong, 2 usage, 77 with --no-setup and --names what it is built with is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/say.sh
. scripts/say.sh
# shellcheck source=scripts/environment.sh
. scripts/environment.sh
case "${*:-}" in
  '' | --setup | --no-setup | --names) mode=${1:-} ;;
  *) wrong_usage "usage: scripts/site.sh [--setup|--no-setup|--names]" ;;
esac

requirements=docs/site/requirements.txt
if ! command -v doxygen >/dev/null || ! python=$(ready_environment site_env "$requirements"); then
  [[ $mode != --n* ]] || { say "Doxygen or the Python environment is missing: scripts/site.sh --setup makes it"; exit 77; }
  command -v doxygen >/dev/null || { apt-get update -q && apt-get install -q -y --no-install-recommends doxygen; } ||
    die "doxygen is missing: apt-get install doxygen as root, then this again"
  python=$(environment site_env "$requirements" 300)
fi
[ "$mode" != --setup ] || exit 0

"$python" docs/site/checks_test.py 2>&1 | tail -n 30
"$python" docs/site/pages.py . build/site
[ "$mode" != --names ] || exit 0
# From the start: Sphinx would write, and warn of, only the pages that have changed, and not those whose links lead to what is gone.
rm -rf build/site/html build/site/doctrees
# --keep-going: all that is wrong, not the first.
"$python" -m sphinx -q -W --keep-going -j 2 -d build/site/doctrees -c docs/site build/site/source build/site/html
say "build/site/html/index.html"
