#include "demi/imported/statistics_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>

#include "demi/core/error.h"
#include "demi/imported/training_mode.h"

namespace demi::imported {
namespace {

using Over = StatisticsCheck::Over;

struct Normalisation {
  std::string_view op;
  Over over;
};

constexpr Normalisation kNormalisations[] = {
    {"aten::batch_norm", Over::channels},
    {"aten::native_batch_norm", Over::channels},
    {"aten::cudnn_batch_norm", Over::channels},
    {"aten::_native_batch_norm_legit", Over::channels},
    {"aten::_native_batch_norm_legit_functional", Over::channels},
    {"aten::_batch_norm_with_update", Over::channels},
    {"aten::_batch_norm_with_update_functional", Over::channels},
    {"aten::instance_norm", Over::instances},
    {"aten::group_norm", Over::groups},
};

/// Values that are averaged for one channel, instance or group.
std::int64_t values_of(Over over, const torch::jit::Stack& operands) {
  const at::Tensor& input = operands[0].toTensor();
  if (input.dim() < 2) return 0;  // LibTorch's own check refuses it
  std::int64_t inner = 1;
  for (const std::int64_t size : input.sizes().slice(2)) inner *= size;
  switch (over) {
    case Over::channels:
      return input.size(0) * inner;
    case Over::groups: {
      const std::int64_t groups = operands[1].toInt();
      return groups > 0 ? input.size(0) * input.size(1) / groups * inner : 0;
    }
    case Over::instances:
      return inner;
    case Over::nothing:
      break;
  }
  return 0;
}

}  // namespace

void StatisticsCheck::operator()(const torch::jit::Stack& operands, std::string_view place) const {
  if (over == Over::nothing || !operands[0].isTensor()) return;
  if (flag >= 0 && !operands[static_cast<std::size_t>(flag)].toBool()) return;
  if (values_of(over, operands) != 1) return;
  refuse({.where = "imported.forward",
          .what = fmt::format("{}: one value has no variance", place),
          .seen = fmt::format("({})", fmt::join(operands[0].toTensor().sizes(), ", ")),
          .accepted = over == Over::instances ? "more than one value in an instance, as in Python"
                                              : "more than one value in a channel, as in Python",
          .advice = over == Over::instances
                        ? "give inputs of a greater size"
                        : "give batches of two rows or more, also the last one of an epoch, or "
                          "call eval()"});
}

StatisticsCheck statistics_check(const c10::FunctionSchema& schema) {
  const auto* found = std::ranges::find(kNormalisations, schema.name(), &Normalisation::op);
  if (found == std::end(kNormalisations)) return {};
  const std::string flag(training_flag(schema.name()));
  return {.over = found->over,
          .flag = flag.empty() ? -1 : schema.argumentIndexWithName(flag).value_or(-1)};
}

}  // namespace demi::imported
