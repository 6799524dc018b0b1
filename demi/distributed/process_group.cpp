#include "demi/distributed/process_group.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <exception>
#include <future>
#include <mutex>
#include <utility>

#include "demi/batch_norm/synchronised_layers.h"
#include "demi/core/error.h"
#include "demi/core/libtorch.h"
#include "demi/distributed/c10d.h"
#include "demi/distributed/collectives.h"
#include "demi/distributed/deadline.h"
#include "demi/distributed/launch.h"
#include "demi/distributed/liveness.h"
#include "demi/distributed/nccl.h"
#include "demi/distributed/rendezvous.h"
#include "demi/distributed/start.h"
#include "demi/distributed/store.h"
#include "demi/tensor/dtype.h"

namespace demi::distributed {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr const char* kCompare = "require_same";  // is named if it fails

double in_seconds(milliseconds time) { return static_cast<double>(time.count()) / 1e3; }

/// Ends of collectives, and findings of the watch: what a waiting rank waits for.
struct Events {
  std::mutex mutex;
  std::condition_variable changed;
  int under_way = 0;  // collectives that have begun and not ended
};

// What c10d may still use after a collective has failed is never destroyed.
void keep(std::shared_ptr<void> object) {
  static std::mutex mutex;
  static auto* all = new std::vector<std::shared_ptr<void>>;
  const std::lock_guard lock(mutex);
  all->push_back(std::move(object));
}

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return first_line(e);
  }
}

// The first line in which two texts differ: of both.
std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b) {
  size_t begin = 0, end = 0;
  const size_t common =
      static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
  if (common > 0) begin = a.rfind('\n', common - 1) + 1;  // 0 if there is none
  const auto line = [&](const std::string& text) {
    if (begin >= text.size()) return std::string("nothing");
    end = text.find('\n', begin);
    return text.substr(begin, end == std::string::npos ? end : end - begin);
  };
  return {line(a), line(b)};
}

// Fowler, Noll and Vo's FNV-1a of 64 bits.
std::uint64_t checksum(const std::string& text) {
  std::uint64_t sum = 14695981039346656037U;
  for (const char c : text) sum = (sum ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return sum;
}

template <class T>
std::function<bool()> is_ready(const std::shared_future<T>& made) {
  return [made] { return made.wait_for(milliseconds(0)) == std::future_status::ready; };
}

// "a line on rank 1, another one on rank 3"
std::string lines_on_ranks(const std::vector<ProcessGroup::Difference>& found) {
  std::vector<std::string> lines;
  for (const ProcessGroup::Difference& one : found)
    lines.push_back(fmt::format("{} on rank {}", one.line, one.rank));
  return fmt::format("{}", fmt::join(lines, ", "));
}

}  // namespace

std::string first_line(const std::exception& error) {
  const auto* c10 = dynamic_cast<const c10::Error*>(&error);
  const std::string text = c10 ? c10->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

struct ProcessGroup::Impl {
  Ranks ranks;
  milliseconds timeout{};
  std::shared_ptr<Store> store;  // null for one rank
  std::shared_ptr<Events> events = std::make_shared<Events>();
  std::shared_ptr<Collectives> collectives;
  std::shared_ptr<Collectives> on_gpu;  // made with the first tensor of a GPU
  std::optional<at::Device> gpu;        // on which that tensor is
  std::shared_ptr<Store> bare;          // of c10d; null for one rank
  std::string prefix;
  std::unique_ptr<Liveness> liveness;  // null for one rank
  std::string failure;                 // of the first collective that failed
  bool compares_calls = false;

  ~Impl();
  void start(const std::shared_ptr<Store>& bare_store, const std::string& named_by,
             const ProcessGroupOptions& options);
  Collectives& collectives_of(const at::Tensor& tensor, const std::string& what);
  void connect_gpus(at::Device device, const std::string& what);
  void wait_for_device(Collective& collective, Clock::time_point deadline, const std::string& what);
  bool is_rank_lost() const { return liveness && liveness->finding(); }
  WaitEnd wait_for_others(const std::function<bool()>& is_over, Clock::time_point deadline);
  std::string no_end() const { return fmt::format("no end after {:.1f} s", in_seconds(timeout)); }
  void check_alive(const std::string& what) const;
  [[noreturn]] void fail(const std::string& what, const std::string& error);
};

struct ProcessGroup::Pending::Impl {
  struct End {
    bool has_come = false;
    Clock::time_point at;
    std::exception_ptr error;
  };

  std::shared_ptr<ProcessGroup::Impl> group;
  std::unique_ptr<Collective> collective;
  at::Tensor tensor;
  std::string what;
  std::shared_ptr<End> end = std::make_shared<End>();  // guarded by group->events->mutex
};

void ProcessGroup::Impl::start(const std::shared_ptr<Store>& bare_store,
                               const std::string& named_by, const ProcessGroupOptions& options) {
  bare = bare_store;
  const auto began = Clock::now();
  timeout = options.timeout;
  const auto within_start = [&](std::shared_ptr<Store> part) {
    return std::make_shared<StoreWithTimeout>(std::move(part), options.start_timeout);
  };
  const auto all = within_start(bare);
  Rendezvous rendezvous(within_start(std::make_shared<PrefixedStore>(bare, named_by)), ranks.rank,
                        ranks.world_size, options.start_timeout,
                        [all] { return all->get(kEndedRank); });
  const std::string session = rendezvous.session();
  prefix = named_by + session + "/";
  const auto named = std::make_shared<PrefixedStore>(bare, prefix);
  WatchTimes times;
  times.interval = std::max(times.interval, milliseconds(ranks.world_size));
  times.dead_after = std::max(options.dead_after, 4 * times.interval);
  times.meeting_dead_after = std::max(times.meeting_dead_after, 4 * times.interval);
  auto watched = std::make_shared<StoreWithTimeout>(named->for_another_thread(), times.dead_after);
  liveness = std::make_unique<Liveness>(std::move(watched), ranks.rank, ranks.world_size, times,
                                        [events = events] {
                                          const std::lock_guard lock(events->mutex);
                                          events->changed.notify_all();
                                        });
  rendezvous.gather(session, *liveness);
  // Gloo tries several times, for `timeout` each.
  const auto waited = std::chrono::duration_cast<milliseconds>(Clock::now() - began);
  const milliseconds left = std::max(options.start_timeout - waited, milliseconds(4'000));
  const auto connected = on_a_thread<std::shared_ptr<Collectives>>(
      [bare = bare, prefix = prefix, rank = ranks.rank, size = ranks.world_size,
       timeout = options.timeout] { return gloo(bare, prefix, rank, size, timeout); });
  const WaitEnd end = poll(
      is_ready(connected), [&] { return is_rank_lost(); }, Clock::now() + left);
  if (end != WaitEnd::kOver)
    throw DeviceError({.where = "distributed.start",
                       .what = fmt::format("rank {} cannot connect to the others", ranks.rank),
                       .seen = end == WaitEnd::kRankLost ? *liveness->finding()
                                                         : fmt::format("no end after {:.1f} s",
                                                                       in_seconds(waited + left)),
                       .accepted = "a network interface on which every rank reaches every other",
                       .advice = "name it with GLOO_SOCKET_IFNAME (ip -brief address lists them)"});
  collectives = connected.get();
  store = std::make_shared<StoreWithTimeout>(named, options.timeout);
}

ProcessGroup::Impl::~Impl() {
  // Gloo's destructor waits for collectives under way, which may never end: a rank is gone, or this
  // one leaves by an exception of its own while the others compute.
  const auto is_any_under_way = [&] {
    const std::lock_guard lock(events->mutex);
    return events->under_way > 0;
  };
  if (failure.empty() && !is_rank_lost() && !is_any_under_way()) return;
  keep(std::move(collectives));
  keep(std::move(on_gpu));
}

Collectives& ProcessGroup::Impl::collectives_of(const at::Tensor& tensor, const std::string& what) {
  if (!is_for_nccl(tensor.device()) || !bare) return *collectives;
  if (!on_gpu) connect_gpus(tensor.device(), what);
  if (tensor.device() != *gpu)
    refuse({.where = "distributed." + what,
            .what = "the tensors of a rank are on several GPUs",
            .seen = tensor.device().str(),
            .accepted = gpu->str() + ", as the first one",
            .advice = "train on one GPU in each process, or in one process with DataParallel"});
  return *on_gpu;
}

// A rank that leaves breaks no connection that this one would notice, as Gloo's do. But it may have
// sent its part of a broadcast, which this rank's GPU is about to read: hence the first 3 s.
WaitEnd ProcessGroup::Impl::wait_for_others(const std::function<bool()>& is_over,
                                            Clock::time_point deadline) {
  auto look_again = Clock::now() + milliseconds(3'000);
  const auto is_lost = [&] {
    if (is_rank_lost()) return true;
    if (Clock::now() < look_again) return false;
    look_again = Clock::now() + milliseconds(500);
    try {
      return Liveness::has_any_left(*store);
    } catch (const std::exception&) {
      return true;  // the store is gone, and with it the rank that serves it
    }
  };
  return poll(is_over, is_lost, deadline);
}

// Connects on a thread of its own: NCCL waits for the other ranks, however long they take. Its
// watchdog ends the process and names no rank, so this process's own timeout comes first.
void ProcessGroup::Impl::connect_gpus(at::Device device, const std::string& what) {
  check_alive(what);
  const auto made = on_a_thread<std::shared_ptr<Collectives>>(
      [bare = bare, prefix = prefix, rank = ranks.rank, size = ranks.world_size,
       watchdog = timeout + milliseconds(10'000),
       device] { return nccl(bare, prefix, rank, size, watchdog, device); });
  const auto deadline = Clock::now() + timeout + milliseconds(500);
  const WaitEnd waited = wait_for_others(is_ready(made), deadline);
  if (waited != WaitEnd::kOver) fail(what, waited == WaitEnd::kTooLong ? no_end() : "");
  on_gpu = made.get();
  gpu = device;
}

// NCCL's collectives have begun when c10d says that they ended: the device does them later. A rank
// that is gone is noticed here, and not by a copy to the CPU that never returns.
void ProcessGroup::Impl::wait_for_device(Collective& collective, Clock::time_point deadline,
                                         const std::string& what) {
  WaitEnd waited = WaitEnd::kOver;
  try {
    waited = wait_for_others([&] { return collective.is_over(); }, deadline);
  } catch (const std::exception&) {
    fail(what, message_of(std::current_exception()));
  }
  if (waited != WaitEnd::kOver) fail(what, waited == WaitEnd::kTooLong ? no_end() : "");
}

void ProcessGroup::Impl::check_alive(const std::string& what) const {
  std::string known = failure;
  if (known.empty() && liveness) known = liveness->finding().value_or("");
  if (!known.empty())
    throw DeviceError({.where = "distributed." + what,
                       .what = "the process group has failed",
                       .seen = known,
                       .accepted = "ranks that are all alive",
                       .advice = "see those ranks' own output; start all of them "
                                 "again and resume from the last checkpoint"});
}

void ProcessGroup::Impl::fail(const std::string& what, const std::string& error) {
  std::optional<std::string> finding;
  if (liveness) finding = liveness->diagnose(error);
  failure = finding.value_or(error);
  // What waits on the GPU for the rank that is gone ends, so that this process can.
  if (on_gpu) within<bool>(milliseconds(5'000), [all = on_gpu] { return all->abort(), true; });
  const bool adds = finding && !error.empty() && finding->find(error) == std::string::npos;
  throw DeviceError(
      {.where = "distributed." + what,
       .what = "a collective failed on rank " + std::to_string(ranks.rank),
       .seen = adds ? failure + " (LibTorch says: " + error + ")" : failure,
       .accepted = "ranks that are all alive and call the same collectives in the same order",
       .advice = "see those ranks' own output; start all of them again and resume from the last "
                 "checkpoint"});
}

ProcessGroup::ProcessGroup(const ProcessGroupOptions& options) : impl_(std::make_shared<Impl>()) {
  require_libtorch();
  check_options(options);
  const InitMethod method = parse_init_method(options.init_method);
  impl_->ranks = ranks_of(options, method);
  impl_->timeout = options.timeout;
  if (impl_->ranks.world_size == 1) {
    impl_->collectives = alone();
    return;
  }
  meet(store_of(options, method, impl_->ranks), options);
}

ProcessGroup::ProcessGroup(std::shared_ptr<Store> store, int rank, int world_size,
                           const ProcessGroupOptions& options)
    : impl_(std::make_shared<Impl>()) {
  require_libtorch();
  impl_->ranks = {"options", rank, world_size, std::nullopt, ""};
  meet(store, options);
}

// The comparison is the collective by which the ranks meet: a rank that returns from it knows that
// all are connected, and that they compare their calls, or do not.
void ProcessGroup::meet(const std::shared_ptr<Store>& store, const ProcessGroupOptions& options) {
  impl_->start(store, "demi/" + options.name + "/", options);
  require_same("the options of the group",
               fmt::format("compare_calls {}\n", options.compare_calls));
  impl_->compares_calls = options.compare_calls;
  impl_->liveness->set_met();
}

ProcessGroup::~ProcessGroup() { batch_norm::forget_layers_of(*this); }

int ProcessGroup::rank() const { return impl_->ranks.rank; }
int ProcessGroup::world_size() const { return impl_->ranks.world_size; }

int ProcessGroup::local_rank() const {
  const Ranks& ranks = impl_->ranks;
  if (ranks.local_rank) return *ranks.local_rank;
  if (ranks.world_size == 1) return 0;
  throw DeviceError({.where = "distributed.local_rank",
                     .what = "the number of this process on its machine is not known",
                     .seen = ranks.named,
                     .accepted = "LOCAL_RANK, OMPI_COMM_WORLD_LOCAL_RANK or SLURM_LOCALID",
                     .advice = "set LOCAL_RANK for each process"});
}

ProcessGroup::Pending::Pending() = default;
ProcessGroup::Pending::~Pending() = default;
ProcessGroup::Pending::Pending(Pending&&) noexcept = default;
ProcessGroup::Pending& ProcessGroup::Pending::operator=(Pending&&) noexcept = default;

Clock::time_point ProcessGroup::Pending::wait() {
  const std::unique_ptr<Impl> impl = std::move(impl_);
  if (!impl) return Clock::now();
  ProcessGroup::Impl& group = *impl->group;
  std::string error;
  {
    // c10d's own timeout comes first, and its message is better.
    const auto deadline = Clock::now() + group.timeout + milliseconds(500);
    std::unique_lock lock(group.events->mutex);
    const bool woke = group.events->changed.wait_until(
        lock, deadline, [&] { return impl->end->has_come || group.is_rank_lost(); });
    if (impl->end->has_come && !impl->end->error) {
      lock.unlock();
      const bool on_gpu = is_for_nccl(impl->tensor.device());
      if (on_gpu) group.wait_for_device(*impl->collective, deadline, impl->what);
      impl->collective->synchronize();
      return on_gpu ? Clock::now() : impl->end->at;
    }
    if (impl->end->error)
      error = message_of(impl->end->error);
    else if (!woke)
      error = group.no_end();
  }
  // Gloo may still write to the tensor.
  if (!impl->end->has_come) keep(std::make_shared<at::Tensor>(impl->tensor));
  group.fail(impl->what, error);
}

namespace {

void check_tensor(const char* where, const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_contiguous())
    refuse({.where = where,
            .what = "the tensor has no contiguous memory",
            .seen = tensor.defined() ? "a view" : "an undefined tensor",
            .accepted = "a contiguous tensor",
            .advice = "call contiguous() first, and copy the result back"});
}

// Whether both Gloo and NCCL have the dtype.
bool is_common(c10::ScalarType dtype) {
  constexpr std::array kCommon = {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble,
                                  at::kInt,   at::kLong, at::kChar,     at::kByte};
  return std::ranges::find(kCommon, dtype) != kCommon.end();
}

// Gloo's own error would end the group. It adds up truth values as bytes.
void check_reducible(const at::Tensor& tensor, Reduction reduction) {
  if (is_for_nccl(tensor.device()) || is_common(tensor.scalar_type())) return;
  if (reduction == Reduction::kMax ? tensor.scalar_type() == at::kBool : tensor.is_complex())
    return;
  refuse({.where = "distributed.all_reduce",
          .what = "tensors of this dtype cannot be reduced",
          .seen = tensor::name_of(tensor.scalar_type()),
          .accepted = "fp16, bf16, fp32, fp64, int8, uint8, int32 and int64; sums of complex "
                      "numbers, the greatest of bool",
          .advice = "convert the tensor first"});
}

// The tensor, or its memory as bytes, which can be sent and not reduced.
at::Tensor sendable(const at::Tensor& tensor) {
  if (is_common(tensor.scalar_type())) return tensor;
  const at::Tensor as_stored = tensor.is_conj() ? tensor.conj() : tensor;
  return as_stored.detach().view({-1}).view(at::kByte);
}

void check_broadcast(const at::Tensor& tensor, int root, int world_size) {
  check_tensor("distributed.broadcast", tensor);
  if (root < 0 || root >= world_size)
    refuse({.where = "distributed.broadcast",
            .what = "there is no such rank",
            .seen = std::to_string(root),
            .accepted = fmt::format("0 to {}", world_size - 1),
            .advice = "ranks count from 0"});
}

void check_gather(const at::Tensor& all, const at::Tensor& own, int world_size) {
  constexpr const char* kGather = "distributed.all_gather";
  check_tensor(kGather, all);
  check_tensor(kGather, own);
  const bool fits = all.numel() == own.numel() * world_size &&
                    all.scalar_type() == own.scalar_type() && all.device() == own.device();
  if (!fits)
    refuse({.where = kGather,
            .what = "the result does not hold the tensors of all ranks",
            .seen = fmt::format("{} elements of {} on {}", all.numel(),
                                tensor::name_of(all.scalar_type()), all.device().str()),
            .accepted = fmt::format("{} times {} elements of {} on {}", world_size, own.numel(),
                                    tensor::name_of(own.scalar_type()), own.device().str()),
            .advice = "make it of that size, dtype and device"});
}

}  // namespace

ProcessGroup::Pending ProcessGroup::start_all_reduce(const at::Tensor& tensor, Reduction reduction,
                                                     const std::string& what) {
  check_tensor("distributed.all_reduce", tensor);
  check_reducible(tensor, reduction);
  Collectives& collectives = impl_->collectives_of(tensor, what);
  return start(tensor, what, [&] { return collectives.all_reduce(tensor, reduction); });
}

ProcessGroup::Pending ProcessGroup::start(
    const at::Tensor& tensor, const std::string& what,
    const std::function<std::unique_ptr<Collective>()>& begin) {
  impl_->check_alive(what);
  if (impl_->liveness) impl_->liveness->count_collective();
  Pending pending;
  pending.impl_ = std::make_unique<Pending::Impl>();
  pending.impl_->group = impl_;
  pending.impl_->tensor = tensor;
  pending.impl_->what = what;
  try {
    pending.impl_->collective = begin();
  } catch (const std::exception&) {
    impl_->fail(what, message_of(std::current_exception()));
  }
  {
    const std::lock_guard lock(impl_->events->mutex);
    ++impl_->events->under_way;
  }
  pending.impl_->collective->on_end(
      [end = pending.impl_->end, events = impl_->events](std::exception_ptr error) {
        const std::lock_guard lock(events->mutex);
        end->has_come = true;
        --events->under_way;
        end->at = Clock::now();
        end->error = std::move(error);
        events->changed.notify_all();
      });
  return pending;
}

void ProcessGroup::all_reduce(const at::Tensor& tensor, Reduction reduction) {
  check_tensor("distributed.all_reduce", tensor);
  require_same_call("all_reduce", tensor, reduction == Reduction::kMax ? "greatest" : "sum");
  start_all_reduce(tensor, reduction).wait();
}

void ProcessGroup::broadcast(const at::Tensor& tensor, int root) {
  check_broadcast(tensor, root, world_size());
  require_same_call("broadcast", tensor, fmt::format("from rank {}", root));
  start_broadcast(tensor, root).wait();
}

ProcessGroup::Pending ProcessGroup::start_broadcast(const at::Tensor& tensor, int root,
                                                    const std::string& what) {
  check_broadcast(tensor, root, world_size());
  Collectives& collectives = impl_->collectives_of(tensor, what);
  const at::Tensor sent = sendable(tensor);
  return start(tensor, what, [&] { return collectives.broadcast(sent, root); });
}

void ProcessGroup::all_gather(const at::Tensor& all, const at::Tensor& own) {
  check_gather(all, own, world_size());
  require_same_call("all_gather", own, "of all ranks");
  start_all_gather(all, own).wait();
}

ProcessGroup::Pending ProcessGroup::start_all_gather(const at::Tensor& all, const at::Tensor& own,
                                                     const std::string& what) {
  check_gather(all, own, world_size());
  Collectives& collectives = impl_->collectives_of(all, what);
  const at::NoGradGuard no_grad;
  const at::Tensor flat = sendable(all).view({-1}), part = sendable(own).view({-1});
  return start(flat, what, [&] { return collectives.all_gather(flat, part); });
}

void ProcessGroup::barrier() {
  const at::Tensor none = at::zeros({1}, at::kInt);
  start_all_reduce(none, Reduction::kSum, "barrier").wait();
}

// The greatest of a number and of its complement are complements where all have the same number.
bool ProcessGroup::is_same(const std::string& text, const std::string& what) {
  const auto own = static_cast<std::int64_t>(checksum(text));
  const at::Tensor greatest = at::tensor({own, ~own}, at::kLong);
  start_all_reduce(greatest, Reduction::kMax, what).wait();
  const auto* of_all = greatest.const_data_ptr<std::int64_t>();
  return of_all[0] == ~of_all[1];
}

std::vector<ProcessGroup::Difference> ProcessGroup::differences(const std::string& text) {
  const std::string first = broadcast_text(text, 0, *this);
  const at::Tensor differs = at::zeros({world_size()}, at::kInt);
  if (first != text) differs[rank()] = 1;
  start_all_reduce(differs, Reduction::kMax, kCompare).wait();
  std::vector<Difference> found;
  for (int other = 0; other < world_size(); ++other) {
    if (differs[other].item<int>() == 0) continue;
    const auto [theirs, ours] = first_difference(first, text);  // those of `other` alone count
    const std::string lines = broadcast_text(ours + "\n" + theirs, other, *this);
    const size_t cut = lines.find('\n');
    found.push_back({other, lines.substr(0, cut), lines.substr(cut + 1)});
  }
  return found;
}

// Uses collectives alone: they notice a rank that is gone, which a wait on the store does not.
std::vector<ProcessGroup::Difference> ProcessGroup::compare(const std::string& text) {
  if (world_size() == 1 || is_same(text, kCompare)) return {};
  return differences(text);
}

void ProcessGroup::require_same_call(const char* what, const at::Tensor& tensor,
                                     const std::string& how) {
  if (!impl_->compares_calls) return;
  const std::string text = fmt::format(
      "{} ({}) of {} ({}) on {}", what, how, tensor::name_of(tensor.scalar_type()),
      fmt::join(tensor.sizes(), ", "), c10::DeviceTypeName(tensor.device().type(), true));
  if (is_same(text, what)) return;
  const std::vector<Difference> found = differences(text);
  refuse({.where = "distributed." + std::string(what),
          .what = "the ranks call different collectives",
          .seen = lines_on_ranks(found),
          .accepted = found.front().line_of_rank_0 + ", as on rank 0",
          .advice = "all ranks call the same collectives in the same order, with tensors of one "
                    "dtype and shape"});
}

void ProcessGroup::require_same(const std::string& what, const std::string& text) {
  const std::vector<Difference> found = compare(text);
  if (found.empty()) return;
  refuse({.where = "distributed.require_same",
          .what = "ranks do not agree on " + what,
          .seen = lines_on_ranks(found),
          .accepted = found.front().line_of_rank_0 + ", as on rank 0",
          .advice = "start all ranks with the same program, options and files"});
}

std::string broadcast_text(const std::string& own, int root, ProcessGroup& group) {
  const at::Tensor length = at::full({1}, static_cast<std::int64_t>(own.size()), at::kLong);
  group.start_broadcast(length, root).wait();
  const at::Tensor bytes = at::zeros({length.item<std::int64_t>()}, at::kByte);
  if (bytes.numel() == 0) return {};
  if (group.rank() == root) std::memcpy(bytes.mutable_data_ptr(), own.data(), own.size());
  group.start_broadcast(bytes, root).wait();
  return {static_cast<const char*>(bytes.const_data_ptr()),
          static_cast<std::size_t>(bytes.numel())};
}

}  // namespace demi::distributed
