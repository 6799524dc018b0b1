#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <unordered_map>
#include <vector>

#include "demi/kernels/step_plan.h"
#include "demi/step/backend.h"
#include "demi/step/device_plan.h"
#include "demi/step/member.h"
#include "demi/step/streams.h"
#include "demi/step/write_watch.h"
#include "demi/weights/step_targets.h"

namespace demi::optim {

/// The parameters of one optimizer on one device, with the passes that work on them.
class TensorTable {
 public:
  /// `state`: on the device if the kernels are a device's (make_state), else undefined.
  TensorTable(TableKernels kernels, kernels::UpdateRule rule, std::vector<Member> members,
              const std::vector<int>& group_of, const Groups& groups, at::Tensor state);

  kernels::StepPlan& plan() { return plan_; }
  std::vector<Member>& members() { return members_; }
  c10::Device device() const { return members_.front().work.device(); }
  /// true: the state is on the device, and that of plan() is not in use.
  bool is_on_device() const { return device_.has_value(); }
  /// The state on the device.
  const at::Tensor& state() const { return state_; }

  /// Reads .grad of all parameters anew. Its pointers are valid until the calling function of the
  /// optimizer ends. Throws UsageError for a gradient that does not fit. Returns whether any
  /// gradient is not the one measured last. `unscaled`: wide gradients carry no scale any more.
  bool refresh(bool unscaled);
  /// Held gradients that the last refresh() found, and those that it did not (they are gone,
  /// replaced or made anew by a backward that added to a zeroed one). What was recorded for the
  /// lost ones is forgotten.
  int64_t kept() const { return kept_; }
  int64_t lost() const { return lost_; }
  /// Notices a write to a 16-bit gradient from now on. One of them is watched, since clipping
  /// writes all.
  void watch_narrow();
  /// Whether a 16-bit gradient was written to since it was held, or the program has put another
  /// tensor in its place, which it may have made of it.
  bool narrow_written() const { return narrow_written_; }
  bool has_gradients() const { return gradients_ > 0; }
  /// Whether a gradient is not of 16 bits.
  bool has_wide() const { return has_wide_; }

  /// fp32, (), on any device: an input on another device is copied once a step. Undefined: none.
  void set_inputs(const at::Tensor& scale, const at::Tensor& found_inf,
                  const kernels::StepInputs& others);
  /// Divides the gradients that are not of 16 bits by the scale, in place.
  void unscale_wide(const at::Tensor& scale);

  void measure();         // pass 1, and its sums into the state
  void keep_gradients();  // holds the present gradients until the step ends
  bool holds_all_unchanged() const;
  void update();    // decides; unless skipped, pass 2 (LAMB: and 3)
  void end_step();  // forgets gradients, factors and limits

  /// Whether parameters, the groups' moments and the state are those that the table was built for.
  bool matches(const Groups& groups) const;
  /// Takes over the groups' numbers.
  void update_groups(const Groups& groups);

  /// Null for a parameter of another table.
  Member* member_of(const at::Tensor& parameter);
  /// Null also for a parameter without a gradient in this step.
  Member* reader_of(const at::Tensor& parameter);
  kernels::TensorEntry& entry_of(const Member& member) {
    return plan_.tensors()[&member - members_.data()];
  }

 private:
  /// A tensor and its copy on this table's device.
  struct DeviceCopy {
    at::Tensor source, copy;
    /// Copies only if `tensor` is not the source yet.
    const float* pointer(const at::Tensor& tensor, c10::Device device);
  };

  bool read_gradient(size_t i, bool unscaled);
  void lose_gradient(Member& member, kernels::TensorEntry& entry);
  void note_stream();
  void begin();
  void run_update();
  void finish();

  TableKernels kernels_;
  std::vector<Member> members_;
  kernels::StepPlan plan_;
  at::Tensor state_;
  std::optional<DevicePlan> device_;
  std::unordered_map<const at::TensorImpl*, size_t> places_;
  weights::StepTargets targets_;  // members of Target::kParameter, in order
  DeviceCopy scale_, found_inf_;
  StreamUse streams_;
  WriteWatch watch_;
  std::vector<DeviceCopy> rates_;  // by group
  std::vector<int> moments_;       // by group
  int64_t grain_ = 1;              // least number of blocks for a thread
  int64_t gradients_ = 0, kept_ = 0, lost_ = 0;
  bool has_wide_ = false, narrow_written_ = false;
};

}  // namespace demi::optim
