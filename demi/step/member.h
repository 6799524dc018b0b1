#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/DimVector.h>
#include <c10/util/intrusive_ptr.h>

#include <optional>
#include <vector>

#include "demi/kernels/step_table.h"
#include "demi/step/backend.h"
#include "demi/step/matrix_options.h"
#include "demi/step/ownership.h"
#include "demi/step/param_state.h"
#include "demi/step/step_options.h"

namespace demi::optim {

/// The array that the update rule works on.
enum class Target {
  kParameter,  // the parameter itself
  kMaster,     // the fp32 master of a dense 16-bit parameter; kernels write the parameter too
  kCoded,      // the dense 16-bit parameter itself, with the remainder beside it
  kStaging,    // a dense array, copied to the parameter after the step
  kNone,       // nothing: the gradient is measured, and another process updates the parameter
};

/// A gradient for which something was measured or recorded. It is kept alive, so that its address
/// is not used again.
struct HeldGradient {
  at::Tensor gradient;
  const void* data = nullptr;
  int64_t version = 0;
  std::uint64_t arrivals = 0;
};

/// A gradient as PendingStep::unscale_ left it, which does not keep it alive.
struct UnscaledGradient {
  explicit UnscaledGradient(const at::Tensor& gradient = {}, std::uint64_t so_far = 0);
  bool is(const at::Tensor& gradient) const;

  c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl> tensor;
  int64_t version = -1;
  std::uint64_t arrivals = 0;
  bool divided = false;  // in place
};

/// A 16-bit parameter as the step last wrote it. The memory is part of it, since set_data() and
/// .data() writes change no version.
struct WrittenParameter {
  int64_t version = -2;  // -2: not yet
  c10::weak_intrusive_ptr<c10::StorageImpl> storage{c10::intrusive_ptr<c10::StorageImpl>()};
  const void* data = nullptr;
};

/// One parameter of a table.
struct Member {
  at::Tensor parameter;
  ParamState* state = nullptr;
  std::int32_t number = 0;  // through all groups of the optimizer
  Target target = Target::kParameter;
  // The parameter's form when the table was built.
  c10::DimVector sizes, strides;
  c10::ScalarType dtype = c10::ScalarType::Float;
  c10::Device device = c10::kCPU;
  /// The array that is updated: dense; fp32, or fp64 for an fp64 parameter. Target::kNone and
  /// kCoded: the parameter, whose layout and device count alone.
  at::Tensor work;
  std::optional<kernels::WeightCodec> codec;  // Target::kCoded
  /// The mode that the state was saved in, if it is another one, and the greatest error that the
  /// conversion made.
  std::optional<WeightMode> saved_as;
  double coding_error = 0;
  WrittenParameter written;
  /// The gradient that the passes read: .grad, or `staged`.
  const at::Tensor* gradient = nullptr;
  /// A copy of .grad in the layout of `work`.
  at::Tensor staged;
  HeldGradient held;
  UnscaledGradient unscaled;
  /// Counts gradients from backward; null: not known.
  Arrivals arrivals;
  /// Recorded for the next step: fp32, (), on the device of `work`; or undefined.
  at::Tensor factor;
};

/// A member and the index of its parameter group.
struct GroupedMember {
  Member member;
  int group;
};

/// Hyper-parameters of all parameter groups.
struct Groups {
  std::vector<kernels::Group> numbers;
  /// Learning rates by the count of steps taken: fp64, CPU. Undefined: no schedule.
  std::vector<at::Tensor> rates;
  /// Options of each group whose rule is one of matrices. Empty if there is none.
  std::vector<MatrixOptions> matrices;
};

/// The parameter with its state: what is missing of the state is made, the rest is put into the
/// layout, dtype and device of the array that is updated.
Member make_member(const at::Tensor& parameter, ParamState& state, const kernels::Group& group,
                   const Backend& backend, const StepOptions& options);

/// The states of the parameter that are kept in fewer bits; bit k is info_of(rule).states[k].
std::uint32_t states_coded(const at::Tensor& parameter, const kernels::Group& group,
                           Moments moments);

/// A parameter whose gradient counts in norm and finding, and which another process updates. It
/// needs no state.
Member make_measured_member(const at::Tensor& parameter);

/// The dtype of the update's arithmetic: fp32, or fp64 for an fp64 parameter.
c10::ScalarType arithmetic_of(const Member& member);

int64_t version_of(const at::Tensor& tensor);
const void* data_of(const at::Tensor& tensor);
std::uint64_t arrivals_of(const Member& member);

/// Whether the gradient is the held one, with no write to it since.
bool is_unchanged(const HeldGradient& held, const at::Tensor& gradient);
/// Whether the gradient is the held one, written to by nobody but the user: backward makes another
/// gradient of it.
bool is_still_there(const Member& member, const at::Tensor& gradient);

/// The fp32 numbers of a Target::kCoded member, a copy.
at::Tensor weight_of(const Member& member);
/// Writes them.
void put_weight(Member& member, const at::Tensor& fp32, const kernels::RoundingKey& key);

/// Writes the elements of a 16-bit parameter that the user has changed to its master; the other
/// elements of the master keep their lower bits.
void refresh_master(Member& member);
void note_as_written(Member& member);

}  // namespace demi::optim
