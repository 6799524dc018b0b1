#include "demi/autocast/op_lists.h"

#include <ATen/autocast_mode.h>

#include <algorithm>
#include <initializer_list>
#include <set>

namespace demi {
namespace {

constexpr std::string_view kMatrix =
    "matrix products and convolutions: where 16-bit units are fast, sums in FP32";
constexpr std::string_view kActivation =
    "one multiplication an element, between convolutions: follows their dtype";
constexpr std::string_view kRange = "its result leaves the range of fp16 or loses its digits: FP32";
constexpr std::string_view kSum = "sums many terms: FP32 keeps the small ones";
constexpr std::string_view kNorm = "squares and sums: overflows in fp16, loses digits in bf16";
constexpr std::string_view kLoss =
    "a loss: its value and the first gradient decide the scale of all others";
constexpr std::string_view kResample = "weights of neighbours need more digits than 16 bits have";
constexpr std::string_view kLinalg =
    "decompositions and solvers have no 16-bit form that converges";
constexpr std::string_view kKernel =
    "LibTorch's 16-bit kernel is missing or inaccurate on this device";
constexpr std::string_view kPromote =
    "several tensors of which none may lose digits: the widest dtype";
constexpr std::string_view kBanned =
    "log(p) of a 16-bit p is infinite near 0; use binary_cross_entropy_with_logits, which is safe";

bool contains(std::string_view name, std::initializer_list<std::string_view> parts) {
  return std::any_of(parts.begin(), parts.end(), [&](std::string_view part) {
    return name.find(part) != std::string_view::npos;
  });
}

// The reason is chosen by parts of the op's name: the lists are LibTorch's, and an op of a newer
// LibTorch gets a reason, too.
std::string_view fp32_reason(std::string_view op) {
  if (contains(op, {"loss", "cross_entropy", "kl_div"})) return kLoss;
  if (contains(op, {"linalg_vector_norm", "linalg_matrix_norm"})) return kNorm;
  if (op == "rsqrt" || op == "softplus") return kRange;  // not "qr" and "lu"
  if (contains(op, {"linalg", "cholesky", "svd", "qr", "lu", "inverse", "solve"})) return kLinalg;
  if (contains(op, {"upsample", "grid_sampler"})) return kResample;
  if (contains(op, {"norm", "cdist", "pdist", "dist", "cosine_similarity"})) return kNorm;
  if (contains(op, {"sum", "prod", "softmax", "trace"})) return kSum;
  if (contains(op, {"pool", "pad", "quantile", "quantize", "polar", "complex", "fft", "stft"}))
    return kKernel;
  return kRange;
}

std::string_view reason_of(std::string_view op, OpCategory category) {
  switch (category) {
    case OpCategory::lower_precision:
      return op == "prelu" ? kActivation : kMatrix;
    case OpCategory::promote:
      return kPromote;
    case OpCategory::banned:
      return kBanned;
    default:
      return fp32_reason(op);
  }
}

OpRule rule(std::string op, OpCategory category) {
  std::string reason(reason_of(op, category));
  return {std::move(op), category, std::move(reason)};
}

std::string joined(const char* op) { return op; }
std::string joined(const char* op, const char* overload) {
  return std::string(op) + "." + overload;
}

#define DEMI_NAME_1(op) joined(#op)
#define DEMI_NAME_2(op, overload) joined(#op, #overload)
#define DEMI_PICK(_1, _2, name, ...) name
#define DEMI_NAME(...) DEMI_PICK(__VA_ARGS__, DEMI_NAME_2, DEMI_NAME_1)(__VA_ARGS__)
#define DEMI_LOWER(...) rules.push_back(rule(DEMI_NAME(__VA_ARGS__), OpCategory::lower_precision));
#define DEMI_FP32(...) rules.push_back(rule(DEMI_NAME(__VA_ARGS__), OpCategory::fp32));
#define DEMI_OUTPUT(...) rules.push_back(rule(DEMI_NAME(__VA_ARGS__), OpCategory::fp32_output));
#define DEMI_PROMOTE(...) rules.push_back(rule(DEMI_NAME(__VA_ARGS__), OpCategory::promote));
// (function, "name", signature, signature of what it redispatches to, policy)
#define DEMI_APPENDED(function, name, ...) rules.push_back(rule(name, OpCategory::fp32_output));

// LibTorch's lists from its own macros, so that a newer LibTorch brings its own.
std::vector<OpRule> macro_rules() {
  std::vector<OpRule> rules;
  AT_FORALL_LOWER_PRECISION_FP(DEMI_LOWER)
  AT_FORALL_FP32(DEMI_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(DEMI_OUTPUT)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(DEMI_APPENDED)
  AT_FORALL_PROMOTE(DEMI_PROMOTE)
  return rules;
}

// No header has the CPU's lists: these two are ours, every other op that the dispatcher has on
// AutocastCPU runs in FP32.
constexpr std::string_view kCpuLowerPrecision[] = {"_addmm_activation",
                                                   "_convolution.deprecated",
                                                   "_native_multi_head_attention",
                                                   "addbmm",
                                                   "addmm",
                                                   "baddbmm",
                                                   "bmm",
                                                   "conv1d",
                                                   "conv1d.padding",
                                                   "conv2d",
                                                   "conv2d.padding",
                                                   "conv3d",
                                                   "conv3d.padding",
                                                   "conv_tbc",
                                                   "conv_transpose1d",
                                                   "conv_transpose2d.input",
                                                   "conv_transpose3d.input",
                                                   "linalg_vecdot",
                                                   "linear",
                                                   "matmul",
                                                   "mkldnn_rnn_layer",
                                                   "mm",
                                                   "prelu",
                                                   "scaled_dot_product_attention"};
constexpr std::string_view kCpuPromote[] = {"cat", "index_copy", "index_copy.dimname", "stack"};
constexpr std::string_view kCpuFp32[] = {"_grid_sampler_2d_cpu_fallback",
                                         "_lu_with_info",
                                         "adaptive_avg_pool3d",
                                         "adaptive_max_pool3d",
                                         "avg_pool3d",
                                         "binary_cross_entropy",
                                         "binary_cross_entropy_with_logits",
                                         "cdist",
                                         "cholesky",
                                         "cholesky_inverse",
                                         "cholesky_solve",
                                         "cosine_embedding_loss",
                                         "cross_entropy_loss",
                                         "ctc_loss.IntList",
                                         "ctc_loss.Tensor",
                                         "fake_quantize_per_tensor_affine",
                                         "fft_fft",
                                         "fft_fft2",
                                         "fft_fftn",
                                         "fft_hfft",
                                         "fft_ifft",
                                         "fft_ifft2",
                                         "fft_ifftn",
                                         "fft_ihfft",
                                         "fft_irfft",
                                         "fft_irfft2",
                                         "fft_irfftn",
                                         "fft_rfft",
                                         "fft_rfft2",
                                         "fft_rfftn",
                                         "fractional_max_pool2d",
                                         "fractional_max_pool3d",
                                         "geqrf",
                                         "grid_sampler",
                                         "grid_sampler_2d",
                                         "grid_sampler_3d",
                                         "hinge_embedding_loss",
                                         "huber_loss",
                                         "inverse",
                                         "kl_div",
                                         "l1_loss",
                                         "linalg_cholesky",
                                         "linalg_cholesky_ex",
                                         "linalg_cond",
                                         "linalg_cond.p_str",
                                         "linalg_eig",
                                         "linalg_eigh",
                                         "linalg_eigvals",
                                         "linalg_eigvalsh",
                                         "linalg_householder_product",
                                         "linalg_inv",
                                         "linalg_inv_ex",
                                         "linalg_lstsq",
                                         "linalg_matrix_rank",
                                         "linalg_matrix_rank.atol_rtol_float",
                                         "linalg_matrix_rank.atol_rtol_tensor",
                                         "linalg_matrix_rank.tol_tensor",
                                         "linalg_matrix_sqrth",
                                         "linalg_qr",
                                         "linalg_solve",
                                         "linalg_svd",
                                         "linalg_svdvals",
                                         "linalg_tensorinv",
                                         "linalg_tensorsolve",
                                         "lu_solve",
                                         "margin_ranking_loss",
                                         "max_pool3d",
                                         "max_unpool2d",
                                         "max_unpool3d",
                                         "mse_loss",
                                         "multi_margin_loss",
                                         "multilabel_margin_loss",
                                         "multilabel_margin_loss_forward",
                                         "nanquantile",
                                         "nanquantile.scalar",
                                         "nll_loss",
                                         "nll_loss2d",
                                         "orgqr",
                                         "ormqr",
                                         "pinverse",
                                         "poisson_nll_loss",
                                         "polar",
                                         "prod",
                                         "prod.dim_Dimname",
                                         "prod.dim_int",
                                         "qr",
                                         "quantile",
                                         "quantile.scalar",
                                         "reflection_pad1d",
                                         "reflection_pad2d",
                                         "replication_pad1d",
                                         "replication_pad2d",
                                         "replication_pad3d",
                                         "smooth_l1_loss",
                                         "soft_margin_loss",
                                         "stft",
                                         "stft.center",
                                         "svd",
                                         "trace",
                                         "triangular_solve",
                                         "triplet_margin_loss",
                                         "view_as_complex"};

bool is_known(const std::string& op) {
  const auto dot = op.find('.');
  return c10::Dispatcher::singleton()
      .findSchema(
          {"aten::" + op.substr(0, dot), dot == std::string::npos ? "" : op.substr(dot + 1)})
      .has_value();
}

std::vector<OpRule> cpu_rules() {
  std::vector<OpRule> rules;
  for (const auto op : kCpuLowerPrecision)
    rules.push_back(rule(std::string(op), OpCategory::lower_precision));
  for (const auto op : kCpuPromote) rules.push_back(rule(std::string(op), OpCategory::promote));
  for (const auto op : kCpuFp32) rules.push_back(rule(std::string(op), OpCategory::fp32));
  return rules;
}

std::vector<OpRule> cuda_rules() {
  auto rules = macro_rules();
  rules.push_back(rule("binary_cross_entropy", OpCategory::banned));
  rules.push_back(rule("cudnn_convolution", OpCategory::lower_precision));
  rules.push_back(rule("cudnn_convolution_transpose", OpCategory::lower_precision));
  rules.push_back(rule("linalg_matrix_sqrth", OpCategory::fp32));
  rules.push_back(rule("_cudnn_rnn",
                       OpCategory::lower_precision));  // LibTorch's casts to fp16 in any region
  return rules;
}

// The ops that another device has registered, in their category on CUDA. Ops that CUDA's lists lack
// keep their own kernel.
std::vector<OpRule> registered_rules(c10::DeviceType device) {
  std::set<std::string> registered;
  const auto key = at::autocast::get_autocast_dispatch_key_from_device_type(device);
  for (const auto& name : c10::Dispatcher::singleton().getRegistrationsForDispatchKey(key))
    registered.insert(name.name.substr(name.name.find("::") + 2) +
                      (name.overload_name.empty() ? "" : "." + name.overload_name));
  auto rules = cuda_rules();
  std::erase_if(rules, [&](const OpRule& r) { return !registered.contains(r.op); });
  return rules;
}

}  // namespace

std::vector<OpRule> default_op_rules(c10::DeviceType device) {
  auto rules = device == c10::DeviceType::CPU    ? cpu_rules()
               : device == c10::DeviceType::CUDA ? cuda_rules()
                                                 : registered_rules(device);
  std::erase_if(rules,
                [](const OpRule& r) { return !is_known(r.op); });  // older and newer LibTorch
  std::sort(rules.begin(), rules.end(),
            [](const OpRule& a, const OpRule& b) { return a.op < b.op; });
  return rules;
}

std::vector<OpRule> cuda_only_fp32_rules() {
  std::set<std::string> on_cpu;
  for (const auto& r : cpu_rules()) on_cpu.insert(r.op);
  auto rules = macro_rules();
  std::erase_if(rules, [&](const OpRule& r) {
    const bool in_fp32 = r.category == OpCategory::fp32 || r.category == OpCategory::fp32_output;
    return !in_fp32 || on_cpu.contains(r.op) || !is_known(r.op);
  });
  return rules;
}

std::vector<std::string> dtype_sensitive_ops() {
  return {"addmv",     "addr",        "bilinear", "cross",       "dot",         "embedding_bag",
          "index_add", "index_put",   "inner",    "lerp.Scalar", "lerp.Tensor", "masked_scatter",
          "mv",        "scatter.src", "vdot",     "scatter_add"};
}

}  // namespace demi
