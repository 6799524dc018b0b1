#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "demi/core/export.h"
#include "demi/monitor/format_loss.h"

namespace demi::monitor {

/// The tensor of an op.
enum class TensorPlace : std::uint8_t {
  input,            // an FP32 tensor that the region casts for the op
  output,           // the result of the op
  weights,          // a parameter that the region casts for the op
  input_gradient,   // of the FP32 tensor that is cast
  output_gradient,  // the gradient of its result
  weight_gradient,  // the gradient of a parameter
};

/// "output", "gradient of output".
DEMI_API std::string_view name_of(TensorPlace place);

/// A part of a model or an op that is to compute in FP32, and the tensor that is the reason.
struct Cure {
  /// Whether a part of the model or an op of every layer is to compute in FP32.
  enum class Kind : std::uint8_t { part, op };
  Kind kind = Kind::part;  // what `name` names
  std::string name;  // of the part or the op, as a policy file has it: "layers.0", "mul.Tensor"
  std::string layer, op;                    // of the tensor
  TensorPlace place = TensorPlace::output;  // which tensor of that op
  FormatLoss loss;                          // what the format did to it
  /// The fault of a batch in the format without this cure, as cause_of(Origin); "": `loss` is the
  /// reason.
  std::string made;
  std::int64_t step = 0;  // of that batch
};

/// "part layers.0: the output of addmm in layers.0 reaches 98304, beyond fp16, first in step 1", or
/// "op sigmoid: Inf or NaN in step 1 in fp16, as aten::log made it in forward, after the layer fc".
DEMI_API std::string to_string(const Cure& cure, c10::ScalarType format);

}  // namespace demi::monitor
