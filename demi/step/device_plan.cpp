#include "demi/step/device_plan.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/Stream.h>
#include <torch/types.h>

#include <algorithm>
#include <cstring>

#include "demi/core/error.h"
#include "demi/graph/recording_scope.h"
#include "demi/tensor/native_stream.h"

namespace demi::optim {
namespace {

void check_launch(const char* complaint) {
  if (!complaint) return;
  throw DeviceError({.where = "optim.step",
                     .what = "the device refused a launch of the step",
                     .seen = complaint});
}

struct Change {
  std::size_t begin, end;  // bytes, multiples of 4
};

Change change_between(const std::vector<std::byte>& before, const std::vector<std::byte>& now) {
  if (before.size() != now.size()) return {0, now.size()};
  const auto first = std::mismatch(now.begin(), now.end(), before.begin()).first - now.begin();
  const auto last = std::mismatch(now.rbegin(), now.rend(), before.rbegin()).first - now.rbegin();
  const auto end = static_cast<std::size_t>(std::ssize(now) - last);
  return {static_cast<std::size_t>(first) / 4 * 4, (end + 3) / 4 * 4};
}

}  // namespace

DevicePlan::DevicePlan(const kernels::CudaKernels& kernels, const kernels::StepPlan& plan,
                       at::Tensor state)
    : kernels_(kernels),
      memory_(at::empty({static_cast<int64_t>(plan.device_bytes())}, state.options())),
      state_(std::move(state)),
      staging_(plan.upload_bytes()) {}

kernels::StepTable DevicePlan::bring_up_to_date(const kernels::StepPlan& plan, void* stream) {
  const bool recorded = graph::RecordingScope::current() && kernels_.capturing(stream);
  captured_ = captured_ || (!recorded && kernels_.capturing(stream));
  if (captured_) uploaded_.clear();
  auto* memory = static_cast<std::byte*>(memory_.mutable_data_ptr());
  const kernels::StepTable table = plan.pack(
      staging_.data(), memory, static_cast<kernels::StepState*>(state_.mutable_data_ptr()));
  if (recorded) {
    record_copy();
    return table;
  }
  if (staging_ == uploaded_) return table;
  const Change change = change_between(uploaded_, staging_);
  check_launch(kernels_.upload(memory + change.begin, staging_.data() + change.begin,
                               change.end - change.begin, stream));
  uploaded_ = staging_;
  return table;
}

// The source is filled before the first replay: an upload is part of the work that is recorded.
void DevicePlan::record_copy() {
  if (!recorded_) recorded_ = std::make_shared<RecordedTables>();
  auto& versions = recorded_->versions;
  if (!versions.empty() && versions.back().content == staging_) return;
  const auto bytes = static_cast<int64_t>(staging_.size());
  versions.push_back({at::empty({bytes}, memory_.options()), staging_, {}});
  memory_.narrow(0, 0, bytes).copy_(versions.back().source);
  uploaded_.clear();
}

void DevicePlan::upload_groups(RecordedTables& tables, const kernels::StepPlan& plan) {
  const c10::DeviceGuard guard(memory_.device());
  void* stream = tensor::native_stream(memory_.device());
  for (RecordedTables::Version& version : tables.versions) {
    plan.pack_groups(version.content.data());
    if (version.content == version.uploaded) continue;
    const Change change = change_between(version.uploaded, version.content);
    auto* source = static_cast<std::byte*>(version.source.mutable_data_ptr());
    check_launch(kernels_.upload(source + change.begin, version.content.data() + change.begin,
                                 change.end - change.begin, stream));
    version.uploaded = version.content;
  }
}

void DevicePlan::measure(const kernels::StepPlan& plan) {
  const c10::DeviceGuard guard(memory_.device());
  void* stream = tensor::native_stream(memory_.device());
  check_launch(kernels_.measure(bring_up_to_date(plan, stream), stream));
}

kernels::StepTable DevicePlan::decide(const kernels::StepPlan& plan) {
  const c10::DeviceGuard guard(memory_.device());
  void* stream = tensor::native_stream(memory_.device());
  const kernels::StepTable table = bring_up_to_date(plan, stream);
  check_launch(kernels_.decide(table, stream));
  return table;
}

void DevicePlan::update(const kernels::StepTable& table) {
  const c10::DeviceGuard guard(memory_.device());
  void* stream = tensor::native_stream(memory_.device());
  check_launch(kernels_.update(table, stream));
  check_launch(kernels_.apply_trust(table, stream));
}

void DevicePlan::record_stream(c10::Stream stream) {
  memory_.record_stream(stream);
  state_.record_stream(stream);
}

bool DevicePlan::is_captured() const {
  return kernels_.capturing(tensor::native_stream(memory_.device()));
}

at::Tensor make_state(c10::Device device) {
  return at::zeros({static_cast<int64_t>(sizeof(kernels::StepState))},
                   at::TensorOptions(device).dtype(at::kByte));
}

kernels::StepState read_state(const at::Tensor& state) {
  const at::Tensor here = state.cpu();
  kernels::StepState value;
  std::memcpy(&value, here.const_data_ptr(), sizeof value);
  return value;
}

void write_state(const at::Tensor& state, const kernels::StepState& value) {
  at::Tensor here = at::empty(state.sizes(), at::kByte);
  std::memcpy(here.mutable_data_ptr(), &value, sizeof value);
  const at::NoGradGuard no_grad;
  at::Tensor(state).copy_(here);
}

}  // namespace demi::optim
