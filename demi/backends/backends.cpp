#include "demi/backends/backends.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <malloc.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "demi/backends/float32_settings.h"
#include "demi/core/error.h"
#include "demi/core/nearest.h"

namespace demi {
namespace {

using at::Float32Backend;
using at::Float32Op;
using Reduction = at::CuBLASReductionOption;

bool allows(Reduction reduction) { return reduction == Reduction::AllowReducedPrecisionWithSplitK; }

bool splits_k(Reduction reduction) {
  return reduction != Reduction::DisallowReducedPrecisionDisallowSplitK;
}

bool is_tf32(Float32Op op) {
  return at::globalContext().float32Precision(Float32Backend::CUDA, op) ==
         at::Float32Precision::TF32;
}

at::Float32Precision tf32_or_ieee(bool allow) {
  return allow ? at::Float32Precision::TF32 : at::Float32Precision::IEEE;
}

// Calls the older setter and the newer one, so that neither kind of getter throws. The older
// setter's "not allowed" leaves convolutions to a setting above them.
void set_matmul_tf32(bool allow) {
  at::Context& context = at::globalContext();
  context.setAllowTF32CuBLAS(allow);
  context.setFloat32Precision(Float32Backend::CUDA, Float32Op::MATMUL, tf32_or_ieee(allow));
}

void set_cudnn_tf32(bool allow) {
  at::Context& context = at::globalContext();
  context.setAllowTF32CuDNN(allow);
  for (const Float32Op op : {Float32Op::CONV, Float32Op::RNN})
    context.setFloat32Precision(Float32Backend::CUDA, op, tf32_or_ieee(allow));
}

void set_mkldnn(const std::string& precision) {
  for (const Float32Op op : {Float32Op::MATMUL, Float32Op::CONV, Float32Op::RNN})
    at::globalContext().setFloat32Precision(Float32Backend::MKLDNN, op,
                                            at::str2precision(precision));
}

bool sets_float32(const Backends& backends) {
  return backends.cuda_matmul_allow_tf32 || backends.cudnn_allow_tf32 ||
         backends.mkldnn_fp32_precision;
}

}  // namespace

Backends Backends::current() {
  const at::Context& context = at::globalContext();
  Backends now;
  now.cuda_matmul_allow_tf32 = is_tf32(Float32Op::MATMUL);
  now.cudnn_allow_tf32 = is_tf32(Float32Op::CONV) && is_tf32(Float32Op::RNN);
  now.allow_fp16_reduced_precision_reduction = allows(context.allowFP16ReductionCuBLAS());
  now.allow_bf16_reduced_precision_reduction = allows(context.allowBF16ReductionCuBLAS());
  now.cudnn_enabled = context.userEnabledCuDNN();
  now.cudnn_benchmark = context.benchmarkCuDNN();
  now.cudnn_deterministic = context.deterministicCuDNN();
  now.deterministic_algorithms = context.deterministicAlgorithms();
  now.mkldnn_fp32_precision =
      at::precision2str(context.float32Precision(Float32Backend::MKLDNN, Float32Op::MATMUL));
  now.threads = at::get_num_threads();
  return now;
}

void Backends::check() const {
  if (threads && *threads < 1)
    throw UsageError({.where = "Backends.set",
                      .what = "the number of threads is below 1",
                      .seen = std::to_string(*threads),
                      .accepted = "1 or more"});
  if (!mkldnn_fp32_precision) return;
  const std::vector<std::string> known{"none", "ieee", "tf32", "bf16"};
  for (const std::string& name : known)
    if (name == *mkldnn_fp32_precision) return;
  throw UsageError({.where = "Backends.set",
                    .what = "mkldnn_fp32_precision names no precision",
                    .seen = *mkldnn_fp32_precision,
                    .advice = did_you_mean(*mkldnn_fp32_precision, known)});
}

void Backends::set() const {
  check();
  at::Context& context = at::globalContext();
  if (cuda_matmul_allow_tf32) set_matmul_tf32(*cuda_matmul_allow_tf32);
  if (cudnn_allow_tf32) set_cudnn_tf32(*cudnn_allow_tf32);
  if (mkldnn_fp32_precision) set_mkldnn(*mkldnn_fp32_precision);
  if (allow_fp16_reduced_precision_reduction)
    context.setAllowFP16ReductionCuBLAS(*allow_fp16_reduced_precision_reduction);
  if (allow_bf16_reduced_precision_reduction)
    context.setAllowBF16ReductionCuBLAS(*allow_bf16_reduced_precision_reduction);
  if (cudnn_enabled) context.setUserEnabledCuDNN(*cudnn_enabled);
  if (cudnn_benchmark) context.setBenchmarkCuDNN(*cudnn_benchmark);
  if (cudnn_deterministic) context.setDeterministicCuDNN(*cudnn_deterministic);
  if (deterministic_algorithms)
    context.setDeterministicAlgorithms(*deterministic_algorithms, /*warn_only=*/false);
  if (threads && *threads != at::get_num_threads()) at::set_num_threads(*threads);
}

// The settings before a guard, with those that Backends::current() does not report.
struct BackendsGuard::Before {
  Backends settings;  // only those that the guard has set
  std::optional<Float32Settings> float32;
  Reduction fp16, bf16;
  bool warn_only;

  void put_back() const;
  void hand_to(Before& later);

  /// The Before of each guard that lives, in the order in which these were made, and the list's
  /// mutex: the settings are the process's, and threads may each have a guard.
  static std::vector<Before*> alive;
  static std::mutex mutex;
};

std::vector<BackendsGuard::Before*> BackendsGuard::Before::alive;
std::mutex BackendsGuard::Before::mutex;

namespace {

// Calls visit(first.setting, second.setting) for each that is no precision of FP32.
template <class First, class Second, class Visit>
void each_setting(First& first, Second& second, const Visit& visit) {
  visit(first.allow_fp16_reduced_precision_reduction,
        second.allow_fp16_reduced_precision_reduction);
  visit(first.allow_bf16_reduced_precision_reduction,
        second.allow_bf16_reduced_precision_reduction);
  visit(first.cudnn_enabled, second.cudnn_enabled);
  visit(first.cudnn_benchmark, second.cudnn_benchmark);
  visit(first.cudnn_deterministic, second.cudnn_deterministic);
  visit(first.deterministic_algorithms, second.deterministic_algorithms);
  visit(first.threads, second.threads);
}

}  // namespace

BackendsGuard::BackendsGuard(const Backends& backends) : before_(std::make_unique<Before>()) {
  backends.check();
  const std::lock_guard lock(Before::mutex);
  const at::Context& context = at::globalContext();
  Backends now = Backends::current();
  each_setting(backends, now, [](const auto& given, auto& is) {
    if (!given) is.reset();
  });
  before_->settings = std::move(now);
  before_->settings.cuda_matmul_allow_tf32.reset();
  before_->settings.cudnn_allow_tf32.reset();
  before_->settings.mkldnn_fp32_precision.reset();
  before_->fp16 = context.allowFP16ReductionCuBLAS();
  before_->bf16 = context.allowBF16ReductionCuBLAS();
  before_->warn_only = context.deterministicAlgorithmsWarnOnly();
  if (sets_float32(backends)) before_->float32 = Float32Settings::now();
  backends.set();
  Before::alive.push_back(before_.get());
}

BackendsGuard::~BackendsGuard() {
  const std::lock_guard lock(Before::mutex);
  auto& alive = Before::alive;
  const auto self = std::find(alive.begin(), alive.end(), before_.get());
  // A setting that a later guard has set, too, keeps its value, and that guard restores the value
  // from before this one.
  for (auto later = self + 1; later != alive.end(); ++later) before_->hand_to(**later);
  alive.erase(self);
  before_->put_back();
}

void BackendsGuard::Before::hand_to(Before& later) {
  const auto both = [&](auto Backends::*setting) {
    return (settings.*setting).has_value() && (later.settings.*setting).has_value();
  };
  if (both(&Backends::allow_fp16_reduced_precision_reduction)) later.fp16 = fp16;
  if (both(&Backends::allow_bf16_reduced_precision_reduction)) later.bf16 = bf16;
  if (both(&Backends::deterministic_algorithms)) later.warn_only = warn_only;
  each_setting(settings, later.settings, [](auto& mine, auto& theirs) {
    if (mine && theirs) theirs = std::exchange(mine, std::nullopt);
  });
  if (float32 && later.float32) later.float32 = std::exchange(float32, std::nullopt);
}

void BackendsGuard::Before::put_back() const {
  settings.set();
  if (float32) float32->put_back();
  at::Context& context = at::globalContext();
  if (settings.allow_fp16_reduced_precision_reduction)
    context.setAllowFP16ReductionCuBLAS(allows(fp16), splits_k(fp16));
  if (settings.allow_bf16_reduced_precision_reduction)
    context.setAllowBF16ReductionCuBLAS(allows(bf16), splits_k(bf16));
  if (settings.deterministic_algorithms)
    context.setDeterministicAlgorithms(*settings.deterministic_algorithms, warn_only);
}

bool keep_memory() {
#ifdef __GLIBC__
  return mallopt(M_MMAP_MAX, 0) != 0 && mallopt(M_TRIM_THRESHOLD, -1) != 0 &&
         mallopt(M_TOP_PAD, 64 << 20) != 0;
#else
  return false;
#endif
}

}  // namespace demi
