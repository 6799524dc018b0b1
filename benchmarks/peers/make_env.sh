#!/usr/bin/env bash
# Makes the Python environment of the peers, in build/peer_env or the folder given: PyTorch of the version that demi builds
# against (4 GB with the libraries that its wheel wants), and what the tests against Python read files with.
set -euo pipefail
folder=${1:-"$(dirname "$0")/../../build/peer_env"}
[ -x "$folder/bin/python" ] || python3 -m venv "$folder"
"$folder/bin/python" -c 'import torch, numpy, safetensors, tensorboard' 2>/dev/null ||
  "$folder/bin/pip" install --quiet torch==2.15.0 numpy safetensors tensorboard
echo "$folder/bin/python"
