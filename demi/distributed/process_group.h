#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "demi/core/export.h"

namespace demi::distributed {

class Collective;
class Store;

/// How the tensors of all ranks become one: their sum, or the greatest of each element.
enum class Reduction { kSum, kMax };

/// How processes meet, and what happens if one does not come or is lost.
struct ProcessGroupOptions {
  /// How the ranks meet: "env://" (MASTER_ADDR and MASTER_PORT, which torchrun sets),
  /// "tcp://HOST:PORT" of rank 0, or "file:///PATH" for ranks that share a file system. The file
  /// may be that of an earlier start; the last rank to end deletes it.
  std::string init_method = "env://";
  /// This process's number; given with `world_size` or not at all. None: what torchrun, mpirun or
  /// srun says in the environment; one rank if none of them started this process.
  std::optional<int> rank = std::nullopt;
  std::optional<int> world_size = std::nullopt;  // with `rank`: processes of the job
  /// Longest wait until all ranks have come.
  std::chrono::milliseconds start_timeout{5 * 60'000};
  /// Longest time of a collective: from its start on this rank until every rank has taken part.
  std::chrono::milliseconds timeout{30 * 60'000};
  /// A rank that gives no sign of life for this long is gone; the others then end at once. A rank
  /// whose connections break is noticed within seconds.
  std::chrono::milliseconds dead_after{60'000};
  /// Distinguishes several groups of one process.
  std::string name = "main";
  /// all_reduce, broadcast and all_gather compare kind, dtype, shape and device over the ranks
  /// first, by one all-reduce of 16 bytes. Without it ranks that differ get wrong numbers, or the
  /// process is aborted. Those that are started in two halves are not compared.
  bool compare_calls = true;
};

/// The processes of one job, each of which has a rank, and the collectives among them: LibTorch's
/// c10d, with Gloo for tensors of the CPU and NCCL for those of GPUs.
///
///     demi::distributed::ProcessGroup group;              // started by torchrun, mpirun or srun
///     torch::Tensor sums = torch::tensor({loss, count}, torch::kFloat64);
///     group.all_reduce(sums);                             // exact totals over all ranks
///
/// All ranks call the same collectives in the same order, from one thread at a time. A collective
/// that fails throws DeviceError, which names the rank that is gone, that left or that lags behind,
/// and so does every later one: a group does not recover. No rank waits for longer than `timeout`
/// and 5 seconds. Calls that differ between the ranks throw UsageError on all of them before
/// anything is sent, and the group stays as it was.
class DEMI_API ProcessGroup {
 public:
  /// Waits for all ranks. Throws DeviceError for variables that are missing, out of range or in
  /// contradiction, an address that does not answer, a port that is taken, ranks that did not come,
  /// and a LibTorch without collectives; UsageError for options that cannot be.
  explicit ProcessGroup(const ProcessGroupOptions& options = {});
  /// Notifies the other ranks. Waits at most for a few seconds.
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  /// This process's number in the job, 0 to world_size() - 1, and how many processes it has.
  int rank() const;
  int world_size() const;
  /// Among the processes of this machine: which GPU is this rank's. Throws DeviceError if no
  /// launcher said it.
  int local_rank() const;

  /// Over all ranks, in place and in the tensor's dtype, 16-bit sums rounded at each addition; the
  /// same bits on every rank. Throws UsageError on the CPU but for fp16, bf16, fp32, fp64, int8,
  /// uint8, int32, int64, sums of complex numbers and the greatest of bool.
  void all_reduce(const at::Tensor& tensor, Reduction reduction = Reduction::kSum);
  /// The tensor of rank `root`, of any dtype, in place.
  void broadcast(const at::Tensor& tensor, int root = 0);
  /// `all` becomes the tensors `own` of all ranks, of any dtype, one behind the other by rank;
  /// `own` has as many elements on each, and may be this rank's part of `all`.
  void all_gather(const at::Tensor& all, const at::Tensor& own);
  /// Waits until every rank has come here.
  void barrier();
  /// The first line in which the text of a rank differs from that of rank 0.
  struct Difference {
    int rank;                          // the rank that differs
    std::string line, line_of_rank_0;  // what each of the two has
  };
  /// The ranks whose text differs from rank 0's, in order, and the same on every rank; empty if all
  /// texts are the same.
  std::vector<Difference> compare(const std::string& text);
  /// Throws UsageError on every rank if the texts differ; the message names the first line that
  /// differs and the ranks. `what` is part of the message: "the model".
  void require_same(const std::string& what, const std::string& text);

  /// A collective that was started and not waited for. The tensor belongs to it until wait(). It is
  /// not compared over the ranks: they have to agree on dtype and shape before.
  class DEMI_API Pending {
   public:
    Pending();
    ~Pending();
    Pending(Pending&&) noexcept;
    Pending& operator=(Pending&&) noexcept;
    /// Whether it has been started, and not waited for.
    bool is_under_way() const { return impl_ != nullptr; }
    /// Once. Throws as the collective itself. Returns when it ended, by the steady clock.
    std::chrono::steady_clock::time_point wait();

   private:
    friend class ProcessGroup;
    struct Impl;
    std::unique_ptr<Impl> impl_;
  };
  /// `what` is named if it fails.
  Pending start_broadcast(const at::Tensor& tensor, int root,
                          const std::string& what = "broadcast");
  /// `own` of each rank, one after the other, becomes `all` on every rank. `what` is named if it
  /// fails.
  Pending start_all_gather(const at::Tensor& all, const at::Tensor& own,
                           const std::string& what = "all_gather");
  /// `tensor` becomes the reduction of all ranks' tensors, in place. `what` is named if it fails.
  Pending start_all_reduce(const at::Tensor& tensor, Reduction reduction = Reduction::kSum,
                           const std::string& what = "all_reduce");

 protected:
  /// A group on a store of the test's choice.
  ProcessGroup(std::shared_ptr<Store> store, int rank, int world_size,
               const ProcessGroupOptions& options);

 private:
  struct Impl;
  void meet(const std::shared_ptr<Store>& store, const ProcessGroupOptions& options);
  /// Whether all ranks have the same text, by a checksum of 64 bits.
  bool is_same(const std::string& text, const std::string& what);
  std::vector<Difference> differences(const std::string& text);
  void require_same_call(const char* what, const at::Tensor& tensor, const std::string& how);
  Pending start(const at::Tensor& tensor, const std::string& what,
                const std::function<std::unique_ptr<Collective>()>& begin);
  std::shared_ptr<Impl> impl_;
};

/// The text of rank `root`, on every rank. A collective; throws as ProcessGroup::broadcast.
DEMI_API std::string broadcast_text(const std::string& own, int root, ProcessGroup& group);

}  // namespace demi::distributed
