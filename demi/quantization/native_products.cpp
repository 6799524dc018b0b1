#include "demi/quantization/native_products.h"

#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/reciprocal.h>

#include <atomic>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "demi/core/error.h"
#include "demi/core/nearest.h"

namespace demi::quantization {
namespace {

constexpr const char* kWhere = "quantization.native_products";

bool is_native_by_environment() {
  const char* word = std::getenv("DEMI_FP8_PRODUCTS");
  if (!word || !*word || std::string_view(word) == "emulated") return false;
  if (std::string_view(word) == "native") return true;
  const std::vector<std::string> known{"emulated", "native"};
  throw UsageError({.where = kWhere,
                    .what = "DEMI_FP8_PRODUCTS has a value that is not known",
                    .seen = word,
                    .advice = did_you_mean(word, known)});
}

std::atomic<bool>& is_native() {
  static std::atomic<bool> value(is_native_by_environment());
  return value;
}

bool can_be_native(const CodesOfProduct& left, const CodesOfProduct& right) {
  const auto has_form = [](const Quantized& q) {
    const auto is_whole = [](std::int64_t n) { return n > 0 && n % 16 == 0; };
    return q.format != NarrowFormat::e2m1 && q.codes.dim() == 2 && is_whole(q.codes.size(0)) &&
           is_whole(q.codes.size(1));
  };
  const auto have = [&](bool (*scaling)(Scaling)) {
    return scaling(left.quantized.scaling) && scaling(right.quantized.scaling);
  };
  const bool are_e5m2 =
      left.quantized.format == NarrowFormat::e5m2 && right.quantized.format == NarrowFormat::e5m2;
  return has_form(left.quantized) && has_form(right.quantized) && !are_e5m2 &&
         (have(&kernels::is_of_tensor) || have(&kernels::is_of_rows));
}

/// The codes as a matrix whose rows, or with `by_columns` whose columns, are dense.
at::Tensor laid_out(const CodesOfProduct& of, bool by_columns) {
  // Copies of bytes: LibTorch copies a transposed tensor of FP8 on no device faster.
  const at::Tensor bytes = of.quantized.codes.view(at::kByte);
  const at::Tensor matrix = of.is_transposed ? bytes.t() : bytes;
  const at::Tensor dense = by_columns ? matrix.t().contiguous().t() : matrix.contiguous();
  return dense.view(of.quantized.codes.scalar_type());
}

}  // namespace

void set_native_products(bool native) { is_native() = native; }
bool native_products() { return is_native(); }

std::optional<at::Tensor> native_product(const CodesOfProduct& left, const CodesOfProduct& right) {
  if (!native_products() || !can_be_native(left, right)) return std::nullopt;
  const bool is_of_rows = kernels::is_of_rows(left.quantized.scaling);
  at::Tensor left_scale = left.quantized.scales.reciprocal(),
             right_scale = right.quantized.scales.reciprocal();
  if (is_of_rows) {
    left_scale = left_scale.unsqueeze(1);
    right_scale = right_scale.unsqueeze(0);
  }
  try {
    return at::_scaled_mm(
        laid_out(left, /*by_columns=*/false), laid_out(right, /*by_columns=*/true), left_scale,
        right_scale, /*bias=*/{}, /*scale_result=*/{}, is_of_rows ? at::kBFloat16 : at::kFloat);
  } catch (const std::exception& error) {  // of LibTorch, or of oneDNN
    const auto* of_libtorch = dynamic_cast<const c10::Error*>(&error);
    throw DeviceError({.where = kWhere,
                       .what = "the device has no such products of FP8",
                       .seen = of_libtorch ? of_libtorch->what_without_backtrace() : error.what(),
                       .advice = "leave DEMI_FP8_PRODUCTS out, or set_native_products(false)"});
  }
}

}  // namespace demi::quantization
