#pragma once

// [DEVICE [DTYPE]], which every example takes: `quick_start cuda fp16`.
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "demi/core/error.h"
#include "demi/tensor/device.h"

struct Arguments {
  torch::Device device;
  torch::Dtype dtype;
};

// cpu, cuda or cuda:N. Ends the program with 2 if it is none of them, and with 77, which CTest
// counts as skipped, if this machine has no such device.
inline torch::Device device_named(const char* name) {
  try {
    return demi::pick_device(name);
  } catch (const demi::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::exit(dynamic_cast<const demi::DeviceError*>(&error) ? 77 : 2);
  }
}

// fp16 or bf16. Ends the program with 2 if it is neither.
inline torch::Dtype dtype_named(std::string_view name) {
  if (name == "fp16") return torch::kHalf;
  if (name == "bf16") return torch::kBFloat16;
  std::fprintf(stderr, "no such dtype; seen: %s; accepted: fp16, bf16\n", name.data());
  std::exit(2);
}

// A whole number. Ends the program with 2 if it is none.
inline long long number_named(const char* text) {
  char* end = nullptr;
  const long long number = std::strtoll(text, &end, 10);
  if (end != text && *end == '\0') return number;
  std::fprintf(stderr, "no whole number; seen: %s\n", text);
  std::exit(2);
}

// The CPU and `dtype` if nothing else is said.
inline Arguments read_arguments(int argc, char** argv, torch::Dtype dtype) {
  if (argc > 3) {
    std::fprintf(stderr, "too many arguments; usage: %s [DEVICE [DTYPE]]\n", argv[0]);
    std::exit(2);
  }
  return {device_named(argc > 1 ? argv[1] : "cpu"), argc > 2 ? dtype_named(argv[2]) : dtype};
}
