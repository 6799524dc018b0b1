#!/usr/bin/env bash
# gpu_check.sh [--libtorch DIR] [--build DIR] [--out FILE] [--jobs N] [--dry-run]
#
# For a machine with an NVIDIA GPU: builds with the CUDA kernels required, runs every test labelled gpu (recorded work first, then
# kernels, scaler, step, NCCL, every recipe and every example in fp16 and bf16; one that is skipped counts as failed), runs the
# kernels under compute-sanitizer (on PATH, or beside nvcc), reads the kernels' machine code, times recipes with and without a CUDA
# graph (fashion-cnn where Fashion-MNIST is), the step and recipes that need no data on the device, the step beside Python PyTorch where there is one (PEER names its interpreter; made by
# benchmarks/peers/make_env.sh), and writes one results file. What this build or this machine does not have is named, not run.
#   --libtorch  a LibTorch with CUDA (the folder with include/ and lib/); without it, the one that CMake finds
#   --build     build folder (default build/cuda)
#   --out       results (default results/gpu.txt)
#   --dry-run   prints the commands, runs none
set -euo pipefail

libtorch="" build=build/cuda out=results/gpu.txt jobs=$(nproc) dry=""
usage() { sed -n '2,12p' "$0" | sed 's/^# \{0,1\}//'; }
while [ $# -gt 0 ]; do
  case "$1" in
    --libtorch | --build | --out | --jobs)
      [ $# -ge 2 ] || { echo "$1 needs a value" >&2; exit 2; }
      case "$1" in
        --libtorch) libtorch=$2 ;;
        --build) build=$2 ;;
        --out) out=$2 ;;
        --jobs) jobs=$2 ;;
      esac
      shift 2
      ;;
    --dry-run) dry=1; shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "unknown argument $1" >&2; usage >&2; exit 2 ;;
  esac
done
cd "$(dirname "$0")/.."

failures=0
# step NAME COMMAND...: runs one command, puts its output into the results, goes on after a failure.
step() {
  local name=$1
  shift
  if [ -n "$dry" ]; then
    printf '%s:' "$name"
    printf ' %q' "$@"
    printf '\n'
    return
  fi
  printf '\n## %s\n$ %s\n' "$name" "$*" | tee -a "$out"
  if "$@" 2>&1 | tee -a "$out"; then
    echo "ok: $name" | tee -a "$out"
  else
    echo "FAILED: $name" | tee -a "$out"
    failures=$((failures + 1))
  fi
}

# gpu_tests: here is a GPU, so a test that finds none has something to say.
gpu_tests() {
  local log
  log=$(mktemp)
  ctest --test-dir "$build" -L gpu --no-tests=error --output-on-failure 2>&1 | tee "$log"
  local code=${PIPESTATUS[0]}
  if grep -q 'Skipped' "$log"; then
    echo "skipped tests, each with its reason:"
    ctest --test-dir "$build" -L gpu --verbose 2>&1 | grep -i -B3 'skipped' || true
    code=1
  fi
  rm -f "$log"
  return "$code"
}

# sanitized TOOLS NAME COMMAND...: COMMAND under each of compute-sanitizer's TOOLS. Races and memory that was never written show
# here alone: the emulation runs one thread after the other. Without LibTorch's cache each tensor is memory of its own.
sanitizer=$(command -v compute-sanitizer || echo "$(dirname "$(command -v nvcc || echo nvcc)")/compute-sanitizer")
sanitized() {
  local tools=$1 name=$2 tool
  shift 2
  for tool in $tools; do
    if [ -n "$dry" ] || [ -x "$sanitizer" ]; then
      step "$tool of $name" env PYTORCH_NO_CUDA_MEMORY_CACHING=1 "$sanitizer" --tool "$tool" --error-exitcode 1 "$@"
    else
      printf '\n## %s of %s\nnot on this machine: compute-sanitizer, of the CUDA toolkit\n' "$tool" "$name" | tee -a "$out"
    fi
  done
}

# bench NAME WHAT ARGS...: `demi bench WHAT ARGS...`, where this build has it.
bench() {
  local name=$1 what=$2
  shift 2
  if [ -n "$dry" ] || "$build/demi" bench "$what" --help >/dev/null 2>&1; then
    step "$name" "$build/demi" bench "$what" "$@"
  else
    printf '\n## %s\nnot in this build: demi bench %s\n' "$name" "$what" | tee -a "$out"
  fi
}

if [ -z "$dry" ]; then
  mkdir -p "$(dirname "$out")"
  printf '# GPU check of demi %s, %s\n' "$(git rev-parse --short HEAD 2>/dev/null || echo unknown)" "$(date -u +%F)" >"$out"
fi
configure=(cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DDEMI_CUDA=ON)
[ -z "$libtorch" ] || configure+=("-DDEMI_LIBTORCH=$libtorch")

step "device" nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv
step "configure" "${configure[@]}"
step "build" cmake --build "$build" -j "$jobs"
step "recorded work" ctest --test-dir "$build" -R '^gpu\.graph$' --no-tests=error --output-on-failure
# The host's time of a small network's step is longer than the device's: what recording it in a CUDA graph gains. Documentation is the
# text, and, two bytes a word, the tokens: ASCII has none beyond GPT-2's 50,257.
text=TEXT
if [ -z "$dry" ]; then
  text=$(mktemp)
  trap 'rm -f "$text"' EXIT
  cat docs/reference/*.md | LC_ALL=C tr -d '\200-\377' >"$text"
fi
graphs=fp32,fp32:cuda-graph=on,fp16,fp16:cuda-graph=on
if [ -n "$dry" ] || "$build/demi" data check fashion-mnist >/dev/null 2>&1; then
  bench "graph fashion-cnn" recipe fashion-cnn --device cuda --runs "$graphs" --warmup 10 --steps 50
  step "graph main job" "$build/demi" compare --device cuda --runs "$graphs"
  # Seconds of the test after each epoch; three batches of a shape run plainly, all epochs together.
  step "graph tests" bash -c 'grep -ho "\"run\":[^,]*\|\"test_seconds\":[^,}]*" "$(ls -td runs/compare-*/ | head -n 1)metrics.jsonl"'
else
  printf '\n## graph fashion-cnn, graph main job\nnot on this machine: Fashion-MNIST (demi data get fashion-mnist)\n' | tee -a "$out"
fi
bench "graph mlp" recipe mlp --device cuda --runs "$graphs" --warmup 10 --steps 50
bench "graph gpt-shakespeare" recipe gpt-shakespeare --data text --train-file "$text" --test-file "$text" --device cuda --runs "$graphs" \
  --warmup 10 --steps 20
bench "graph gpt2" recipe gpt2 --train-file "$text" --test-file "$text" --tokens-per-step 0 --no-bias --device cuda \
  --runs bf16,bf16:cuda-graph=on --warmup 10
step "tests" gpu_tests
# Of batch norm's kernels, too. Operators call them only where DEMI_BATCH_NORM=cuda asks, until this says "batch norm: same bits".
sanitized "memcheck racecheck synccheck initcheck" "the step's kernels" "$build/demi_cuda_check"
sanitized "memcheck racecheck" "cross entropy" "$build/lib/nn/demi_nn_test" --gtest_filter='GpuLinearCrossEntropy.*'
sanitized "memcheck racecheck" "batch norm" "$build/lib/batch_norm/demi_batch_norm_test" --gtest_filter='GpuBatchNorm.*'
step "machine code" scripts/check_sass.sh "$build/libdemi_cuda.so"
step "kernels against a copy" "$build/demi_cuda_check" --bench
peer=${PEER:-$(benchmarks/peers/make_env.sh --if-ready || echo PEER)}
for optimizer in $(sed -n 's/^#include DEMI_RULE(\(.*\))/\1/p' demi/kernels/rules/list.h) sgd-momentum; do
  bench "step $optimizer" step --optimizer "$optimizer" --parameters 33554432 --device cuda --json
done
for optimizer in sgd sgd-momentum adamw; do
  if [ -n "$dry" ] || [ -x "$peer" ]; then
    step "peer $optimizer" "$peer" benchmarks/peers/step_peer.py --optimizer "$optimizer" --device cuda
  fi
done
for recipe in mlp synthetic-resnet50; do
  bench "recipe $recipe" recipe "$recipe" --device cuda --json
done
# Recipes of 8 and 4 bits: emulated, and FP8 by the GPU's own products.
bench "narrow gpt-shakespeare" recipe gpt-shakespeare --data text --train-file "$text" --test-file "$text" --device cuda \
  --runs bf16,fp8,fp8:rowwise,fp8:blocks,mxfp8,nvfp4 --warmup 10 --steps 20
if [ -n "$dry" ] || "$build/demi" bench recipe --help >/dev/null 2>&1; then
  step "FP8 by hardware" env DEMI_FP8_PRODUCTS=native "$build/demi" bench recipe mlp --device cuda --runs bf16,fp8,fp8:rowwise --json
fi

# Beside the last one: what decides whether batch norm's kernels become the default.
step "batch norm by demi's kernels" env DEMI_BATCH_NORM=cuda "$build/demi" bench recipe synthetic-resnet50 --device cuda --json

[ -z "$dry" ] || exit 0
echo "results in $out, $failures failed"
[ "$failures" -eq 0 ]
