#include "lab/doctor/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "lab/doctor/shape_time.h"

namespace demi::doctor {

std::string best_mixed(const std::vector<Format>& formats) {
  const Format* best = nullptr;
  for (const char* dtype : {"bf16", "fp16"})
    for (const Format& format : formats)
      if (format.dtype == dtype && format.tflops > 0 && (!best || format.tflops > best->tflops))
        best = &format;
  return best ? best->dtype : "";
}

std::vector<Advice> of_formats(const std::vector<Format>& formats) {
  std::vector<Advice> all;
  const std::string mixed = best_mixed(formats);
  for (const Format& format : formats) {
    if (format.over_fp32 <= 0) continue;
    const std::string what =
        fmt::format("{} products run at {:.2f} times FP32's rate", format.dtype, format.over_fp32);
    if (format.dtype == "tf32")
      all.push_back({"tf32", format.over_fp32, what,
                     "--precision tf32, or --cuda-matmul-allow-tf32 on for what stays in FP32"});
    if (format.dtype == mixed)
      all.push_back({"precision", format.over_fp32, what, "--precision " + mixed});
  }
  return all;
}

std::vector<Advice> of_shapes(const std::string& dtype, c10::Device device) {
  constexpr int64_t kOdd = 1001, kFriendly = 1008;
  constexpr int64_t kSmallBatch = 32, kLargeBatch = 512, kWidth = 1024;
  const auto cube = [](int64_t n) { return static_cast<double>(n * n * n); };
  std::vector<Advice> all;
  const double odd = product_ms(dtype, kOdd, kOdd, kOdd, device) / cube(kOdd);
  const double friendly =
      product_ms(dtype, kFriendly, kFriendly, kFriendly, device) / cube(kFriendly);
  all.push_back({"dimensions", odd / friendly,
                 fmt::format("a {} product of size {} runs at {:.2f} times the rate of size {}",
                             dtype, kFriendly, odd / friendly, kOdd),
                 "multiples of 8 for widths, classes and vocabulary (--model RECIPE names them)"});
  const double small = product_ms(dtype, kSmallBatch, kWidth, kWidth, device) / kSmallBatch;
  const double large = product_ms(dtype, kLargeBatch, kWidth, kWidth, device) / kLargeBatch;
  all.push_back({"batch", small / large,
                 fmt::format("a {} layer of {} by {} takes {:.2f} times as long for an example in "
                             "a batch of {} as in one of {}",
                             dtype, kWidth, kWidth, small / large, kSmallBatch, kLargeBatch),
                 "--batch-size auto, or --accumulate where memory is short"});
  const double nchw = convolution_ms(dtype, /*channels_last=*/false, device);
  const double nhwc = convolution_ms(dtype, /*channels_last=*/true, device);
  all.push_back({"channels_last", nchw / nhwc,
                 fmt::format("a {} convolution in channels_last is {:.2f} times as fast as in NCHW",
                             dtype, nchw / nhwc),
                 "input and weights .contiguous(torch::MemoryFormat::ChannelsLast); demi's recipes "
                 "do"});
  return all;
}

std::vector<Advice> of_memory(const std::string& allocator) {
  if (allocator != "glibc") return {};
  const double gain = fill_ms(/*fresh=*/true) / fill_ms(/*fresh=*/false);
  return {{"memory", gain,
           fmt::format("a tensor of 64 MiB is filled {:.2f} times as fast in memory that was kept",
                       gain),
           "demi::keep_memory() first of all in a program of your own; demi itself does"}};
}

std::vector<Advice> in_order(std::vector<Advice> all) {
  std::erase_if(all, [](const Advice& one) { return !(one.gain >= kLeastGain); });
  std::ranges::stable_sort(all, std::greater(), &Advice::gain);
  return all;
}

}  // namespace demi::doctor
