#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "demi/kernels/testing/emulation.h"
#include "demi/step/backend.h"
#include "demi/step/streams.h"

namespace demi::optim::testing {

/// A device whose graphs record kernels, too, in their order among its other work.
class Recorder {
 public:
  virtual ~Recorder() = default;
  virtual bool records(void* stream) const = 0;
  /// Null, or the device's complaint.
  virtual const char* put(void* stream, std::function<void()> work) = 0;
};

/// A backend for which CPU tensors are those of a device whose memory is the host's; or, instead,
/// the tensors of another `type` of device that has the host's memory. Its kernels are the CUDA
/// kernels' own source, compiled for the host. Launches run at once, on any thread; or, deferred,
/// at synchronize(), as with a host that runs ahead: who reads a result earlier gets that of an
/// earlier step. A capture records launches instead, to be replayed; a Recorder records those on
/// its streams with all else that happens there. One at a time: a kernel is a plain function and
/// has no other place for its state than a static one.
class EmulatedDevice : public Backend {
 public:
  explicit EmulatedDevice(c10::DeviceType type = c10::kCPU) : type_(type) {
    queue().clear();
    state().deferred = state().capturing = false;
    state().launches = state().uploads = 0;
  }
  EmulatedDevice(const EmulatedDevice&) = delete;
  EmulatedDevice& operator=(const EmulatedDevice&) = delete;

  TableKernels kernels_for(const at::Tensor& work,
                           std::optional<kernels::Path> forced) const override {
    const bool emulated = work.device().type() == type_ && work.scalar_type() == at::kFloat;
    return emulated ? TableKernels{.device = &kKernels} : Backend::kernels_for(work, forced);
  }
  bool is_asynchronous(c10::Device) const override { return true; }
  bool is_capturing(c10::Device device) const override {
    return state().capturing || optim::is_capturing(device);
  }

  void defer() { state().deferred = true; }
  void synchronize() {
    for (const auto& work : queue()) work();
    queue().clear();
  }

  using Graph = std::vector<std::function<void()>>;
  void begin_capture() { state().capturing = true; }
  Graph end_capture() {
    state().capturing = false;
    return std::exchange(queue(), {});
  }
  static void replay(const Graph& graph) {
    for (const auto& work : graph) work();
  }

  /// `recorder` records the work of all devices from now on. Null: nobody does.
  static void record_by(Recorder* recorder) { state().recorder = recorder; }

  static std::int64_t launches() { return state().launches; }  // of passes
  static std::int64_t uploads() { return state().uploads; }

 private:
  struct State {
    bool deferred = false, capturing = false;
    std::atomic<std::int64_t> launches = 0, uploads = 0;  // of ranks that are threads, too
    std::atomic<Recorder*> recorder = nullptr;
  };
  static State& state() {
    static State all;
    return all;
  }
  static Graph& queue() {
    static Graph all;
    return all;
  }
  static Recorder* recorder_of(void* stream) {
    Recorder* recorder = state().recorder;
    return recorder && recorder->records(stream) ? recorder : nullptr;
  }
  static const char* put(void* stream, std::function<void()> work) {
    if (Recorder* recorder = recorder_of(stream)) return recorder->put(stream, std::move(work));
    if (state().deferred || state().capturing)
      queue().push_back(std::move(work));
    else
      work();
    return nullptr;
  }

  struct Counter {
    template <class Body>
    void run(std::int64_t, const kernels::StepTable&) {
      ++state().launches;
    }
  };
  using Host = kernels::cuda::HostLauncher;

  template <auto count, auto launch>
  static const char* pass(const kernels::StepTable& table, void* stream) {
    Counter counter;
    count(counter, table);
    return put(stream, [table] {
      Host launcher;
      launch(launcher, table);
    });
  }
  static const char* update_scale(const kernels::LossScaleUpdate& update, void* stream) {
    return put(stream, [update] { kernels::advance(update); });
  }
  static const char* cross_entropy(const kernels::CrossEntropyRows& of, void* stream) {
    return put(stream, [of] { kernels::cuda::run_rows(of); });
  }
  static const char* upload(void* to, const void* from, std::size_t bytes, void* stream) {
    ++state().uploads;
    const auto* first = static_cast<const std::byte*>(from);
    return put(stream, [to, copy = std::vector<std::byte>(first, first + bytes)] {
      std::memcpy(to, copy.data(), copy.size());
    });
  }

  static constexpr kernels::CudaKernels kKernels = {
      .layout = kernels::kStepLayout,
      .measure = pass<kernels::cuda::launch_measure<Counter>, kernels::cuda::launch_measure<Host>>,
      .decide = pass<kernels::cuda::launch_decide<Counter>, kernels::cuda::launch_decide<Host>>,
      .update = pass<kernels::cuda::launch_update<Counter>, kernels::cuda::launch_update<Host>>,
      .apply_trust =
          pass<kernels::cuda::launch_apply_trust<Counter>, kernels::cuda::launch_apply_trust<Host>>,
      .step = pass<kernels::cuda::launch_step<Counter>, kernels::cuda::launch_step<Host>>,
      .update_scale = update_scale,
      .cross_entropy = cross_entropy,
      .upload = upload,
      .capturing = [](void* stream) { return state().capturing || recorder_of(stream); },
      .launches = [] { return launches(); },
      .uploads = [] { return uploads(); },
      .decline = []() -> const char* { return nullptr; }};

  c10::DeviceType type_;
};

}  // namespace demi::optim::testing
