#include "demi/step/read_gradient.h"

#include <torch/types.h>

#include <string>

#include "demi/core/error.h"
#include "demi/tensor/dtype.h"
#include "demi/tensor/version.h"

namespace demi::optim {
namespace {

[[noreturn]] void refuse_gradient(const Member& member, const char* what, const std::string& seen,
                                  const std::string& accepted) {
  std::string where = "a gradient ";
  where.append(what)
      .append(" (parameter of shape ")
      .append(c10::str(member.parameter.sizes()))
      .append(")");
  throw UsageError({.where = "optim.step", .what = where, .seen = seen, .accepted = accepted});
}

void check_gradient(const Member& member, const at::Tensor& gradient) {
  if (!tensor::same(gradient.sizes(), member.parameter.sizes()))
    refuse_gradient(member, "has another shape than its parameter", c10::str(gradient.sizes()),
                    c10::str(member.parameter.sizes()));
  if (gradient.device() != member.parameter.device())
    refuse_gradient(member, "lies on another device than its parameter", gradient.device().str(),
                    member.parameter.device().str());
  if (!at::isFloatingType(gradient.scalar_type()))
    refuse_gradient(member, "is not of a floating point dtype",
                    c10::toString(gradient.scalar_type()), "fp32, fp16, bf16, fp64");
}

/// Element i of the gradient's memory belongs to element i of work's.
bool has_layout_of(const at::Tensor& gradient, const at::Tensor& work) {
  if (gradient.layout() != at::kStrided) return false;
  if (gradient.is_contiguous() && work.is_contiguous()) return true;
  return tensor::same(gradient.strides(), work.strides()) &&
         gradient.is_non_overlapping_and_dense();
}

bool is_readable(const at::Tensor& gradient, const at::Tensor& work) {
  const bool dtype = work.scalar_type() == at::kDouble || gradient.scalar_type() == at::kFloat ||
                     tensor::is_16_bit(gradient.scalar_type());
  return dtype && has_layout_of(gradient, work);
}

/// The gradient as a dense array like work's. Duplicates of a sparse one are summed in fp32 or
/// wider.
at::Tensor staged(const at::Tensor& gradient, const Member& member) {
  const at::NoGradGuard no_grad;
  const c10::ScalarType wide = arithmetic_of(member);
  const auto made = [&](c10::ScalarType dtype) {
    return at::empty_like(member.work, member.work.options().dtype(dtype));
  };
  if (gradient.layout() != at::kStrided) return made(wide).copy_(gradient.to(wide).to_dense());
  const bool keep = tensor::is_16_bit(gradient.scalar_type());
  return made(keep ? gradient.scalar_type() : wide).copy_(gradient);
}

}  // namespace

void set_read_gradient(Member& member, const at::Tensor& gradient) {
  check_gradient(member, gradient);
  const bool is_direct = is_readable(gradient, member.work);
  if (!is_direct) member.staged = staged(gradient, member);
  member.gradient = is_direct ? &gradient : &member.staged;
}

}  // namespace demi::optim
