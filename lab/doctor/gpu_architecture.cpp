#include "lab/doctor/gpu_architecture.h"

#include <charconv>

namespace demi::doctor {
namespace {

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
