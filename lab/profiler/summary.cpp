#include "lab/profiler/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>

#include "demi/core/error.h"
#include "demi/profile/phase_timer.h"
#include "lab/profiler/flops.h"
#include "lab/profiler/promotion.h"

namespace demi::profiler {
namespace {

using Kind = Event::Kind;

bool is_16_bit(std::string_view dtype) { return dtype == "fp16" || dtype == "bf16"; }

bool is_waiting(std::string_view name) {
  return name == "cudaStreamSynchronize" || name == "cudaDeviceSynchronize" ||
         name == "cudaEventSynchronize";
}

// cudaLaunchKernel, cuLaunchKernelEx, cudaGraphLaunch, cudaMemcpyAsync, cudaMemsetAsync.
bool is_launch(std::string_view name) {
  constexpr std::array<std::string_view, 3> kLaunches{"Launch", "Memcpy", "Memset"};
  return name.starts_with("cu") && std::ranges::any_of(kLaunches, [&](std::string_view one) {
           return name.find(one) != name.npos;
         });
}

// Ops that compute nothing: they look at memory in another way, or get some.
bool is_view(std::string_view op) {
  static const std::set<std::string_view> kViews{
      "aten::as_strided", "aten::as_strided_", "aten::empty",  "aten::empty_strided",
      "aten::empty_like", "aten::resize_",     "aten::view",   "aten::_unsafe_view",
      "aten::reshape",    "aten::t",           "aten::expand", "aten::transpose",
      "aten::permute",    "aten::select",      "aten::slice",  "aten::narrow",
      "aten::squeeze",    "aten::unsqueeze",   "aten::detach", "aten::detach_",
      "detach",           "detach_",           "aten::alias",  "aten::resolve_conj",
      "aten::to",         "aten::flatten",     "aten::unbind", "aten::resolve_neg",
      "aten::set_",       "aten::lift_fresh",  "aten::item",   "aten::_local_scalar_dense"};
  return kViews.contains(op);
}

/// The events as a forest: who called whom.
class Forest {
 public:
  explicit Forest(const std::vector<Event>& events)
      : events_(events), parent_(events.size()), children_(events.size()) {
    std::vector<std::size_t> open;
    for (std::size_t i = 0; i < events.size(); ++i) {
      const Event& event = events[i];
      while (!open.empty() && (events[open.back()].thread != event.thread ||
                               events[open.back()].end_ns < event.end_ns))
        open.pop_back();
      if (is_device(event)) continue;
      if (!open.empty()) {
        parent_[i] = open.back();
        children_[open.back()].push_back(i);
      }
      open.push_back(i);
      if (event.kind == Kind::range && event.name.starts_with(profile::kPhaseRange))
        phases_.push_back(i);
    }
    std::ranges::sort(phases_, {}, [&](std::size_t i) { return events[i].start_ns; });
  }

  static bool is_device(const Event& event) {
    return event.kind == Kind::kernel || event.kind == Kind::copy;
  }
  std::optional<std::size_t> parent(std::size_t i) const { return parent_[i]; }
  const std::vector<std::size_t>& children(std::size_t i) const { return children_[i]; }
  const std::vector<std::size_t>& phases() const { return phases_; }

  // Phases follow each other in one thread; what other threads do falls into them by its time.
  std::optional<std::size_t> phase_of(std::int64_t ns) const {
    auto after = std::ranges::upper_bound(phases_, ns, {},
                                          [&](std::size_t i) { return events_[i].start_ns; });
    if (after == phases_.begin()) return std::nullopt;
    const std::size_t phase = *std::prev(after);
    return events_[phase].end_ns >= ns ? std::optional(phase) : std::nullopt;
  }
  std::string phase_name(std::int64_t ns) const {
    const auto phase = phase_of(ns);
    return phase ? events_[*phase].name.substr(profile::kPhaseRange.size()) : "";
  }

 private:
  const std::vector<Event>& events_;
  std::vector<std::optional<std::size_t>> parent_;
  std::vector<std::vector<std::size_t>> children_;
  std::vector<std::size_t> phases_;
};

/// Sums over the events, from which a Summary is made.
class Sums {
 public:
  Sums(const std::vector<Event>& events, std::int64_t steps)
      : events_(events), forest_(events), gflop_(events.size(), 0) {
    summary_.steps = steps;
    per_step_ = 1.0 / static_cast<double>(std::max<std::int64_t>(steps, 1));
    for (std::size_t i = 0; i < events.size(); ++i)
      if (events[i].id != 0) by_id_.emplace(events[i].id, i);
    summary_.is_device = std::ranges::any_of(events, Forest::is_device);
  }

  Summary sum() {
    add_phases();
    add_flops();
    add_ops();
    if (summary_.is_device)
      add_kernels();
    else
      add_leaves();
    add_syncs();
    add_launches();
    finish();
    return std::move(summary_);
  }

 private:
  bool is_in_step(const Event& event) const { return forest_.phase_of(event.start_ns).has_value(); }

  void add_phases() {
    std::map<std::string, double, std::less<>> ms;
    for (const std::size_t i : forest_.phases())
      ms[events_[i].name.substr(profile::kPhaseRange.size())] += events_[i].ms() * per_step_;
    for (const std::string_view name : profile::kPhaseNames) {
      const auto found = ms.find(name);
      summary_.phase_ms.emplace_back(name, found == ms.end() ? 0 : found->second);
      summary_.step_ms += summary_.phase_ms.back().second;
    }
  }

  // Counted where the work is, once: of nested ops the innermost that has a formula, but no op
  // within a kernel that counts for its calls.
  void add_flops() {
    std::vector<bool> is_within(events_.size(), false);  // a caller comes before what it calls
    for (std::size_t i = 0; i < events_.size(); ++i)
      if (const auto parent = forest_.parent(i))
        is_within[i] = is_within[*parent] || counts_for_its_calls(events_[*parent]);
    std::vector<double> below(events_.size(), 0);
    for (std::size_t i = events_.size(); i-- > 0;) {
      if (is_within[i]) continue;
      if (below[i] == 0) gflop_[i] = below[i] = 1e-9 * flops_of(events_[i]);
      if (const auto parent = forest_.parent(i)) below[*parent] += below[i];
    }
  }

  // The dtype of floating point arguments. Of two dtypes it is the one with fewer bits, as autocast
  // would compute, and as a normalisation with FP32 weights does; for an op that promotes its
  // arguments it is their common dtype.
  static std::string of_arguments(const Event& event) {
    if (promotes(event.name)) return promoted(event);
    std::string widest, low;
    for (const std::string& dtype : event.dtypes) {
      const std::string name = dtype_of(dtype);
      if (is_16_bit(name) && low.empty()) low = name;
      if (widest.empty() || name == "fp64") widest = name.empty() ? widest : name;
    }
    return low.empty() ? widest : low;
  }

  // copy_(to, from) between a 16-bit dtype and another floating point one.
  static bool is_cast(const Event& event) {
    if (event.name != "aten::copy_" || event.dtypes.size() < 2) return false;
    const std::string to = dtype_of(event.dtypes[0]), from = dtype_of(event.dtypes[1]);
    return !to.empty() && !from.empty() && to != from && (is_16_bit(to) || is_16_bit(from));
  }

  // The dtype that a cast among the op's own calls makes of an argument; "" without one.
  std::string cast_to(std::size_t op) const {
    for (const std::size_t child : forest_.children(op)) {
      const Event& event = events_[child];
      if (is_cast(event)) return dtype_of(event.dtypes[0]);
      if (event.name == "aten::to" || event.name == "aten::_to_copy")
        if (std::string to = cast_to(child); !to.empty()) return to;
    }
    return "";
  }

  std::string dtype(std::size_t i) const {
    const Event& event = events_[i];
    if (event.name == "demi.product") return "fp32";  // of 16-bit numbers (demi/products)
    if (is_cast(event)) return dtype_of(event.dtypes[1]) + " to " + dtype_of(event.dtypes[0]);
    if (std::string to = cast_to(i); !to.empty()) return to;  // in a region, of its arguments
    std::string own = of_arguments(event);
    if (is_16_bit(own)) return own;
    // A kept copy took the place of a weight: the calls within have it, and no cast.
    for (const std::size_t child : forest_.children(i))
      if (const std::string low = of_arguments(events_[child]); is_16_bit(low)) return low;
    return own;
  }

  OpUse& use_of(const std::string& name, const std::string& dtype) {
    const auto [at, is_new] = index_.try_emplace({name, dtype}, summary_.ops.size());
    if (is_new) summary_.ops.push_back({.name = name, .dtype = dtype});
    return summary_.ops[at->second];
  }

  OpUse& use_of(std::size_t i) {
    OpUse& use = use_of(events_[i].name, dtype(i));
    use.is_cast = is_cast(events_[i]);
    use.is_low = !use.is_cast && is_16_bit(use.dtype);
    return use;
  }

  double self_ms(std::size_t i) const {
    double ms = events_[i].ms();
    for (const std::size_t child : forest_.children(i))
      if (events_[child].kind != Kind::runtime) ms -= events_[child].ms();
    return std::max(ms, 0.0);
  }

  void add_ops() {
    for (std::size_t i = 0; i < events_.size(); ++i) {
      const Event& event = events_[i];
      const bool is_engine = event.name.starts_with("autograd::engine::");
      if (event.kind != Kind::op || is_engine || !is_in_step(event)) continue;
      OpUse& use = use_of(i);
      use.calls += 1;
      use.gflop += gflop_[i] * per_step_;
      if (use.is_cast) summary_.casts += 1;
      if (!summary_.is_device) use.ms += self_ms(i) * per_step_;
    }
  }

  // The entry of the op that started the kernel, or of "(no op)" where that is not known.
  OpUse& use_of_kernel(const Event& kernel) {
    const auto op = by_id_.find(kernel.op_id);
    if (op == by_id_.end() || events_[op->second].kind != Kind::op) return use_of("(no op)", "");
    return use_of(op->second);
  }

  void add_kernels() {
    Intervals busy;
    std::map<std::pair<const OpUse*, std::string>, double> unused;
    double short_ones = 0, short_ms = 0, all_ms = 0, tensor_ms = 0;
    for (const Event& event : events_) {
      if (!Forest::is_device(event)) continue;
      busy.emplace_back(event.start_ns, event.end_ns);
      OpUse& use = use_of_kernel(event);
      use.ms += event.ms() * per_step_;
      if (event.kind == Kind::copy) continue;
      if (std::ranges::find(use.kernels, event.name) == use.kernels.end())
        use.kernels.push_back(event.name);
      const bool tensor = uses_tensor_cores(event.name);
      use.tensor_cores = use.tensor_cores || tensor;
      if (tensor) tensor_ms += event.ms();
      count_kernel(event.ms(), short_ones, short_ms, all_ms);
    }
    share_of_short(short_ones, short_ms, all_ms);
    if (all_ms > 0) summary_.tensor_core_share = tensor_ms / all_ms;
    set_idle(busy);
    summary_.busy_ms = 1e-6 * per_step_ * static_cast<double>(covered_by(busy));
  }

  // Ops that call no others, and the phases whose kernels are no ops: the optimizer's step, and
  // unscaling and clipping.
  void add_leaves() {
    Intervals busy;
    double short_ones = 0, short_ms = 0, all_ms = 0;
    for (std::size_t i = 0; i < events_.size(); ++i) {
      const Event& event = events_[i];
      if (event.kind == Kind::op || is_of_kernels(event))
        busy.emplace_back(event.start_ns, event.end_ns);
      if (event.kind != Kind::op || is_view(event.name) || !is_in_step(event)) continue;
      const bool calls_others = std::ranges::any_of(
          forest_.children(i), [&](std::size_t child) { return !is_view(events_[child].name); });
      if (!calls_others) count_kernel(self_ms(i), short_ones, short_ms, all_ms);
    }
    share_of_short(short_ones, short_ms, all_ms);
    set_idle(busy);
  }

  static bool is_of_kernels(const Event& event) {
    if (event.kind != Kind::range || !event.name.starts_with(profile::kPhaseRange)) return false;
    const std::string phase = event.name.substr(profile::kPhaseRange.size());
    return phase == "step" || phase == "unscale";
  }

  void count_kernel(double ms, double& short_ones, double& short_ms, double& all_ms) {
    summary_.kernels += 1;
    all_ms += ms;
    if (ms >= kShortMs) return;
    short_ones += 1;
    short_ms += ms;
  }

  void share_of_short(double short_ones, double short_ms, double all_ms) {
    if (summary_.kernels > 0) summary_.short_share = short_ones / summary_.kernels;
    if (all_ms > 0) summary_.short_time_share = short_ms / all_ms;
    summary_.kernels *= per_step_;
  }

  using Intervals = std::vector<std::pair<std::int64_t, std::int64_t>>;

  // Nanoseconds between begin and end in which there is an interval. Sorts them.
  static std::int64_t covered_by(Intervals& all, std::int64_t begin = 0,
                                 std::int64_t end = std::numeric_limits<std::int64_t>::max()) {
    std::ranges::sort(all);
    std::int64_t covered = 0, until = begin;
    for (auto [from, to] : all) {
      from = std::max(from, until);
      to = std::min(to, end);
      if (to <= from) continue;
      covered += to - from;
      until = to;
    }
    return covered;
  }

  // The share of the phases that no interval covers.
  void set_idle(Intervals& busy) {
    if (forest_.phases().empty()) return;
    const std::int64_t begin = events_[forest_.phases().front()].start_ns;
    const std::int64_t end = events_[forest_.phases().back()].end_ns;
    if (end <= begin) return;
    const std::int64_t covered = covered_by(busy, begin, end);
    summary_.idle_share = 1 - static_cast<double>(covered) / static_cast<double>(end - begin);
  }

  // item() is one of its own. A wait of the CUDA runtime is named after the op that called it;
  // within item() it is that one.
  void add_syncs() {
    std::map<std::string, double> calls;
    for (std::size_t i = 0; i < events_.size(); ++i) {
      const Event& event = events_[i];
      const bool is_item = event.name == "aten::_local_scalar_dense";
      const bool waits = event.kind == Kind::runtime && is_waiting(event.name);
      if ((!is_item && !waits) || !is_in_step(event)) continue;
      const auto caller = outermost(i);
      if (waits && (!caller || is_of_item(i))) continue;
      calls[place_of(i, caller)] += 1;
    }
    for (const auto& [place, count] : calls) summary_.syncs.push_back({place, of_a_step(count)});
    std::ranges::stable_sort(summary_.syncs, std::greater(), &Sync::calls);
  }

  void add_launches() {
    const auto counts = [&](const Event& event) {
      return event.kind == Kind::runtime && is_launch(event.name) && is_in_step(event);
    };
    summary_.launches = of_a_step(static_cast<double>(std::ranges::count_if(events_, counts)));
  }

  bool is_of_item(std::size_t i) const {
    for (auto at = forest_.parent(i); at; at = forest_.parent(*at))
      if (events_[*at].name == "aten::_local_scalar_dense") return true;
    return false;
  }

  std::optional<std::size_t> outermost(std::size_t i) const {
    std::optional<std::size_t> found;
    for (auto at = std::optional(i); at; at = forest_.parent(*at))
      if (events_[*at].kind == Kind::op) found = at;
    return found;
  }

  std::string place_of(std::size_t i, std::optional<std::size_t> caller) const {
    const std::size_t op = caller.value_or(i);
    std::string place = forest_.phase_name(events_[i].start_ns) + ": " + events_[op].name;
    const auto around = forest_.parent(op);
    if (!around) return place;
    const auto& all = forest_.children(*around);
    const auto at = std::ranges::find(all, op);
    for (auto before = at; before != all.begin();) {
      --before;
      const std::string& name = events_[*before].name;
      if (is_view(name) && name != "aten::item") continue;
      return place + " after " + name;
    }
    return place;
  }

  // Divided at once, so that whole numbers stay whole.
  double of_a_step(double count) const {
    return count / static_cast<double>(std::max<std::int64_t>(summary_.steps, 1));
  }

  void finish() {
    double low_ms = 0, low_gflop = 0;
    summary_.casts = of_a_step(summary_.casts);
    for (OpUse& use : summary_.ops) {
      use.calls = of_a_step(use.calls);
      summary_.ops_ms += use.ms;
      summary_.gflop += use.gflop;
      if (use.is_cast) summary_.cast_ms += use.ms;
      if (!use.is_low) continue;
      low_ms += use.ms;
      low_gflop += use.gflop;
    }
    if (summary_.ops_ms > 0) summary_.low_time_share = low_ms / summary_.ops_ms;
    if (summary_.gflop > 0) summary_.low_flops_share = low_gflop / summary_.gflop;
    std::ranges::stable_sort(summary_.ops, std::greater(), &OpUse::ms);
  }

  const std::vector<Event>& events_;
  const Forest forest_;
  std::vector<double> gflop_;  // by event
  std::unordered_map<std::uint64_t, std::size_t> by_id_;
  std::map<std::pair<std::string, std::string>, std::size_t> index_;
  double per_step_ = 1;
  Summary summary_;
};

}  // namespace

Summary summarise(const std::vector<Event>& events, std::int64_t steps) {
  const auto is_phase = [](const Event& event) {
    return event.kind == Kind::range && event.name.starts_with(profile::kPhaseRange);
  };
  if (!events.empty() && std::ranges::none_of(events, is_phase))
    throw UsageError(
        {.where = "profiler.summarise",
         .what = "no phase of a training step was recorded, and what lies outside of them does not "
                 "count",
         .seen = fmt::format("{} events without a range {}forward", events.size(),
                             profile::kPhaseRange),
         .accepted = "steps of a demi::Trainer or demi::loop::Step, or of a loop that enters "
                     "the phases of a demi::profile::PhaseTimer",
         .advice = "let a demi::loop::Step take the steps, or look at the events themselves"});
  return Sums(events, steps).sum();
}

bool uses_tensor_cores(const std::string& kernel) {
  // ampere_bf16_s16816gemm, sm80_xmma_gemm_f16f16, cutlass_..._tensorop_..., volta_h884gemm,
  // turing_fp16_s1688gemm, ..._hmma_..., sm90_..._gmma_.../wgmma, nvjet_ (cuBLAS on Hopper).
  constexpr std::array<std::string_view, 10> kMarks{"tensorop", "hmma", "xmma",  "gmma", "884gemm",
                                                    "16816",    "1688", "nvjet", "h884", "s884"};
  // FP32 on ordinary cores, in names that have a mark too.
  constexpr std::array<std::string_view, 3> kOrdinary{"simt", "ffma", "f32f32_f32f32"};
  const auto has = [&](std::string_view mark) { return kernel.find(mark) != kernel.npos; };
  return std::ranges::any_of(kMarks, has) && std::ranges::none_of(kOrdinary, has);
}

std::string dtype_of(const std::string& libtorch) {
  if (libtorch == "float") return "fp32";
  if (libtorch == "double") return "fp64";
  if (libtorch == "c10::Half") return "fp16";
  if (libtorch == "c10::BFloat16") return "bf16";
  return "";
}

}  // namespace demi::profiler
