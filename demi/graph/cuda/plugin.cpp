// LibTorch's CUDA graphs. A library of its own, since it links libtorch_cuda, which libdemi opens
// only where there is a driver.
#include "demi/graph/cuda/plugin.h"

#include <ATen/Context.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <cuda_runtime_api.h>
#include <torch/version.h>

#include <exception>
#include <memory>
#include <optional>

static_assert(CUDART_VERSION >= 12040, "at::cuda::CUDAGraph has other members in LibTorch's build");

namespace demi::graph {

struct Recording {
  c10::Device device;
  c10::MempoolId_t pool;
  std::unique_ptr<at::cuda::CUDAGraph> graph;
  std::optional<c10::cuda::CUDAStream> stream = {};  // from begin() on
};

namespace {

int cuda_of_libtorch() { return static_cast<int>(at::Context::versionCUDART()); }

int devices() { return c10::cuda::device_count(); }

Recording* make(int device, const Recording* beside) {
  const auto index =
      device < 0 ? c10::cuda::current_device() : static_cast<c10::DeviceIndex>(device);
  const c10::Device on(c10::kCUDA, index);
  const c10::DeviceGuard guard(on);  // the graph asks for the current stream when it is made
  return std::make_unique<Recording>(
             Recording{.device = on,
                       .pool = beside ? beside->pool : at::cuda::graph_pool_handle(),
                       .graph = std::make_unique<at::cuda::CUDAGraph>()})
      .release();
}

// Other threads, such as a loader's, may ask for memory meanwhile: the mode minds this one alone.
// The device's default generator joins the graph by itself when something draws from it.
void begin(Recording& recording) {
  const c10::DeviceGuard guard(recording.device);
  recording.stream = c10::cuda::getCurrentCUDAStream(recording.device.index());
  recording.graph->capture_begin(recording.pool, cudaStreamCaptureModeThreadLocal);
}

void end(Recording& recording) {
  const c10::StreamGuard guard(*recording.stream);
  recording.graph->capture_end();
}

// A stream whose capture has failed refuses all work until the capture is ended, which fails, too.
void end_capture(Recording& recording) noexcept {
  try {
    const c10::StreamGuard guard(*recording.stream);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    C10_CUDA_IGNORE_ERROR(cudaStreamIsCapturing(recording.stream->stream(), &status));
    if (status != cudaStreamCaptureStatusNone) recording.graph->capture_end_pre();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): it had failed before
  }
  // Else the next launch would report what has been reported.
  C10_CUDA_CLEAR_ERROR();
}

void abandon(Recording& recording) noexcept {
  if (!recording.graph) return;
  if (recording.stream) end_capture(recording);
  try {
    recording.graph->reset();
    recording.graph = nullptr;
  } catch (const std::exception&) {
    (void)recording.graph.release();  // its destructor would try again, and end the process
  }
}

void replay(Recording& recording) { recording.graph->replay(); }

void destroy(Recording* recording) noexcept {
  abandon(*recording);
  delete recording;
}

}  // namespace
}  // namespace demi::graph

extern "C" __attribute__((visibility("default"))) const demi::graph::GraphPlugin*
demi_graph_plugin() {
  using namespace demi::graph;
  static const GraphPlugin plugin{.libtorch = TORCH_VERSION,
                                  .cuda_header = CUDART_VERSION,
                                  .cuda_of_libtorch = &cuda_of_libtorch,
                                  .devices = &devices,
                                  .make = &make,
                                  .begin = &begin,
                                  .end = &end,
                                  .abandon = &abandon,
                                  .replay = &replay,
                                  .destroy = &destroy};
  return &plugin;
}
