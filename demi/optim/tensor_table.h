#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_map>
#include <vector>

#include "demi/kernels/cpu_kernels.h"
#include "demi/kernels/step_plan.h"
#include "demi/optim/param_state.h"
#include "demi/weights/weights.h"

namespace demi::optim {

/// How a parameter relates to the array that the rule updates.
enum class Storage {
  kDirect,     // the parameter itself is that array
  kMaster,     // a master is; the parameter is the copy that the kernels write beside it
  kScattered,  // a dense array is (the master of a 16-bit parameter), copied to the parameter after
               // the step
};

/// One parameter of a table.
struct Member {
  at::Tensor parameter;
  ParamState* state = nullptr;
  Storage storage = Storage::kDirect;
  std::vector<int64_t> sizes, strides;  // of the parameter when the table was built
  at::Tensor work;               // what is updated: fp32, or fp64 for an fp64 parameter; dense
  int64_t written_version = -1;  // of a 16-bit parameter, when its master was last in step with it
  at::Tensor gradient;           // what the passes read: .grad, or a copy of it in work's layout
  at::TensorImpl* seen =
      nullptr;  // .grad when `gradient` was taken from it; held until the step ends
  const void* seen_data = nullptr;
  int64_t seen_version = -1;
  int64_t measured_version = -1;
  at::Tensor factor;  // recorded for the next step, or undefined
};

/// Which gradients a table reads; the others count as missing.
enum class Reads { kAll, k16Bit, kWide };

/// The parameters of one optimizer on one device, with the passes that work on them.
class TensorTable {
 public:
  /// `kernels`: of the CPU path in use, or null for tensor operations.
  TensorTable(const kernels::CpuKernels* kernels, kernels::Rule rule, std::vector<Member> members,
              const std::vector<int>& group_of, std::vector<kernels::Group> groups);

  kernels::StepPlan& plan() { return plan_; }
  std::vector<Member>& members() { return members_; }
  bool uses_kernels() const { return kernels_ != nullptr; }

  /// Takes the gradients that are there. Throws UsageError for one that does not fit. Returns
  /// whether any is another than the one measured last.
  bool refresh(Reads reads);
  bool has_gradients() const { return gradients_ > 0; }
  /// Whether a gradient is (is not) of 16 bits.
  bool has_16_bit() const { return has_16_bit_; }
  bool has_wide() const { return has_wide_; }

  /// Multiplies the gradients that are not of 16 bits by 1 / scale, in place.
  void unscale_wide(float inverse_scale);

  void measure();   // pass 1, and its sums into the plan's state
  void update();    // decides; unless skipped, pass 2 (LAMB: and 3)
  void end_step();  // lets gradients, factors and limits go

  /// Whether parameters, groups' moments and state are still those that the table was built for.
  bool fits(const std::vector<kernels::Group>& groups) const;

  /// The parameter's place, where this table reads its gradient in this step; else none.
  Member* reader_of(const at::Tensor& parameter);
  kernels::TensorEntry& entry_of(const Member& member) {
    return plan_.tensors()[&member - members_.data()];
  }

 private:
  bool take_gradient(size_t i, Reads reads);
  void begin();
  void finish();

  const kernels::CpuKernels* kernels_;
  std::vector<Member> members_;
  kernels::StepPlan plan_;
  std::unordered_map<const at::TensorImpl*, size_t> places_;
  std::vector<at::Tensor> direct_;  // parameters of the members of Storage::kDirect, in order
  std::vector<weights::StepTarget> targets_;
  int64_t grain_ = 1;  // blocks a thread takes at least
  int64_t gradients_ = 0;
  bool has_16_bit_ = false, has_wide_ = false;
};

bool is_16_bit(c10::ScalarType dtype);

/// Moments that the rule keeps for a parameter of that group.
int moments_of(kernels::Rule rule, const kernels::Group& group);

}  // namespace demi::optim
