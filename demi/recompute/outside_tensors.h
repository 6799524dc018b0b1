#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <unordered_map>
#include <vector>

namespace demi::recomputation {

/// The tensors from before a function's run that it has read and written.
struct OutsideTensors {
  /// A leaf as it was before the first write: running statistics of BatchNorm, counters, vectors of
  /// spectral norms.
  struct Written {
    at::Tensor tensor;
    at::Tensor values;  // undefined where those of the same elements are kept already
    std::int64_t version;
  };
  struct Read {
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor;
    std::int64_t version;
  };
  std::vector<Written> written;
  std::vector<Read> read;  // and not written
};

struct WrittenArguments;

/// Watches the ops of this thread until the end of the scope.
class OutsideWatch {
 public:
  /// A first run. Other observers of ops see it as well.
  OutsideWatch();
  /// The tensors that the function has read and written so far.
  OutsideTensors take();

  /// A second run: restores the values and versions, from before the first run, of the tensors that
  /// it wrote, and at the end of the scope those that are found now. No other observer of this
  /// thread's ops sees this run's ops.
  explicit OutsideWatch(const OutsideTensors& first);
  /// Whether an op under way may have yet to write to it.
  bool is_being_written(const at::Tensor& tensor) const;

  ~OutsideWatch();
  OutsideWatch(const OutsideWatch&) = delete;
  OutsideWatch& operator=(const OutsideWatch&) = delete;

  /// Throws what went wrong when values were kept.
  void check() const;

 private:
  enum class Run { first, second };
  explicit OutsideWatch(Run run);

  static std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& op);
  static void on_end(const at::RecordFunction& op, at::ObserverContext* is_range);
  void start(const at::RecordFunction& op, const WrittenArguments* written);
  void end(const at::RecordFunction& op);
  bool is_outside(const at::Tensor& tensor);
  void keep(const at::Tensor& written);
  bool is_kept(const at::Tensor& tensor) const;
  bool is_ours_alone(const at::Tensor& tensor) const;
  /// The watch around this one that sees the same ops, or null.
  OutsideWatch* outer() const { return run_ == Run::first ? outer_ : nullptr; }

  /// A storage, by who showed it first: an op as its result, or as its argument. The latter are
  /// known weakly, so that no address is used again.
  struct Known {
    bool is_made = false;
    c10::weak_intrusive_ptr<c10::StorageImpl> storage{c10::intrusive_ptr<c10::StorageImpl>()};
  };
  struct UnderWay {
    int depth;
    const void* storage;
  };

  const Run run_;
  OutsideWatch* const outer_;
  OutsideTensors seen_;
  std::unordered_map<const void*, Known> known_;
  std::vector<UnderWay> under_way_;
  int depth_ = 0;
  std::exception_ptr failure_;
  at::CallbackHandle callback_ = 0;
  at::RecordFunctionTLS observers_;
};

}  // namespace demi::recomputation
