#include "lab/doctor/formats.h"

#include <c10/util/Exception.h>

#include <charconv>
#include <exception>

#include "lab/bench/roofline.h"

namespace demi::doctor {
namespace {

std::string first_line(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  const std::string text = of_torch ? of_torch->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

void measure_one(Format& format, c10::Device device, double seconds) {
  try {
    const bool in_region = format.dtype == "fp16" || format.dtype == "bf16";
    const bench::ProductRate rate = bench::best_rate({format.dtype, in_region}, device, seconds);
    format.tflops = rate.tflops;
    format.size = rate.size;
  } catch (const std::exception& error) {
    format.failure = first_line(error);
  }
}

std::string_view name_of(int compute_capability) {
  const int major = compute_capability / 10;
  if (compute_capability == 75) return "Turing";
  if (compute_capability == 89) return "Ada Lovelace";
  switch (major) {
    case 3:
      return "Kepler";
    case 5:
      return "Maxwell";
    case 6:
      return "Pascal";
    case 7:
      return "Volta";
    case 8:
      return "Ampere";
    case 9:
      return "Hopper";
    case 10:
    case 11:
    case 12:
      return "Blackwell";
    default:
      return "unknown";
  }
}

// The whole text as a number, or -1.
int whole_number(std::string_view text) {
  int value = -1;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  return failure == std::errc() && end == text.data() + text.size() ? value : -1;
}

}  // namespace

std::vector<Format> formats_of(const InstructionSet& usable, Bf16Products bf16) {
  const std::string vector = usable.avx512 ? "AVX-512" : usable.avx2 ? "AVX2" : "no AVX2";
  const std::string of_bf16 = usable.amx_bf16      ? "AMX-BF16"
                              : usable.avx512_bf16 ? "AVX512_BF16"
                                                   : "no BF16 instructions";
  const bool has_bf16 = usable.avx512_bf16 || usable.amx_bf16;
  const bool uses_bf16 = bf16 == Bf16Products::bf16;
  return {{.dtype = "fp32", .has_unit = true, .unit = vector, .is_measured = true},
          {.dtype = "fp16",
           .has_unit = false,
           .unit = usable.avx512_fp16 ? "AVX512_FP16 without fast convolutions: through FP32"
                                      : "no FP16 instructions: through FP32",
           .is_measured = true},
          {.dtype = "bf16",
           .has_unit = has_bf16 && uses_bf16,
           .unit = of_bf16 + (uses_bf16  ? has_bf16 ? "" : ": emulated by LibTorch"
                              : has_bf16 ? ", not used: through FP32"
                                         : ": through FP32"),
           .is_measured = true}};
}

std::vector<Format> formats_of(const GpuArchitecture& architecture) {
  const auto format = [](const char* dtype, bool has_unit, const char* from, bool is_measured) {
    return Format{.dtype = dtype,
                  .has_unit = has_unit,
                  .unit = has_unit ? "tensor cores"
                                   : std::string("no tensor cores for it below compute "
                                                 "capability ") +
                                         from + ": a modest gain in time, or memory only",
                  .is_measured = is_measured};
  };
  return {{.dtype = "fp32", .has_unit = true, .unit = "CUDA cores", .is_measured = true},
          format("tf32", architecture.tf32, "8.0", true),
          format("fp16", architecture.fp16, "7.0", true),
          format("bf16", architecture.bf16, "8.0", true),
          format("fp8", architecture.fp8, "8.9", false)};
}

void measure(std::vector<Format>& formats, c10::Device device, double seconds) {
  double fp32 = 0;
  for (Format& format : formats) {
    if (!format.is_measured) continue;
    measure_one(format, device, seconds);
    if (format.dtype == "fp32") fp32 = format.tflops;
    if (fp32 > 0) format.over_fp32 = format.tflops / fp32;
  }
}

GpuArchitecture gpu_architecture(int compute_capability) {
  return {.name = name_of(compute_capability),
          .fp16 = compute_capability >= 70,
          .tf32 = compute_capability >= 80,
          .bf16 = compute_capability >= 80,
          .fp8 = compute_capability >= 89};
}

GpuArchitecture gpu_architecture(std::string_view compute_capability) {
  const auto point = compute_capability.find('.');
  if (point == std::string_view::npos) return gpu_architecture(0);
  const int major = whole_number(compute_capability.substr(0, point));
  const int minor = whole_number(compute_capability.substr(point + 1));
  return gpu_architecture(major < 0 || minor < 0 ? 0 : 10 * major + minor);
}

}  // namespace demi::doctor
