#include "demi/backends/backends.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <malloc.h>

#include <array>
#include <string_view>
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

// By the older setter and the newer one, so that neither kind of getter throws. The older setter's
// "not allowed" leaves convolutions to a setting above them.
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

// What Backends::current does not tell stands beside it.
struct BackendsGuard::Before {
  Backends settings;  // only those that the guard has set
  std::optional<Float32Settings> float32;
  Reduction fp16, bf16;
  bool warn_only;
};

BackendsGuard::BackendsGuard(const Backends& backends) : before_(std::make_unique<Before>()) {
  backends.check();
  const at::Context& context = at::globalContext();
  const Backends now = Backends::current();
  const auto keep = [](const auto& given, const auto& is, auto& kept) {
    if (given) kept = is;
  };
  Backends& kept = before_->settings;
  keep(backends.allow_fp16_reduced_precision_reduction, now.allow_fp16_reduced_precision_reduction,
       kept.allow_fp16_reduced_precision_reduction);
  keep(backends.allow_bf16_reduced_precision_reduction, now.allow_bf16_reduced_precision_reduction,
       kept.allow_bf16_reduced_precision_reduction);
  keep(backends.cudnn_enabled, now.cudnn_enabled, kept.cudnn_enabled);
  keep(backends.cudnn_benchmark, now.cudnn_benchmark, kept.cudnn_benchmark);
  keep(backends.cudnn_deterministic, now.cudnn_deterministic, kept.cudnn_deterministic);
  keep(backends.deterministic_algorithms, now.deterministic_algorithms,
       kept.deterministic_algorithms);
  keep(backends.threads, now.threads, kept.threads);
  before_->fp16 = context.allowFP16ReductionCuBLAS();
  before_->bf16 = context.allowBF16ReductionCuBLAS();
  before_->warn_only = context.deterministicAlgorithmsWarnOnly();
  if (sets_float32(backends)) before_->float32 = Float32Settings::now();
  backends.set();
}

BackendsGuard::~BackendsGuard() {
  const Backends& kept = before_->settings;
  kept.set();
  if (before_->float32) before_->float32->put_back();
  at::Context& context = at::globalContext();
  if (kept.allow_fp16_reduced_precision_reduction)
    context.setAllowFP16ReductionCuBLAS(allows(before_->fp16), splits_k(before_->fp16));
  if (kept.allow_bf16_reduced_precision_reduction)
    context.setAllowBF16ReductionCuBLAS(allows(before_->bf16), splits_k(before_->bf16));
  if (kept.deterministic_algorithms)
    context.setDeterministicAlgorithms(*kept.deterministic_algorithms, before_->warn_only);
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
