#include <ATen/Operators.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <map>

#include "demi/activation/gelu.h"
#include "demi/attention/in_region.h"
#include "demi/autocast/by_recipe.h"
#include "demi/autocast/call.h"
#include "demi/autocast/kernels.h"
#include "demi/products/ops.h"
#include "demi/products/through_fp32.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define DEMI_FLATTEN  // sanitizers make minutes of compiling of it
#else
#define DEMI_FLATTEN [[gnu::flatten]]
#endif

namespace demi {
namespace {

c10::MaybeOwned<at::Tensor> cast(const Call& call, const at::Tensor& tensor) {
  return call.cast(tensor);
}
std::optional<at::Tensor> cast(const Call& call, const std::optional<at::Tensor>& tensor) {
  if (!tensor) return std::nullopt;
  return *call.cast(*tensor);
}
template <class Other>
const Other& cast(const Call&, const Other& other) {
  return other;
}

const at::Tensor& unwrap(const c10::MaybeOwned<at::Tensor>& tensor) { return *tensor; }
template <class Other>
const Other& unwrap(const Other& other) {
  return other;
}

void note(c10::SmallVectorImpl<c10::ScalarType>& dtypes, const at::Tensor& tensor) {
  if (tensor.defined()) dtypes.push_back(tensor.scalar_type());
}
void note(c10::SmallVectorImpl<c10::ScalarType>& dtypes, const std::optional<at::Tensor>& tensor) {
  if (tensor) note(dtypes, *tensor);
}
template <class Other>
void note(c10::SmallVectorImpl<c10::ScalarType>&, const Other&) {}

template <c10::DeviceType device>
constexpr c10::DispatchKey kKey =
    device == c10::DeviceType::CPU ? c10::DispatchKey::AutocastCPU : c10::DispatchKey::AutocastCUDA;

template <int64_t spatial, auto convolution>
constexpr auto kOfRank =
    [](const auto&... arguments) { return convolution(spatial, arguments...); };

// Kernels for a processor without instructions for the region's dtype.
struct NoOther {};
template <class Op>
constexpr auto kThroughFp32 = NoOther();
template <>
constexpr auto kThroughFp32<at::_ops::linear> = &products::linear;
template <>
constexpr auto kThroughFp32<at::_ops::mm> = &products::mm;
template <>
constexpr auto kThroughFp32<at::_ops::bmm> = &products::bmm;
template <>
constexpr auto kThroughFp32<at::_ops::addmm> = &products::addmm;
template <>
constexpr auto kThroughFp32<at::_ops::baddbmm> = &products::baddbmm;
template <>
constexpr auto kThroughFp32<at::_ops::matmul> = &products::matmul;
template <>
constexpr auto kThroughFp32<at::_ops::conv1d> = kOfRank<1, &products::conv>;
template <>
constexpr auto kThroughFp32<at::_ops::conv2d> = kOfRank<2, &products::conv>;
template <>
constexpr auto kThroughFp32<at::_ops::conv3d> = kOfRank<3, &products::conv>;
template <>
constexpr auto kThroughFp32<at::_ops::conv1d_padding> = kOfRank<1, &products::conv_padded>;
template <>
constexpr auto kThroughFp32<at::_ops::conv2d_padding> = kOfRank<2, &products::conv_padded>;
template <>
constexpr auto kThroughFp32<at::_ops::conv3d_padding> = kOfRank<3, &products::conv_padded>;
template <>
constexpr auto kThroughFp32<at::_ops::conv_transpose1d> = kOfRank<1, &products::conv_transpose>;
template <>
constexpr auto kThroughFp32<at::_ops::conv_transpose2d_input> =
    kOfRank<2, &products::conv_transpose>;
template <>
constexpr auto kThroughFp32<at::_ops::conv_transpose3d_input> =
    kOfRank<3, &products::conv_transpose>;

// Kernels for an op whose weight has a recipe. They get the arguments as they were given.
template <int64_t spatial, auto convolution>
constexpr auto kRecipeOfRank = [](const Call& call, const auto&... arguments) {
  return convolution(call, spatial, arguments...);
};
template <class Op>
constexpr auto kByRecipe = NoOther();
template <>
constexpr auto kByRecipe<at::_ops::linear> = &linear_by_recipe;
template <>
constexpr auto kByRecipe<at::_ops::mm> = &mm_by_recipe;
template <>
constexpr auto kByRecipe<at::_ops::addmm> = &addmm_by_recipe;
template <>
constexpr auto kByRecipe<at::_ops::matmul> = &matmul_by_recipe;
template <>
constexpr auto kByRecipe<at::_ops::conv1d> = kRecipeOfRank<1, &conv_by_recipe>;
template <>
constexpr auto kByRecipe<at::_ops::conv2d> = kRecipeOfRank<2, &conv_by_recipe>;
template <>
constexpr auto kByRecipe<at::_ops::conv3d> = kRecipeOfRank<3, &conv_by_recipe>;
template <>
constexpr auto kByRecipe<at::_ops::conv1d_padding> = kRecipeOfRank<1, &conv_padded_by_recipe>;
template <>
constexpr auto kByRecipe<at::_ops::conv2d_padding> = kRecipeOfRank<2, &conv_padded_by_recipe>;
template <>
constexpr auto kByRecipe<at::_ops::conv3d_padding> = kRecipeOfRank<3, &conv_padded_by_recipe>;
template <>
constexpr auto kByRecipe<at::_ops::conv_transpose1d> = kRecipeOfRank<1, &conv_transpose_by_recipe>;
template <>
constexpr auto kByRecipe<at::_ops::conv_transpose2d_input> =
    kRecipeOfRank<2, &conv_transpose_by_recipe>;
template <>
constexpr auto kByRecipe<at::_ops::conv_transpose3d_input> =
    kRecipeOfRank<3, &conv_transpose_by_recipe>;

// Kernels for tensors of 16 bits on any processor.
template <class Op>
constexpr auto kInRegion = NoOther();
template <>
constexpr auto kInRegion<at::_ops::scaled_dot_product_attention> = &sdpa::in_region;
template <>
constexpr auto kInRegion<at::_ops::gelu> = &activation::gelu_in_region;

template <c10::DeviceType device, class Op, class Signature = typename Op::schema>
struct Hot;

template <c10::DeviceType device, class Op, class Result, class... Arguments>
struct Hot<device, Op, Result(Arguments...)> {
  static inline int number = 0;

  template <class... Cast>
  static Result run(const Call& now, c10::DispatchKeySet below, const Cast&... arguments) {
    if constexpr (device == c10::DeviceType::CPU &&
                  !std::is_same_v<decltype(kThroughFp32<Op>), const NoOther>)
      if (now.plain && products::slow_in(now.dtype))
        if (auto result = kThroughFp32<Op>(unwrap(arguments)...)) return *std::move(result);
    if constexpr (device == c10::DeviceType::CPU &&
                  !std::is_same_v<decltype(kInRegion<Op>), const NoOther>)
      if (now.plain)
        if (auto result = kInRegion<Op>(unwrap(arguments)...)) return *std::move(result);
    return Op::redispatch(below, unwrap(arguments)...);
  }

  // Flattened, the device is known wherever an argument is looked at.
  DEMI_FLATTEN static Result call(c10::DispatchKeySet keys, Arguments... arguments) {
    Call now(device, number, /*held=*/0, keys);
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(kKey<device>);
    (now.add_argument(arguments), ...);
    now.choose_dtype();
    try {
      if constexpr (!std::is_same_v<decltype(kByRecipe<Op>), const NoOther>)
        if (now.is_by_recipe()) [[unlikely]]
          if (auto result = kByRecipe<Op>(now, arguments...)) return *std::move(result);
      return run(now, keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey<device>),
                 cast(now, arguments)...);
    } catch (c10::Error& error) {
      c10::SmallVector<c10::ScalarType, 8> dtypes;
      (note(dtypes, arguments), ...);
      explain(error, now, dtypes);
      throw;
    }
  }
};

using Register = void (*)(torch::Library&, const char*, int);

template <c10::DeviceType device, class Op>
void register_one(torch::Library& library, const char* name, int number) {
  Hot<device, Op>::number = number;
  library.impl(name, TORCH_FN((Hot<device, Op>::call)));
}

template <c10::DeviceType device>
const std::map<std::string, Register, std::less<>>& hot_ops() {
  namespace ops = at::_ops;
  static const std::map<std::string, Register, std::less<>> table{
      {"aten::linear", register_one<device, ops::linear>},
      {"aten::addmm", register_one<device, ops::addmm>},
      {"aten::mm", register_one<device, ops::mm>},
      {"aten::bmm", register_one<device, ops::bmm>},
      {"aten::matmul", register_one<device, ops::matmul>},
      {"aten::baddbmm", register_one<device, ops::baddbmm>},
      {"aten::conv1d", register_one<device, ops::conv1d>},
      {"aten::conv2d", register_one<device, ops::conv2d>},
      {"aten::conv3d", register_one<device, ops::conv3d>},
      {"aten::conv1d.padding", register_one<device, ops::conv1d_padding>},
      {"aten::conv2d.padding", register_one<device, ops::conv2d_padding>},
      {"aten::conv3d.padding", register_one<device, ops::conv3d_padding>},
      {"aten::conv_transpose1d", register_one<device, ops::conv_transpose1d>},
      {"aten::conv_transpose2d.input", register_one<device, ops::conv_transpose2d_input>},
      {"aten::conv_transpose3d.input", register_one<device, ops::conv_transpose3d_input>},
      {"aten::prelu", register_one<device, ops::prelu>},
      {"aten::scaled_dot_product_attention",
       register_one<device, ops::scaled_dot_product_attention>},
      {"aten::gelu", register_one<device, ops::gelu>},
  };
  return table;
}

}  // namespace

bool register_hot_kernel(torch::Library& library, c10::DeviceType device, const std::string& op,
                         int number) {
  const bool is_known_device = device == c10::DeviceType::CPU || device == c10::DeviceType::CUDA;
  if (!is_known_device) return false;
  const auto& table = device == c10::DeviceType::CPU ? hot_ops<c10::DeviceType::CPU>()
                                                     : hot_ops<c10::DeviceType::CUDA>();
  const auto found = table.find(op);
  if (found == table.end()) return false;
  found->second(library, op.c_str(), number);
  return true;
}

}  // namespace demi
