#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "demi/step/step_result.h"
#include "demi/tensor/replaced_parameter.h"

namespace torch::nn {
class Module;
}

namespace demi {

/// Exponential moving average of weights: average += (1 - decay) (weight - average), after each
/// step that was taken; as torch.optim.swa_utils.get_ema_multi_avg_fn. Averages are fp32 (fp64 of
/// fp64 weights) and start as the weights; buffers (running statistics) are copied. A tensor that
/// the module names several times (a shared module, tied weights) has one average. A parameter
/// that optim::replace_parameter replaces takes its average along, row by row.
///
///     demi::EMA ema(*model);
///     ema.update(scaler.step(optimizer));   // a skipped step changes no average
///     {
///       demi::EMA::InPlace averages(ema);
///       evaluate(model);
///     }
class DEMI_API EMA : private tensor::ReplacementObserver {
 public:
  /// decay: 0 to 1. The module must outlive it. Throws UsageError if a parameter and a buffer of
  /// the module have the same name.
  explicit EMA(torch::nn::Module& module, double decay = 0.999);

  /// Moves the averages towards the weights, after a step.
  void update();
  /// Moves all averages, unless the step was skipped. A device decides that itself, and nothing
  /// waits. For a 16-bit parameter of demi's optimizers the average is that of the numbers that are
  /// trained, not of their rounding. Throws UsageError if another process keeps those
  /// (ShardedOptimizerState).
  void update(const StepResult& result);
  /// The steps of several optimizers: an average follows those that hold its parameter, and stays
  /// if they were all skipped. Buffers, and parameters that no optimizer holds, stay if all steps
  /// were skipped. An optimizer that is not among them counts as none: for one that did not step
  /// give a result that was skipped, as loop::Step does. The optimizers must be alive.
  void update(const std::vector<StepResult>& results);

  /// Puts the averages in the place of the weights, to evaluate with them. A second call brings the
  /// weights back bit for bit. 16-bit weights get rounded averages. Several EMAs of one module
  /// nest: the last one put in place goes back first. Throws UsageError if a weight is not its
  /// average any more, since training or another EMA wrote to it; restore() brings the weights back
  /// all the same. In between, update() and load() throw UsageError. An EMA that is destroyed then
  /// leaves the averages in the module.
  void swap();
  /// Brings the weights back, whatever has been written to their place. Does nothing unless
  /// is_swapped().
  void restore();

  /// Puts the averages in the weights' places while it lives. The weights come back, too, if an
  /// exception ends its scope.
  class DEMI_API InPlace {
   public:
    /// Throws UsageError if the averages are in place already.
    explicit InPlace(EMA& ema);
    ~InPlace() { ema_.restore(); }
    InPlace(const InPlace&) = delete;
    InPlace& operator=(const InPlace&) = delete;

   private:
    EMA& ema_;
  };

  /// Whether the averages are in the place of the weights now.
  bool is_swapped() const { return swapped_; }

  /// The averages by the module's parameter or buffer name; a tensor with several names has its
  /// first.
  const std::map<std::string, at::Tensor>& averages() const { return averages_; }
  /// A tensor with several names is read under any of them. Throws UsageError if names or shapes
  /// differ, and then changes nothing. Lets go of each tensor once it is copied.
  void load(std::map<std::string, at::Tensor> averages);
  /// The averages begin anew, as the weights are now. Throws UsageError while they are in the place
  /// of the weights.
  void restart();
  /// Throws what load() would throw, and changes nothing.
  void check(const std::map<std::string, at::Tensor>& averages) const;

 private:
  struct Entry {
    at::Tensor tensor;  // of the module
    bool is_buffer = false;
    std::vector<std::string> names;
    // While the averages are in place:
    at::Tensor parked;         // the tensor's own values
    std::int64_t version = 0;  // of the tensor with the average in it
  };

  void require_replaceable(const tensor::Replacement& replacement) const override;
  void replace(const tensor::Replacement& replacement) override;
  void add(const std::string& name, const at::Tensor& tensor, bool is_buffer);
  /// `skipped`: fp32, (), decides on its device; undefined: not skipped. `fp32`: the numbers to
  /// average in place of the tensor, or undefined.
  void update_entry(Entry& entry, const at::Tensor& skipped, const at::Tensor& fp32);
  /// The one among `averages` that stands under a name of the entry, or the end.
  static std::map<std::string, at::Tensor>::const_iterator find(
      const Entry& entry, const std::map<std::string, at::Tensor>& averages);
  void require_not_swapped(const char* what) const;
  void require_in_place() const;

  double decay_;
  std::vector<Entry> entries_;  // one a tensor
  std::map<std::string, at::Tensor> averages_;
  bool swapped_ = false;
};

}  // namespace demi
