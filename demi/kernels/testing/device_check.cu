// device_check [--bench]: the CUDA kernels on the present GPU, through the plugin, against the
// reference path, bit by bit (a NaN is a NaN); then, with --bench, steps over 16,777,216 parameters
// against a device to device copy. Exit codes: 0 right, 1 wrong, 77 nothing to run on (ctest calls
// that skipped).
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "demi/kernels/cuda_kernels.h"
#include "demi/kernels/rule_info.h"
#include "demi/kernels/testing/device_array.cuh"
#include "demi/kernels/testing/device_batch_norm.cuh"
#include "demi/kernels/testing/device_quantize.cuh"
#include "demi/kernels/testing/step_case.h"
#include "demi/kernels/traffic.h"

namespace {

using namespace demi::kernels;
using demi::kernels::testing::CaseOptions;
using demi::kernels::testing::check;
using demi::kernels::testing::complain;
using demi::kernels::testing::DeviceArray;
using demi::kernels::testing::StepCase;

/// A host case's tensors moved to the device and back.
class DeviceCase {
 public:
  DeviceCase(const CudaKernels& kernels, StepCase& host, const CaseOptions& options) : host_(host) {
    const auto offset = static_cast<std::size_t>(options.offset);
    std::vector<TensorEntry> tensors(host.plan().tensors().begin(), host.plan().tensors().end());
    for (TensorEntry& tensor : tensors) {
      const auto n = static_cast<std::size_t>(tensor.length);
      const auto moved = [&](auto*& pointer, std::size_t bytes) {
        if (!pointer) return;
        arrays_.emplace_back(pointer, n * bytes, offset * bytes);
        back_.push_back(const_cast<void*>(static_cast<const void*>(pointer)));
        pointer = static_cast<std::remove_reference_t<decltype(pointer)>>(arrays_.back().data());
      };
      const auto moved_coded = [&](Coded& array) {
        const auto scales = static_cast<std::size_t>(scales_of(array.codec, tensor.length)) * 2;
        moved(array.values, static_cast<std::size_t>(bytes_of(array.codec)));
        if (!array.scales) return;
        arrays_.emplace_back(array.scales, scales, 0);
        back_.push_back(array.scales);
        array.scales = arrays_.back().data();
      };
      moved(tensor.parameter, 4);
      CodedWeight& weight = tensor.coded_parameter;
      moved(weight.parameter, 2);
      moved(weight.rest, rest_bytes_of(weight.codec));
      for (float*& moment : tensor.moment) moved(moment, 4);
      for (Coded& array : tensor.coded_moment) moved_coded(array);
      moved(tensor.gradient, static_cast<std::size_t>(bytes_of(tensor.gradient_storage)));
      for (int k = 0; k < 2; ++k)
        moved(tensor.copy[k], static_cast<std::size_t>(bytes_of(tensor.copy_storage[k])));
      arrays_.emplace_back(tensor.step, sizeof(std::int64_t), 0);
      back_.push_back(tensor.step);
      tensor.step = static_cast<std::int64_t*>(arrays_.back().data());
      arrays_.emplace_back(tensor.scalar, sizeof(float), 0);
      back_.push_back(tensor.scalar);
      tensor.scalar = static_cast<float*>(arrays_.back().data());
    }
    arrays_.emplace_back(&options.scale, sizeof(float), 0);
    back_.push_back(nullptr);
    plan_ = std::make_unique<StepPlan>(options.rule, std::move(tensors),
                                       std::vector<Group>{options.group});
    plan_->inputs().scale = static_cast<const float*>(arrays_.back().data());
    plan_->inputs().max_norm = host.plan().inputs().max_norm;
    plan_->inputs().rounding_seed = host.plan().inputs().rounding_seed;
    const StepState zero;
    state_ = std::make_unique<DeviceArray>(&zero, sizeof zero, 0);
    table_memory_ = std::make_unique<DeviceArray>(nullptr, plan_->device_bytes() + 16, 0);
    std::vector<double> staging(plan_->upload_bytes() / 8 + 2);
    table_ = plan_->pack(reinterpret_cast<std::byte*>(staging.data()),
                         static_cast<std::byte*>(table_memory_->data()),
                         static_cast<StepState*>(state_->data()));
    complain(kernels.upload(table_memory_->data(), staging.data(), plan_->upload_bytes(), nullptr));
    if (!info_of(options.rule).applied_by) return;
    arrays_.emplace_back(nullptr, static_cast<std::size_t>(table_.block_count * kBlock) * 2, 0);
    back_.push_back(nullptr);
    table_.direction = arrays_.back().data();
    table_.direction_storage = Storage::bf16;
  }

  const StepTable& table() const { return table_; }
  StepTable host_table() { return plan_->table(); }
  StepState state() const {
    StepState state;
    state_->download(&state);
    return state;
  }
  /// Overwrites the host case's arrays with the device's.
  void download() {
    for (std::size_t i = 0; i < arrays_.size(); ++i) {
      if (back_[i]) arrays_[i].download(back_[i]);
    }
  }

 private:
  StepCase& host_;
  std::vector<DeviceArray> arrays_;
  std::vector<void*> back_;
  std::unique_ptr<StepPlan> plan_;
  std::unique_ptr<DeviceArray> state_, table_memory_;
  StepTable table_;
};

bool agrees(const CudaKernels& kernels, const CaseOptions& options) {
  StepCase expected(options), seen(options);
  for (StepCase* one : {&expected, &seen}) one->plan().inputs().max_norm = 0.01f;
  DeviceCase device(kernels, seen, options);
  for (int s = 0; s < 2; ++s) {
    expected.step(*cpu_kernels(Path::reference));
    complain(kernels.step(device.table(), nullptr));
  }
  check(cudaDeviceSynchronize(), "step");
  device.download();
  const bool same = expected.written_with_one_nan() == seen.written_with_one_nan() &&
                    expected.plan().state().sum_of_squares == device.state().sum_of_squares;
  std::printf("rule %d gradient %d offset %d: %s\n", static_cast<int>(options.rule),
              static_cast<int>(options.gradient), options.offset, same ? "same bits" : "DIFFERENT");
  return same;
}

bool agrees_everywhere(const CudaKernels& kernels) {
  bool all = true;
  for (const UpdateRule rule : testing::all_rules()) {
    for (const Storage storage : {Storage::fp32, Storage::fp16, Storage::bf16}) {
      for (const int offset : {0, 3}) {
        CaseOptions options;
        options.rule = rule;
        options.group.weight_decay = 0.01;
        options.group.momentum = 0.9;
        options.group.own[0] = 0.75;
        options.gradient = storage;
        options.copies[1] = Storage::fp16;
        options.offset = offset;
        options.awkward = offset != 0;
        if (options.awkward) options.scale = 1.0f;
        all = agrees(kernels, options) && all;
      }
    }
  }
  return all;
}

bool agrees_with_codecs(const CudaKernels& kernels) {
  constexpr std::array kBf16{Codec::bf16_by_chance, Codec::bf16_by_chance};
  bool all = true;
  for (const UpdateRule rule : testing::all_rules()) {
    for (const int offset : {0, 3}) {
      const std::array in_8_bits = testing::begins_with_squares(rule)
                                       ? std::array{Codec::root, Codec::softsign}
                                       : std::array{Codec::softsign, Codec::root};
      CaseOptions options;
      options.rule = rule;
      options.group.momentum = 0.9;
      options.offset = offset;
      options.rounding_seed = 7;
      for (const auto& codecs : {kBf16, in_8_bits}) {
        options.codecs = codecs;
        all = agrees(kernels, options) && all;
      }
      if (rule == UpdateRule::ema) continue;  // averages no coded weight
      for (const WeightCodec weight : {WeightCodec::split, WeightCodec::split24,
                                       WeightCodec::by_chance, WeightCodec::split_fp16}) {
        options.weight = weight;
        for (const auto& codecs : {std::optional<std::array<Codec, 2>>(), {in_8_bits}}) {
          options.codecs = codecs;
          all = agrees(kernels, options) && all;
        }
      }
    }
  }
  return all;
}

/// The steps of a captured graph are those of as many launches.
bool agrees_when_captured(const CudaKernels& kernels) {
  CaseOptions options;
  options.rule = UpdateRule::lamb;
  StepCase expected(options), seen(options);
  DeviceCase device(kernels, seen, options);
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  check(cudaStreamCreate(&stream), "stream");
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
  const bool knows = kernels.capturing(stream);
  complain(kernels.step(device.table(), stream));
  check(cudaStreamEndCapture(stream, &graph), "end of capture");
  check(cudaGraphInstantiate(&executable, graph, 0), "graph");
  for (int s = 0; s < 3; ++s) {
    expected.step(*cpu_kernels(Path::reference));
    check(cudaGraphLaunch(executable, stream), "replay");
  }
  check(cudaStreamSynchronize(stream), "replays");
  device.download();
  const bool same = knows && !kernels.capturing(stream) && expected.written() == seen.written();
  std::printf("captured: %s\n", same ? "same bits" : "DIFFERENT");
  return same;
}

template <class Work>
double milliseconds(Work work) {
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  float least = 1e9f;
  for (int round = 0; round < 20; ++round) {
    check(cudaEventRecord(begin), "record");
    work();
    check(cudaEventRecord(end), "record");
    check(cudaEventSynchronize(end), "wait");
    float elapsed = 0;
    check(cudaEventElapsedTime(&elapsed, begin, end), "elapsed");
    least = std::min(least, elapsed);
  }
  return least;
}

void bench(const CudaKernels& kernels) {
  constexpr std::size_t kBytes = std::size_t{16777216} * 4;
  const DeviceArray from(nullptr, kBytes, 0), to(nullptr, kBytes, 0);
  const double copy =
      2.0 * kBytes / milliseconds([&] {
        check(cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDeviceToDevice), "copy");
      });
  struct Case {
    const char* name;
    UpdateRule rule;
    std::optional<std::array<Codec, 2>> codecs = {};
    std::optional<WeightCodec> weight = {};
  };
  const Case cases[] = {
      {"sgd", UpdateRule::sgd},
      {"adamw", UpdateRule::adamw},
      {"lamb", UpdateRule::lamb},
      {"lion", UpdateRule::lion},
      {"adamw, bf16 moments", UpdateRule::adamw,
       std::array{Codec::bf16_by_chance, Codec::bf16_by_chance}},
      {"adamw, 8-bit moments", UpdateRule::adamw, std::array{Codec::softsign, Codec::root}},
      {"adamw, split weights", UpdateRule::adamw, {}, WeightCodec::split},
      {"adamw, split24 weights", UpdateRule::adamw, {}, WeightCodec::split24},
      {"adamw, stochastic weights", UpdateRule::adamw, {}, WeightCodec::by_chance},
      {"adamw, split24 weights, 8-bit moments", UpdateRule::adamw,
       std::array{Codec::softsign, Codec::root}, WeightCodec::split24}};
  for (const Case& one : cases) {
    CaseOptions options;
    options.rule = one.rule;
    options.codecs = one.codecs;
    options.weight = one.weight;
    options.group.learning_rate = 1e-6;
    options.lengths.assign(8, kBytes / 32);
    StepCase host(options);
    host.plan().inputs().max_norm = 1.0f;
    DeviceCase device(kernels, host, options);
    kernels.step(device.table(), nullptr);
    const double elapsed = milliseconds([&] { kernels.step(device.table(), nullptr); });
    const Traffic traffic = traffic_of(device.host_table());
    const double rate = static_cast<double>(traffic.total()) / elapsed;
    std::printf("%s: %.1f bytes a parameter, %.3f ms, %.0f GB/s, copy %.0f GB/s, fraction %.3f\n",
                one.name, traffic.bytes_per_element(), elapsed, rate / 1e6, copy / 1e6,
                rate / copy);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::string why;
  const CudaKernels* kernels = cuda_kernels(&why);
  std::printf("cuda: %s\n", why.c_str());
  if (!kernels) return 77;
  const bool plain = agrees_everywhere(*kernels), coded = agrees_with_codecs(*kernels),
             captured = agrees_when_captured(*kernels),
             batch_norm = demi::kernels::testing::batch_norm_agrees(*kernels),
             quantized = demi::kernels::testing::quantize_agrees(*kernels);
  if (argc > 1 && std::strcmp(argv[1], "--bench") == 0) bench(*kernels);
  return plain && coded && captured && batch_norm && quantized ? 0 : 1;
}
