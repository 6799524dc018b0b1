#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace demi::recomputation {

/// Puts back what this thread's ops write to leaves that were there before, values and versions, at
/// the end of the scope: the running statistics of BatchNorm, counters, vectors of spectral norms.
/// Such ops have been run before, and have written there already.
///
/// No other observer of this thread's ops sees what runs meanwhile.
class OutsideWrites {
 public:
  OutsideWrites();
  ~OutsideWrites();
  OutsideWrites(const OutsideWrites&) = delete;
  OutsideWrites& operator=(const OutsideWrites&) = delete;

 private:
  static std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& op);
  static void on_end(const at::RecordFunction& op, at::ObserverContext*);
  bool is_outside(const at::Tensor& tensor);
  void keep(const at::Tensor& written);

  struct Kept {
    at::Tensor tensor, values;
    std::int64_t version;
  };
  std::vector<Kept> kept_;
  // Storages by who showed them first: an op as its result, or as its argument. The latter are
  // held, so that no address is used again.
  std::unordered_set<const void*> made_;
  std::unordered_map<const void*, c10::Storage> outside_;
  int depth_ = 0;
  at::RecordFunctionTLS observers_;
  OutsideWrites* outer_;
};

}  // namespace demi::recomputation
