#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "demi/tensor/kept_results.h"

namespace demi::recomputation {

/// The results of a function's matrix products, convolutions and attention: stored in its first
/// run, returned in its second. A result that was written to since is not used, but computed.
class KeptProducts {
 public:
  using Tensors = tensor::KeptResults::Tensors;
  class Storing;
  class Finding;

  /// Registers kernels for LibTorch's ops, once a process.
  KeptProducts();

  /// Drops the results that the second run will not ask for: those stored when autograd had saved
  /// `saved` tensors or more.
  void drop_from(std::size_t saved);

 private:
  struct One {
    const char* op;
    Tensors tensors;
    std::vector<std::int64_t> versions;
    std::size_t saved;
  };
  std::vector<One> all_;
};

class KeptProducts::Storing final : public tensor::KeptResults {
 public:
  /// `saved` counts the tensors that autograd has saved so far.
  Storing(KeptProducts& kept, c10::function_ref<std::size_t()> saved)
      : kept_(kept), saved_(saved) {}
  Tensors results(const char* op, c10::function_ref<Tensors()> compute) override;

 private:
  KeptProducts& kept_;
  c10::function_ref<std::size_t()> saved_;
};

class KeptProducts::Finding final : public tensor::KeptResults {
 public:
  explicit Finding(const KeptProducts& kept) : kept_(kept) {}
  /// Throws UsageError if the first run had another op in this place.
  Tensors results(const char* op, c10::function_ref<Tensors()> compute) override;

 private:
  const KeptProducts& kept_;
  std::size_t next_ = 0;
};

}  // namespace demi::recomputation
