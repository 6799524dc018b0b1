#!/usr/bin/env bash
# Makes the Python environment of the peers if it is not ready, and prints its interpreter: make_env.sh [--if-ready] [FOLDER]
# It has PyTorch of the version that demi builds against, and what the tests against Python use (requirements.txt beside this file):
# 6 GB, in the cache folder for every checkout, or in FOLDER.
#   --if-ready   make nothing: exit code 77 if it is not ready
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/say.sh
. "$here/../../scripts/say.sh"
# shellcheck source=scripts/environment.sh
. "$here/../../scripts/environment.sh"
make=yes
[ "${1:-}" != --if-ready ] || { make=no && shift; }
[[ $# -le 1 && ${1:-} != -* ]] || wrong_usage "usage: make_env.sh [--if-ready] [FOLDER]"
folder=${1:+$(realpath -m "$1")}
cd "$here/../.."
if [ "$make" = no ]; then
  ready_environment peer_env "$here/requirements.txt" "$folder" || exit 77
else
  environment peer_env "$here/requirements.txt" 7000 "$folder"
fi
