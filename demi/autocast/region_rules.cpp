#include "demi/autocast/region_rules.h"

#include <ATen/autocast_mode.h>

#include <algorithm>

#include "demi/autocast/call.h"
#include "demi/autocast/op_table.h"
#include "demi/autocast/thread_tables.h"

namespace demi {
namespace {

bool in_region(c10::DeviceType device) {
  return at::autocast::is_autocast_available(device) && at::autocast::is_autocast_enabled(device);
}

}  // namespace

bool region_has_rule(c10::DeviceType device, std::span<const int> ops) {
  if (!in_region(device)) return false;
  const OpTable* table = table_in_force(device);
  if (table == follows_global()) table = global_table(device);
  return std::ranges::any_of(ops, [&](int op) {
    return table->category[static_cast<std::size_t>(op)] != OpCategory::unchanged;
  });
}

namespace {

Call call_of(int op, const at::Tensor& input, const at::Tensor& parameter) {
  Call call(input.device().type(), op, 0, {});
  call.add_argument(input);
  call.add_argument(parameter);
  call.choose_dtype();
  return call;
}

}  // namespace

c10::ScalarType dtype_in_region(int op, const at::Tensor& input, const at::Tensor& parameter) {
  const auto device = input.device().type();
  if (!in_region(device) || !at::autocast::is_eligible(input, device)) return input.scalar_type();
  const Call call = call_of(op, input, parameter);
  return call.dtype == kAsGiven ? input.scalar_type() : call.dtype;
}

std::shared_ptr<const quantization::QuantizedWeight> recipe_in_region(int op,
                                                                      const at::Tensor& input,
                                                                      const at::Tensor& parameter) {
  if (!in_region(input.device().type()) || !parts_in_use()) return nullptr;
  const Call call = call_of(op, input, parameter);
  return call.is_by_recipe() ? call.recipe() : nullptr;
}

}  // namespace demi
