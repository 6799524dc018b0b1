#include "lab/bench/memory_trace.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace demi::bench {

int64_t& MemoryByKind::of(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::parameters:
      return parameters;
    case MemoryKind::copies:
      return copies;
    case MemoryKind::gradients:
      return gradients;
    case MemoryKind::optimizer:
      return optimizer;
    case MemoryKind::activations:
      return activations;
    case MemoryKind::other:
      break;
  }
  return other;
}

MemoryByKind memory_at(const MemoryTrace& trace, int64_t time) {
  MemoryByKind sum;
  for (const TracedBlock& one : trace.blocks)
    if (one.block.is_alive(time)) sum.of(one.kind) += one.block.bytes;
  return sum;
}

MemoryByKind memory_at_peak(const MemoryTrace& trace) {
  std::map<int64_t, int64_t> changes{{trace.begin, 0}};  // by time
  for (const TracedBlock& one : trace.blocks) {
    changes[one.block.made] += one.block.bytes;
    if (one.block.freed != profile::Allocation::kNever) changes[one.block.freed] -= one.block.bytes;
  }
  int64_t now = 0, most = -1, when = trace.begin;
  for (const auto& [time, bytes] : changes) {
    now += bytes;
    if (time < trace.begin || time > trace.end || now <= most) continue;
    most = now;
    when = time;
  }
  return memory_at(trace, when);
}

namespace {

using Blocks = std::vector<TracedBlock>;

constexpr double kRounding = 1.1;  // of blocks whose bytes are rounded up
constexpr std::uint32_t kSure = 8, kPossible = 1;

// The likeness of blocks of two traces. Sure: they have the same bytes, or grew in proportion to
// the batch. Possible: they grew otherwise, by not much more than that.
struct Likeness {
  int64_t small = 0, large = 0;  // examples

  std::uint32_t operator()(const TracedBlock& a, const TracedBlock& b) const {
    const int64_t from = a.block.bytes, to = b.block.bytes;
    if (a.kind != b.kind) return 0;
    if (from == to || from * large == to * small) return kSure;
    const double most = kRounding * static_cast<double>(large) / static_cast<double>(small);
    return from < to && static_cast<double>(to) <= most * static_cast<double>(from) ? kPossible : 0;
  }
};

/// The common subsequence of two traces whose blocks go together best, first of the large blocks
/// and then of what is between two of them: an op may need a block more for a larger batch.
/// Searched in memory that is linear in the traces (Hirschberg, A linear space algorithm for
/// computing maximal common subsequences, 1975), since an op in pieces makes tens of thousands of
/// blocks.
class Alignment {
 public:
  Alignment(const Blocks& a, const Blocks& b, const Likeness& alike)
      : a_(a), b_(b), alike_(alike), partner_(b.size(), kNone) {
    std::map<std::pair<MemoryKind, int64_t>, std::size_t> known;
    for (const TracedBlock& block : b) {
      const auto [found, is_new] =
          known.emplace(std::pair(block.kind, block.block.bytes), known.size());
      if (is_new) sorts_.push_back(&block);
      sort_.push_back(found->second);
    }
    likeness_.resize(sorts_.size());
    align(large_blocks(a), large_blocks(b));
    align_between();
  }

  /// The bytes by which each block of `b` grew; 0 without a partner.
  std::vector<int64_t> growth() const {
    std::vector<int64_t> grew(b_.size(), 0);
    for (std::size_t j = 0; j < b_.size(); ++j)
      if (partner_[j] != kNone) grew[j] = b_[j].block.bytes - a_[partner_[j]].block.bytes;
    return grew;
  }

 private:
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
  static constexpr std::size_t kTable = 1 << 20;  // cells that are searched at once
  static constexpr int64_t kLargeShare = 1000;    // of the largest block

  // Blocks, by their places in a trace.
  using Places = std::span<const std::size_t>;

  static std::vector<std::size_t> large_blocks(const Blocks& of) {
    int64_t largest = 0;
    for (const TracedBlock& one : of) largest = std::max(largest, one.block.bytes);
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < of.size(); ++i)
      if (of[i].block.bytes >= largest / kLargeShare) places.push_back(i);
    return places;
  }

  void align_between() {
    std::vector<std::size_t> all(std::max(a_.size(), b_.size()));
    std::iota(all.begin(), all.end(), std::size_t{0});
    const auto align_ranges = [&](std::size_t i, std::size_t i_end, std::size_t j,
                                  std::size_t j_end) {
      align(Places(all).subspan(i, i_end - i), Places(all).subspan(j, j_end - j));
    };
    std::size_t i = 0, j = 0;
    for (std::size_t next = 0; next < b_.size(); ++next) {
      if (partner_[next] == kNone) continue;
      const std::size_t partner = partner_[next];
      align_ranges(i, partner, j, next);
      i = partner + 1;
      j = next + 1;
    }
    align_ranges(i, a_.size(), j, b_.size());
  }

  // Pairs that are sure at the beginning and at the end are left out of the search.
  void align(Places a, Places b) {
    const auto take = [&](std::size_t i, std::size_t j) {
      if (alike_(a_[i], b_[j]) != kSure) return false;
      partner_[j] = i;
      return true;
    };
    while (!a.empty() && !b.empty() && take(a.front(), b.front())) {
      a = a.subspan(1);
      b = b.subspan(1);
    }
    while (!a.empty() && !b.empty() && take(a.back(), b.back())) {
      a = a.first(a.size() - 1);
      b = b.first(b.size() - 1);
    }
    if (a.empty() || b.empty()) return;
    if (a.size() == 1 || (a.size() + 1) * (b.size() + 1) <= kTable) return align_by_table(a, b);
    const std::size_t half = a.size() / 2;
    const std::vector<std::uint32_t> before = best_before(a.first(half), b),
                                     after = best_after(a.subspan(half), b);
    std::size_t cut = 0;
    for (std::size_t j = 1; j <= b.size(); ++j)
      if (before[j] + after[j] > before[cut] + after[cut]) cut = j;
    align(a.first(half), b.first(cut));
    align(a.subspan(half), b.subspan(cut));
  }

  void align_by_table(Places a, Places b) {
    const std::size_t columns = b.size() + 1;
    std::vector<std::uint32_t> best((a.size() + 1) * columns, 0);  // of the ends from there on
    const auto at = [&](std::size_t i, std::size_t j) -> std::uint32_t& {
      return best[i * columns + j];
    };
    const auto together = [&](std::size_t i, std::size_t j) {
      const std::uint32_t how = alike_(a_[a[i]], b_[b[j]]);
      return how == 0 ? 0 : how + at(i + 1, j + 1);
    };
    for (std::size_t i = a.size(); i-- > 0;)
      for (std::size_t j = b.size(); j-- > 0;)
        at(i, j) = std::max({at(i + 1, j), at(i, j + 1), together(i, j)});
    for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
      if (at(i, j) == together(i, j)) {
        partner_[b[j++]] = a[i++];
      } else {
        at(i, j) == at(i + 1, j) ? ++i : ++j;
      }
    }
  }

  /// The best likeness, for each j, of all of `a` and the first j of `b`.
  std::vector<std::uint32_t> best_before(Places a, Places b) {
    std::vector<std::uint32_t> best(b.size() + 1, 0);
    for (const std::size_t i : a) {
      compare_with_all(a_[i]);
      std::uint32_t diagonal = 0;
      for (std::size_t j = 0; j < b.size(); ++j) {
        const std::uint32_t together = diagonal + likeness_[sort_[b[j]]];
        diagonal = best[j + 1];
        best[j + 1] = std::max({diagonal, best[j], together});
      }
    }
    return best;
  }

  /// The best likeness, for each j, of all of `a` and those of `b` from j on.
  std::vector<std::uint32_t> best_after(Places a, Places b) {
    std::vector<std::uint32_t> best(b.size() + 1, 0);
    for (std::size_t i = a.size(); i-- > 0;) {
      compare_with_all(a_[a[i]]);
      std::uint32_t diagonal = 0;
      for (std::size_t j = b.size(); j-- > 0;) {
        const std::uint32_t together = diagonal + likeness_[sort_[b[j]]];
        diagonal = best[j];
        best[j] = std::max({diagonal, best[j + 1], together});
      }
    }
    return best;
  }

  void compare_with_all(const TracedBlock& one) {
    for (std::size_t sort = 0; sort < sorts_.size(); ++sort)
      likeness_[sort] = alike_(one, *sorts_[sort]);
  }

  const Blocks &a_, &b_;
  const Likeness alike_;
  std::vector<std::size_t> partner_;       // in `a`, of each block of `b`
  std::vector<const TracedBlock*> sorts_;  // blocks of `b` that differ in kind or bytes
  std::vector<std::size_t> sort_;          // of each block of `b`
  std::vector<std::uint32_t> likeness_;    // of one block of `a` with each sort
};

}  // namespace

MemoryTrace extrapolated(const MemoryTrace& of_small, int64_t small, const MemoryTrace& of_large,
                         int64_t large, int64_t size) {
  const std::vector<int64_t> grew =
      Alignment(of_small.blocks, of_large.blocks, {small, large}).growth();
  MemoryTrace trace = of_large;
  for (std::size_t i = 0; i < trace.blocks.size(); ++i)
    trace.blocks[i].block.bytes +=
        std::llround(static_cast<double>(grew[i]) * static_cast<double>(size - large) /
                     static_cast<double>(large - small));
  return trace;
}

}  // namespace demi::bench
