#include "lab/bench/memory_trace.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
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

// How well blocks of two traces go together. Sure: they have the same bytes, or grew in proportion
// to the batch. Possible: they grew otherwise, by not much more than that.
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

// For each block of `b` by how many bytes it grew, in the common subsequence of the two that goes
// together best: an op may need a block more for a larger batch. What is sure at the beginning and
// at the end is left out of the search.
std::vector<int64_t> growth_of(const Blocks& a, const Blocks& b, const Likeness& alike) {
  std::vector<int64_t> grew(b.size(), 0);
  const auto go_together = [&](std::size_t i, std::size_t j) {
    grew[j] = b[j].block.bytes - a[i].block.bytes;
  };
  std::size_t first = 0, a_end = a.size(), b_end = b.size();
  for (; first < a_end && first < b_end && alike(a[first], b[first]) == kSure; ++first)
    go_together(first, first);
  for (; a_end > first && b_end > first && alike(a[a_end - 1], b[b_end - 1]) == kSure;
       --a_end, --b_end)
    go_together(a_end - 1, b_end - 1);
  const std::size_t rows = a_end - first, columns = b_end - first;
  std::vector<std::uint32_t> best((rows + 1) * (columns + 1), 0);  // of the ends from there on
  const auto at = [&](std::size_t i, std::size_t j) -> std::uint32_t& {
    return best[i * (columns + 1) + j];
  };
  const auto together = [&](std::size_t i, std::size_t j) {
    const std::uint32_t how = alike(a[first + i], b[first + j]);
    return how == 0 ? 0 : how + at(i + 1, j + 1);
  };
  for (std::size_t i = rows; i-- > 0;)
    for (std::size_t j = columns; j-- > 0;)
      at(i, j) = std::max({at(i + 1, j), at(i, j + 1), together(i, j)});
  for (std::size_t i = 0, j = 0; i < rows && j < columns;) {
    if (at(i, j) == together(i, j)) {
      go_together(first + i++, first + j++);
    } else {
      at(i, j) == at(i + 1, j) ? ++i : ++j;
    }
  }
  return grew;
}

}  // namespace

MemoryTrace extrapolated(const MemoryTrace& of_small, int64_t small, const MemoryTrace& of_large,
                         int64_t large, int64_t size) {
  const std::vector<int64_t> grew = growth_of(of_small.blocks, of_large.blocks, {small, large});
  MemoryTrace trace = of_large;
  for (std::size_t i = 0; i < trace.blocks.size(); ++i)
    trace.blocks[i].block.bytes +=
        std::llround(static_cast<double>(grew[i]) * static_cast<double>(size - large) /
                     static_cast<double>(large - small));
  return trace;
}

}  // namespace demi::bench
