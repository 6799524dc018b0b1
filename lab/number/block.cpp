#include "lab/number/block.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "demi/core/error.h"
#include "demi/core/nearest.h"
#include "demi/kernels/cpu_kernels.h"
#include "lab/number/explanation.h"

namespace demi::number {
namespace {

using kernels::NarrowFormat;
using kernels::Scaling;

constexpr Dtype kFp8Formats[] = {Dtype::fp8_e4m3, Dtype::fp8_e5m2},
                kFp4Format[] = {Dtype::fp4_e2m1};
constexpr BlockForm kForms[] = {
    {"fp8", "an FP32 scale of the tensor", kFp8Formats, 0},
    {"mxfp8", "an E8M0 scale for 32 numbers", kFp8Formats, 32},
    {"mxfp4", "an E8M0 scale for 32 numbers", kFp4Format, 32},
    {"nvfp4", "an E4M3 scale for 16 numbers, times an FP32 scale of the tensor", kFp4Format, 16}};
constexpr Scaling kScalings[] = {Scaling::tensor, Scaling::mx_ceil, Scaling::mx_ceil, Scaling::nv};

Scaling scaling_of(const BlockForm& form) {
  return kScalings[static_cast<std::size_t>(&form - kForms)];
}

NarrowFormat narrow_format_of(const Format& format) {
  return format.dtype == Dtype::fp8_e4m3   ? NarrowFormat::e4m3
         : format.dtype == Dtype::fp8_e5m2 ? NarrowFormat::e5m2
                                           : NarrowFormat::e2m1;
}

void require_block(const BlockForm& form, const Format& format, std::size_t numbers) {
  constexpr const char* kWhere = "number.quantize_block";
  if (std::ranges::find(form.formats, format.dtype) == form.formats.end()) {
    std::string accepted;
    for (const Dtype dtype : form.formats)
      accepted += (accepted.empty() ? "" : ", ") + std::string(demi::name_of(dtype));
    throw UsageError({.where = kWhere,
                      .what = fmt::format("{} is not made of this format", form.name),
                      .seen = format.name,
                      .accepted = accepted});
  }
  if (numbers == 0 || (form.most != 0 && numbers > form.most))
    throw UsageError({.where = kWhere,
                      .what = fmt::format("a block of {} has other numbers", form.name),
                      .seen = std::to_string(numbers),
                      .accepted = form.most != 0 ? fmt::format("1 to {} numbers", form.most)
                                                 : "one number or more"});
}

ExactNumber exact_of(float x) {
  return value_of(format_of(Dtype::fp32), std::bit_cast<std::uint32_t>(x));
}

// The number over its scale; none if that is not finite or the scale 0.
std::optional<ExactNumber> scaled(const Block& block, float x) {
  if (!std::isfinite(x) || !std::isfinite(block.scale) || block.scale == 0) return std::nullopt;
  if (!block.scale_code) return product(exact_of(x), exact_of(block.scale));
  ExactNumber scale = exact_of(block.scale);
  if (block.tensor_scale) scale = product(scale, exact_of(*block.tensor_scale));
  return quotient(exact_of(x), scale);
}

BlockNumber number_of_block(const Block& block, float from, Bits code, float value) {
  BlockNumber number{
      .from = from, .code = code, .value = value, .outcome = Outcome::kNaN, .error_ulp = {}};
  if (std::isnan(value)) return number;
  const std::optional<ExactNumber> x = scaled(block, from);
  if (!x) {  // a scale of 0
    number.outcome = from == 0 ? Outcome::kExact : Outcome::kUnderflow;
    return number;
  }
  number.error_ulp = error_in_ulp(*block.format, code, *x);
  number.outcome =
      is_beyond(*block.format, *x) ? Outcome::kOverflow : outcome_of(*block.format, code, x);
  return number;
}

std::string nan_text(std::string_view scale) {
  return fmt::format("{}: an Inf or NaN is among the numbers, and all of them become NaN", scale);
}

}  // namespace

std::span<const BlockForm> block_forms() { return kForms; }

const BlockForm& parse_block_form(std::string_view name) {
  std::vector<std::string> known;
  for (const BlockForm& form : kForms) {
    if (form.name == name) return form;
    known.emplace_back(form.name);
  }
  throw UsageError({.where = "number.parse_block_form",
                    .what = "no such form of a block",
                    .seen = name,
                    .accepted = "fp8, mxfp8, mxfp4, nvfp4",
                    .advice = did_you_mean(name, known)});
}

Block quantize_block(const BlockForm& form, const Format& format, const std::vector<float>& numbers,
                     std::optional<float> tensor_amax) {
  require_block(form, format, numbers.size());
  const kernels::CpuKernels& kernels = *kernels::cpu_kernels(kernels::Path::reference);
  const auto count = static_cast<std::int64_t>(numbers.size());
  const auto amax_of = [&](const float* values, std::int64_t n) {
    return kernels.greatest_magnitude(values, kernels::Storage::fp32, n);
  };
  std::uint32_t greatest = amax_of(numbers.data(), count);
  Block block{.form = &form,
              .format = &format,
              .amax = std::bit_cast<float>(greatest),
              .tensor_amax = std::bit_cast<float>(greatest),
              .scale = 0,
              .scale_code = {},
              .tensor_scale = {},
              .numbers = {}};
  if (tensor_amax) {
    const std::uint32_t of_tensor = amax_of(&*tensor_amax, 1);
    if (of_tensor < greatest)
      throw UsageError({.where = "number.quantize_block",
                        .what = "the tensor's greatest magnitude is below that of its numbers",
                        .seen = shown(*tensor_amax),
                        .accepted = shown(block.amax) + " or more"});
    greatest = of_tensor;
    block.tensor_amax = std::bit_cast<float>(of_tensor);
  }
  kernels::Quantization q{};
  q.format = narrow_format_of(format);
  q.scaling = scaling_of(form);
  q.rows = 1;
  q.columns = count;
  q.storage = kernels::Storage::fp32;
  std::vector<std::uint8_t> codes(numbers.size());
  std::vector<float> values(numbers.size());
  std::uint8_t scale_code = 0;
  float tensor_scale = 1;
  q.from = numbers.data();
  q.to = values.data();
  q.codes = codes.data();
  q.scales = kernels::has_fp32_scales(q.scaling) ? static_cast<void*>(&block.scale) : &scale_code;
  q.tensor_scale = &tensor_scale;
  q.greatest = &greatest;
  kernels.quantize(q, 0, kernels::pieces_of(q));
  kernels.dequantize(q, 0, kernels::pieces_of(q));
  if (!kernels::has_fp32_scales(q.scaling)) block.scale_code = scale_code;
  if (kernels::is_nv(q.scaling)) {
    const Format& e4m3 = format_of(Dtype::fp8_e4m3);
    block.tensor_scale = tensor_scale;
    block.scale = static_cast<float>(double_of(e4m3, scale_code));
  } else if (block.scale_code) {
    block.scale = scale_code == 0xFF ? std::nanf("") : std::ldexp(1.0f, scale_code - 127);
  }
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const bool is_fp4 = format.dtype == Dtype::fp4_e2m1;
    const Bits code = is_fp4 ? codes[i / 2] >> (i % 2 * 4) & 0xF : codes[i];
    block.numbers.push_back(number_of_block(block, numbers[i], code, values[i]));
  }
  return block;
}

std::vector<std::string> scale_text(const Block& block) {
  const std::string greatest = shown(*block.format, largest_finite(*block.format));
  if (!block.scale_code) {
    if (std::isnan(block.scale)) return {nan_text("FP32 NaN")};
    return {fmt::format("{} / {} = {} in FP32, by which numbers are multiplied and codes divided",
                        greatest, shown(block.tensor_amax), shown(block.scale))};
  }
  if (!block.tensor_scale) {
    if (std::isnan(block.scale)) return {nan_text("E8M0 code 0xFF, NaN")};
    const int exponent = *block.scale_code - 127;
    return {fmt::format("2^{} = {}, E8M0 code 0x{:02X} = {} + 127", exponent, shown(block.scale),
                        *block.scale_code, exponent)};
  }
  if (std::isnan(block.scale)) return {nan_text("E4M3 code 0x7F, NaN")};
  return {fmt::format("{}, E4M3 code 0x{:02X}", shown(block.scale), *block.scale_code),
          fmt::format("times {} / (448 × 6) = {} in FP32, of the tensor", shown(block.tensor_amax),
                      shown(*block.tensor_scale))};
}

std::string shown(float x) {
  return shown(format_of(Dtype::fp32), std::bit_cast<std::uint32_t>(x));
}

}  // namespace demi::number
