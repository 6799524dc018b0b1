#pragma once

#include <torch/nn/cloneable.h>

#include <memory>
#include <optional>
#include <ostream>
#include <typeinfo>

#include "demi/core/export.h"

namespace demi::nn {

/// Throws UsageError for a module of a class that derives from `known`: clone() knows `known`
/// alone.
DEMI_API void require_type(const torch::nn::Module& module, const std::type_info& known);

/// Gives `copy` what LibTorch's clone() leaves out: frozen parameters, the modes of containers, and
/// policies of parts that stay if the memory is replaced.
DEMI_API void complete_copy(const torch::nn::Module& original, const torch::nn::Module& copy);

/// The type of a module as LibTorch prints it, without "Impl".
DEMI_API void print_type(const torch::nn::Module& module, std::ostream& stream);

/// The base of demi's modules: they are copied by clone(), alone, in LibTorch's containers, as
/// members of another Cloneable, and by data_parallel. A copy has the original's values, buffers,
/// modes and policies; frozen parameters stay frozen, which those of LibTorch's modules do not.
/// Like theirs, clone() draws first values from the generator before it copies the original's.
template <class Derived>
class Cloneable : public torch::nn::Cloneable<Derived> {
 public:
  /// A deep copy, on `device` if one is given. Throws UsageError for a class that derives from
  /// Derived: it has to override clone().
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override {
    require_type(*this, typeid(Derived));
    auto copy = torch::nn::Cloneable<Derived>::clone(device);
    complete_copy(*this, *copy);
    return copy;
  }

  /// The type's name. LibTorch prints the parts after it.
  void pretty_print(std::ostream& stream) const override { print_type(*this, stream); }
};

}  // namespace demi::nn
