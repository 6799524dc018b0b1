#include "demi/monitor/cure.h"

#include <fmt/format.h>

#include "demi/monitor/step_graph.h"
#include "demi/tensor/dtype.h"

namespace demi::monitor {
namespace {

std::string reason_of(const Cure& cure, std::string_view format) {
  const FormatLoss& loss = cure.loss;
  if (loss.overflowed > 0)
    return fmt::format("reaches {:.6g}{}, beyond {}, first in step {}", loss.greatest,
                       is_gradient(cure.place) ? " with the loss scale" : "", format,
                       loss.first_overflow);
  return fmt::format("would lose {:.0f} % of its norm to numbers that {} rounds to zero",
                     100 * loss.lost(), format);
}

}  // namespace

std::string_view name_of(TensorPlace place) {
  switch (place) {
    case TensorPlace::input:
      return "input";
    case TensorPlace::output:
      return "output";
    case TensorPlace::weights:
      return "weights";
    case TensorPlace::input_gradient:
      return "gradient of input";
    case TensorPlace::output_gradient:
      return "gradient of output";
    case TensorPlace::weight_gradient:
      break;
  }
  return "gradient of weights";
}

std::string to_string(const Cure& cure, c10::ScalarType format) {
  const std::string kind = cure.kind == Cure::Kind::part ? "part " : "op ";
  if (!cure.made.empty())
    return fmt::format("{}{}: Inf or NaN in step {} in {}, as {}", kind, cure.name, cure.step,
                       tensor::name_of(format), cure.made);
  const std::string layer = cure.layer.empty() ? "" : " in " + cure.layer;
  return fmt::format("{}{}: the {} of {}{} {}", kind, cure.name, name_of(cure.place), cure.op,
                     layer, reason_of(cure, tensor::name_of(format)));
}

}  // namespace demi::monitor
