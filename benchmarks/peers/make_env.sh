#!/usr/bin/env bash
# Makes the Python environment of the peers: PyTorch of the version that demi builds against (4 GB with the libraries that
# its wheel wants), in build/peer_env or the folder given.
set -euo pipefail
folder=${1:-"$(dirname "$0")/../../build/peer_env"}
[ -x "$folder/bin/python" ] || python3 -m venv "$folder"
"$folder/bin/python" -c 'import torch' 2>/dev/null || "$folder/bin/pip" install --quiet torch==2.15.0 numpy
echo "$folder/bin/python"
