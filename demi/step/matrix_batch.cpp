#include "demi/step/matrix_batch.h"

#include "demi/kernels/rule_info.h"
#include "demi/step/matrices.h"
#include "demi/tensor/version.h"

namespace demi::optim {
namespace {

/// Elements of a batch at most, unless one tensor has more. Products hold about four times as much.
constexpr std::int64_t kMostElements = std::int64_t{1} << 26;

}  // namespace

bool are_alike(const Member& a, const Member& b) {
  return tensor::same(a.work.sizes(), b.work.sizes()) &&
         tensor::same(a.work.strides(), b.work.strides());
}

std::vector<MatrixBatch> matrix_batches(const kernels::StepPlan& plan,
                                        const std::vector<Member>& members,
                                        const std::vector<int>& group_of, const Groups& groups) {
  std::vector<MatrixBatch> batches;
  for (const kernels::RuleRange& range : plan.ranges()) {
    if (!kernels::info_of(range.rule).applied_by) continue;
    for (std::int32_t t = range.first_tensor; t < range.end_tensor; ++t) {
      const auto i = static_cast<std::size_t>(t);
      const MatrixOptions& options = groups.matrices[static_cast<std::size_t>(group_of[i])];
      const c10::ScalarType dtype = product_dtype(members[i].work, options);
      const std::int64_t elements =
          (members[i].work.numel() + kernels::kBlock - 1) / kernels::kBlock * kernels::kBlock;
      const std::int64_t bytes = elements * static_cast<std::int64_t>(c10::elementSize(dtype));
      const std::int64_t most = kMostElements * static_cast<std::int64_t>(c10::elementSize(dtype));
      if (options.batched && t > range.first_tensor && group_of[i] == group_of[i - 1] &&
          are_alike(members[i], members[i - 1]) && batches.back().bytes + bytes <= most) {
        batches.back().end_tensor = t + 1;
        batches.back().bytes += bytes;
      } else {
        batches.push_back({t, t + 1, dtype, bytes});
      }
    }
  }
  return batches;
}

}  // namespace demi::optim
