#pragma once

#include <torch/torch.h>

#include <cstdlib>
#include <limits>
#include <string>

#include "demi/core/error.h"

namespace demi::optim::testing {

inline constexpr float kInf = std::numeric_limits<float>::infinity();

/// A parameter of this dtype with fixed, uneven values.
inline at::Tensor parameter(at::IntArrayRef shape, at::ScalarType dtype = at::kFloat,
                            double seed = 1) {
  const at::Tensor values =
      (at::arange(c10::multiply_integers(shape), at::kDouble) * 0.7 + seed).sin();
  return values.reshape(shape).to(dtype).requires_grad_();
}

/// A gradient of this dtype, another for each step.
inline at::Tensor gradient(const at::Tensor& parameter, at::ScalarType dtype, int step) {
  const at::Tensor values = (at::arange(parameter.numel(), at::kDouble) * 1.3 + step).cos();
  return values.reshape(parameter.sizes()).to(dtype);
}

inline void set_grad(const at::Tensor& parameter, const at::Tensor& gradient) {
  parameter.mutable_grad() = gradient;
}

/// The message of the UsageError that `call` throws, or "".
template <typename Call>
std::string complaint(const Call& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

/// Sets an environment variable for a scope.
class ScopedEnvironment {
 public:
  ScopedEnvironment(const char* name, const char* value) : name_(name) {
    if (const char* was = std::getenv(name)) before_ = was;
    setenv(name, value, 1);
  }
  ~ScopedEnvironment() { before_.empty() ? unsetenv(name_) : setenv(name_, before_.c_str(), 1); }

 private:
  const char* name_;
  std::string before_;
};

}  // namespace demi::optim::testing
