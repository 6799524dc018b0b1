#include "lab/profiler/recording.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "demi/core/error.h"
#include "demi/core/kernel_range.h"
#include "demi/profile/phase_timer.h"
#include "lab/profiler/trace_header.h"

namespace demi::profiler {
namespace {

namespace kineto = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

constexpr const char* kWhere = "profiler.Recording";

std::set<ActivityType> activities_of(c10::Device device) {
  std::set<ActivityType> all{ActivityType::CPU};
  if (device.is_cuda()) all.insert(ActivityType::CUDA);
  return all;
}

ProfilerConfig config_of() {
  return ProfilerConfig(ProfilerState::KINETO, /*report_input_shapes=*/true);
}

void require_none() {
  if (torch::profiler::impl::profilerEnabled())
    throw DeviceError({.where = kWhere,
                       .what = "a profiler of LibTorch is on already",
                       .advice = "one at a time: end the other one first"});
}

Event::Kind kind_of(const kineto::KinetoEvent& event) {
  const std::string name = event.name();
  const std::string_view view = name;
  if (event.deviceType() != c10::DeviceType::CPU)
    return view.starts_with("Memcpy") || view.starts_with("Memset") ? Event::Kind::copy
                                                                    : Event::Kind::kernel;
  switch (static_cast<at::RecordScope>(event.scope())) {
    case at::RecordScope::BACKWARD_FUNCTION:
      return Event::Kind::function;
    case at::RecordScope::USER_SCOPE:
      return view.starts_with(kKernelRange) ? Event::Kind::op : Event::Kind::range;
    default:
      break;
  }
  const bool is_runtime = view.starts_with("cu") && view.find("::") == view.npos;
  return is_runtime ? Event::Kind::runtime : Event::Kind::op;
}

std::vector<std::int64_t> numbers_of(const c10::IValue& value) {
  if (value.isInt()) return {value.toInt()};
  if (value.isBool()) return {value.toBool() ? 1 : 0};
  if (value.isIntList()) return value.toIntVector();
  if (value.isBoolList()) {
    std::vector<std::int64_t> numbers;
    for (const bool one : value.toBoolList()) numbers.push_back(one ? 1 : 0);
    return numbers;
  }
  return {};
}

Event event_of(const kineto::KinetoEvent& from) {
  Event event{.kind = kind_of(from), .name = from.name()};
  const bool is_device = from.deviceType() != c10::DeviceType::CPU;
  event.thread = is_device ? 0 : from.startThreadId();
  event.start_ns = static_cast<std::int64_t>(from.startNs());
  event.end_ns = static_cast<std::int64_t>(from.endNs());
  for (const auto& shape : from.shapes()) event.shapes.push_back(shape);
  for (const auto& dtype : from.dtypes()) event.dtypes.push_back(dtype);
  for (const auto& value : from.concreteInputs()) event.numbers.push_back(numbers_of(value));
  (is_device ? event.op_id : event.id) =
      is_device ? from.linkedCorrelationId() : from.correlationId();
  return event;
}

// A range of the host is shown on the device too, where it is no kernel.
bool is_shadow(const Event& event) {
  return event.kind == Event::Kind::kernel && event.name.starts_with(profile::kPhaseRange);
}

}  // namespace

struct Recording::Result {
  std::unique_ptr<kineto::ProfilerResult> trace;
};

Recording::Recording(c10::Device device) : device_(device), result_(std::make_unique<Result>()) {
  require_none();
  // Kineto prints each start on stderr, and a missing GPU.
  setenv("KINETO_LOG_LEVEL", "99", /*overwrite=*/0);
  try {
    kineto::prepareProfiler(config_of(), activities_of(device));
    kineto::enableProfiler(config_of(), activities_of(device));
  } catch (const c10::Error& none) {
    throw DeviceError({.where = kWhere,
                       .what = "this LibTorch has no profiler (Kineto)",
                       .seen = none.what_without_backtrace()});
  }
  is_on_ = true;
}

Recording::~Recording() {
  if (!is_on_) return;
  try {
    kineto::disableProfiler();
  } catch (const std::exception&) {  // a destructor never throws, and nobody asks for its events
  }
}

std::vector<Event> Recording::finish() {
  profile::synchronize(device_);
  is_on_ = false;
  result_->trace = kineto::disableProfiler();
  std::vector<Event> events;
  for (const kineto::KinetoEvent& one : result_->trace->events()) {
    Event event = event_of(one);
    if (event.end_ns >= event.start_ns && !is_shadow(event)) events.push_back(std::move(event));
  }
  const auto key = [](const Event& event) {
    const bool is_device = event.kind == Event::Kind::kernel || event.kind == Event::Kind::copy;
    return std::tuple(is_device, event.thread, event.start_ns, -event.end_ns);
  };
  std::ranges::stable_sort(events, {}, key);
  const bool has_kernels = std::ranges::any_of(
      events, [](const Event& event) { return event.kind == Event::Kind::kernel; });
  if (device_.is_cuda() && !has_kernels)
    missing_.emplace_back(
        "No kernel of the GPU was recorded: CUPTI is not there, or this user may not read the "
        "GPU's counters (NVIDIA's ERR_NVGPUCTRPERM). Times are the host's.");
  return events;
}

void Recording::save(const std::filesystem::path& file) const {
  const auto refuse = [&](const std::string& seen) {
    throw TrainingError({.where = kWhere,
                         .what = "the trace cannot be written",
                         .seen = seen,
                         .advice = "name another folder"});
  };
  if (!result_->trace) refuse("the recording is not finished");
  try {
    result_->trace->save(file.string());
  } catch (const c10::Error& error) {
    refuse(error.what_without_backtrace());
  }
  std::error_code none;
  if (!std::filesystem::exists(file, none) || !blank_host_name(file)) refuse(file.string());
}

Ranges::Ranges(Kind kind) {
  const bool is_nvtx = kind == Kind::nvtx;
  const auto* stubs =
      is_nvtx ? torch::profiler::impl::cudaStubs() : torch::profiler::impl::ittStubs();
  if (!stubs || !stubs->enabled())
    throw DeviceError({.where = "profiler.Ranges",
                       .what = is_nvtx ? "there are no NVTX ranges without CUDA"
                                       : "this LibTorch has no ITT ranges",
                       .seen = is_nvtx ? "nvtx" : "itt",
                       .advice = "leave out --ranges: the trace file has the phases"});
  require_none();
  const ProfilerConfig config(is_nvtx ? ProfilerState::NVTX : ProfilerState::ITT,
                              /*report_input_shapes=*/false);
  kineto::enableProfiler(config, {});
}

Ranges::~Ranges() {
  try {
    kineto::disableProfiler();
  } catch (const std::exception&) {
  }
}

}  // namespace demi::profiler
