#include "demi/autocast/call.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <string>

#include "demi/core/error.h"

namespace demi {
namespace {

std::string lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return text;
}

std::string short_name(const std::string& op) {
  return op.starts_with("aten::") ? op.substr(6) : op;
}

bool casts(OpCategory category) {
  return category == OpCategory::lower_precision || category == OpCategory::fp32 ||
         category == OpCategory::promote;
}

// A rule where floating point dtypes differ, or where the op may have no 16-bit kernel; else no
// policy helps.
std::string cure(OpCategory category, const std::string& op,
                 c10::ArrayRef<c10::ScalarType> dtypes) {
  bool only_floats = true;
  std::set<c10::ScalarType> floats;
  for (const auto dtype : dtypes) {
    if (dtype == c10::ScalarType::Double)
      return "autocast never casts FP64: cast that argument yourself";
    if (c10::isFloatingType(dtype))
      floats.insert(dtype);
    else
      only_floats = false;
  }
  const bool differ = !casts(category) && floats.size() > 1;
  const bool lacks_kernel =
      only_floats && category != OpCategory::fp32 && category != OpCategory::promote;
  if (!differ && !lacks_kernel)
    return "its floating point arguments agree, and autocast casts no others: cast the one that "
           "LibTorch's message names yourself";
  const std::string word(name_of(differ ? OpCategory::promote : OpCategory::fp32));
  return "cure: policy.set(\"" + op + "\", demi::OpCategory::" + word +
         "), in a policy file: " + op + " " + word;
}

}  // namespace

bool is_dtype_error(const std::string& what) {
  const std::string text = lower_case(what);
  for (const char* word : {"dtype", "scalar type", "scalartype", "data type", "same type",
                           "weight type", "not implemented for '", "cudnn_status_bad_param"})
    if (text.find(word) != std::string::npos) return true;
  return false;
}

std::string spelled(const std::string& op, c10::ArrayRef<c10::ScalarType> dtypes) {
  std::string text = short_name(op) + "(";
  for (std::size_t i = 0; i < dtypes.size(); ++i)
    text += (i ? ", " : "") + tensor::name_of(dtypes[i]);
  return text + ")";
}

std::string policy_line(c10::DeviceType device, const std::string& op,
                        c10::ArrayRef<c10::ScalarType> dtypes) {
  const OpCategory category = global_table(device)->category[op_number(op)];
  if (casts(category) || category == OpCategory::fp32_output)
    return short_name(op) + " then runs as " + std::string(name_of(category));
  return cure(category, short_name(op), dtypes);
}

void Call::add_mark(const at::Tensor& tensor) {
  const auto mark = mark_of_part(tensor);
  if (!mark) return;
  if (mark->dtype != c10::ScalarType::Undefined) part = mark->dtype;
  if (mark->quantized && mark->quantized->is_in_force()) quantized = mark->quantized;
}

void Call::choose_dtype_out_of_line() {
  const bool is_fp32 = category == OpCategory::fp32 || category == OpCategory::fp32_output;
  if (part && !(is_fp32 && is_16_bit(*part))) {
    category = is_16_bit(*part) ? OpCategory::lower_precision : OpCategory::fp32;
    dtype = *part;
    return;
  }
  switch (category) {
    case OpCategory::lower_precision:
      dtype = at::autocast::get_autocast_dtype(device);
      break;
    case OpCategory::fp32:
    case OpCategory::fp32_output:
      dtype = c10::ScalarType::Float;
      break;
    case OpCategory::promote:
    case OpCategory::unchanged:
      break;
    case OpCategory::banned: {
      const std::string op = short_name(op_name(number));
      const std::string advice =
          op == "binary_cross_entropy"
              ? "leave the sigmoid out and use torch::nn::BCEWithLogitsLoss "
                "(torch::binary_cross_entropy_with_logits), which is safe to autocast; or call it "
                "in a disabled region on FP32 tensors"
              : "call it in a disabled region on FP32 tensors, or policy.set(\"" + op +
                    "\", demi::OpCategory::fp32)";
      refuse(
          {.where = "autocast." + op, .what = "this op is unsafe to autocast", .advice = advice});
    }
  }
}

const OpTable* Call::inherit() {
  const auto outer = RegionState::of_this_thread();
  if (!outer) return follows_global();
  keeps = outer->cache_enabled;
  return outer->table(device);
}

at::Tensor Call::cast_now(const at::Tensor& tensor) const {
  const bool may_keep =
      plain && keeps && is_16_bit(dtype) && at::autocast::is_autocast_cache_enabled();
  return may_keep ? weights::low_precision(tensor, dtype, handles) : tensor.to(dtype);
}

std::string Call::advice(c10::ArrayRef<c10::ScalarType> dtypes) const {
  const std::string op = short_name(op_name(number));
  return "[autocast." + op + "] dtypes that this op does not take; seen: " + spelled(op, dtypes) +
         ", run as " + std::string(name_of(category)) +
         "; region: " + lower_case(c10::DeviceTypeName(device)) + " " +
         tensor::name_of(at::autocast::get_autocast_dtype(device)) + "; " +
         cure(category, op, dtypes);
}

void explain(c10::Error& error, const Call& call, c10::ArrayRef<c10::ScalarType> dtypes) {
  // what() holds the backtrace as well, in which frames name c10::ScalarType.
  if (is_dtype_error(error.what_without_backtrace())) error.add_context(call.advice(dtypes));
}

}  // namespace demi
