#pragma once

#include <cstdint>

#include "demi/kernels/blocks.h"
#include "demi/kernels/cpu/edge.h"
#include "demi/kernels/cpu/squares.h"
#include "demi/kernels/formulas.h"

// The passes with vectors; the same for AVX2 and AVX-512. Internal linkage.
namespace demi::kernels {
namespace {

template <Storage storage>
Partial measure_block(const void* gradient, Range range) {
  Vector::Bits bits = no_bits();
  Lanes block;
  const auto see = [&](Vector x) { bits = greater_magnitude(bits, x); };
  for (std::int64_t at = range.begin; at < range.end; at += kChunk) {
    const auto get = [&](int i) {
      // The order within a chunk is not the hardware prefetcher's (5.7 instead of 11.4 ms for 33.5
      // M bf16 elements).
      prefetch<storage>(gradient, at + i + kChunk);
      return load_elements<storage>(gradient, at + i);
    };
    const auto get_first = [&](int i, int n) {
      return load_elements<storage>(gradient, at + i, n);
    };
    const std::int64_t left = range.end - at;
    if (left >= kChunk) {
      add_full_chunk(block, get, get_first, see);
    } else {
      add_chunk(block, static_cast<int>(left), get, get_first, see);
    }
  }
  return {block.total(), greatest(bits), 0};
}

/// call.template operator()<storage>(), with the storage as a constant.
template <class Call>
inline auto with_storage(Storage storage, Call call) {
  switch (storage) {
    case Storage::bf16:
      return call.template operator()<Storage::bf16>();
    case Storage::fp16:
      return call.template operator()<Storage::fp16>();
    default:
      return call.template operator()<Storage::fp32>();
  }
}

inline Partial sums_of(const TensorEntry& tensor, Range range) {
  return with_storage(tensor.gradient_storage, [&]<Storage storage>() {
    return measure_block<storage>(tensor.gradient, range);
  });
}

void measure_pass(const StepTable& table, std::int64_t begin, std::int64_t end) {
  measure_blocks(table, begin, end, sums_of);
}

inline void store_copies(const Work& work, std::int64_t i, Vector x) {
  for (int k = 0; k < 2; ++k) {
    if (work.tensor.copy[k]) store_elements(work.tensor.copy[k], work.tensor.copy_storage[k], i, x);
  }
}

inline void store_copies(const Work& work, std::int64_t i, Vector x, int n) {
  for (int k = 0; k < 2; ++k) {
    if (work.tensor.copy[k])
      store_elements(work.tensor.copy[k], work.tensor.copy_storage[k], i, x, n);
  }
}

template <class... Some>
inline Vector load_direction(const Work& work, std::int64_t i, Some... some) {
  return work.direction_storage == Storage::bf16
             ? load_elements<Storage::bf16>(work.direction, i, some...)
             : load_elements<Storage::fp32>(work.direction, i, some...);
}

/// One vector of pass 2; gives what it has become. `some` is nothing, or the number of elements,
/// less than the width.
template <UpdateRule rule, Storage storage, class... Some>
inline __attribute__((always_inline)) Elements<Vector> update_vector(const Work& work,
                                                                     std::int64_t i, Some... some) {
  Elements<Vector> e{};
  e.parameter = load(work.tensor.parameter + i, some...);
  if (reads_gradient<rule>(work.c.flags))
    e.gradient = true_gradient(load_elements<storage>(work.tensor.gradient, i, some...),
                               work.inverse_scale, work.clip_factor, work.c);
  for (int m = 0; m < kArrays<rule>; ++m) {
    if (is_kept<rule>(work.arrays, m)) e.moment[m] = load(work.tensor.moment[m] + i, some...);
  }
  if constexpr (RuleOf<rule>::kDirection == Direction::read)
    e.direction = load_direction(work, i, some...);
  kernels::update<rule>(e, work.c);
  for (int m = 0; m < kArrays<rule>; ++m) {
    if (is_kept<rule>(work.arrays, m)) store(work.tensor.moment[m] + i, e.moment[m], some...);
  }
  if constexpr (RuleOf<rule>::kDirection == Direction::written)
    store_elements(work.direction, work.direction_storage, i, e.direction, some...);
  if constexpr (kMovesParameter<rule>) {
    store(work.tensor.parameter + i, e.parameter, some...);
    store_copies(work, i, e.parameter, some...);
  }
  return e;
}

template <UpdateRule rule, Storage storage>
inline __attribute__((always_inline)) void update_elements(const Work& work, Range range) {
  std::int64_t i = range.begin;
  for (; i + Vector::width <= range.end; i += Vector::width) update_vector<rule, storage>(work, i);
  if (i < range.end) update_vector<rule, storage>(work, i, static_cast<int>(range.end - i));
}

/// Most groups keep no more than they must: a loop of its own asks nothing for each vector.
template <UpdateRule rule, Storage storage>
void update_range(const Work& work, Range range) {
  if (kKeptByChoice<rule> != 0 && (work.c.flags & kKeptByChoice<rule>) == 0) {
    Work plain = work;
    plain.c.flags &= ~kKeptByChoice<rule>;
    plain.arrays = kAlwaysKept<rule>;
    update_elements<rule, storage>(plain, range);
  } else {
    update_elements<rule, storage>(work, range);
  }
}

template <UpdateRule rule, class... Some>
inline Elements<Vector> load_state(const Work& work, std::int64_t i, Some... some) {
  Elements<Vector> e{};
  e.parameter = load(work.tensor.parameter + i, some...);
  for (int m = 0; m < kArrays<rule>; ++m) {
    if (is_kept<rule>(work.arrays, m)) e.moment[m] = load(work.tensor.moment[m] + i, some...);
  }
  return e;
}

/// Squares of n <= kChunk elements of an array, added to `block`.
inline void add_squares(Lanes& block, const float* array, int n) {
  const auto get = [&](int i) { return load(array + i); };
  const auto get_first = [&](int i, int some) { return load(array + i, some); };
  const auto ignore = [](Vector) {};
  if (n == kChunk) {
    add_full_chunk(block, get, get_first, ignore);
  } else {
    add_chunk(block, n, get, get_first, ignore);
  }
}

/// Pass 2 of a rule with a trust ratio: the moments, and the squares of parameter and update. A
/// chunk at a time, so that the squares, which are summed in another order, find it in the first
/// level cache.
template <UpdateRule rule, Storage storage>
TrustPartial update_and_square(const Work& work, Range range) {
  Lanes parameter, update;
  float updates[kChunk];
  const auto move = [&](std::int64_t at, std::int64_t i, auto... some) {
    const Elements<Vector> e = update_vector<rule, storage>(work, i, some...);
    store(updates + (i - at), RuleOf<rule>::direction(e, work.c), some...);
  };
  for (std::int64_t at = range.begin; at < range.end; at += kChunk) {
    const std::int64_t end = at + kChunk < range.end ? at + kChunk : range.end;
    std::int64_t i = at;
    for (; i + Vector::width <= end; i += Vector::width) move(at, i);
    if (i < end) move(at, i, static_cast<int>(end - i));
    add_squares(parameter, work.tensor.parameter + at, static_cast<int>(end - at));
    add_squares(update, updates, static_cast<int>(end - at));
  }
  return {parameter.total(), update.total()};
}

/// update_range of a tensor with coded arrays.
template <UpdateRule rule, Storage storage>
void update_pieces(const StepTable& table, const Work& work, Range range) {
  Pieces pieces(table, work);
  each_piece(range, [&](std::int64_t at, int n) {
    update_range<rule, storage>(pieces.open(at, n), {0, n});
    pieces.close_moments(at, n);
    if constexpr (kMovesParameter<rule>) pieces.close_parameter(at, n);
  });
}

/// update_and_square of such a tensor: the update is that of the states as they are stored, which
/// apply_trust reads.
template <UpdateRule rule, Storage storage>
TrustPartial update_and_square_pieces(const StepTable& table, const Work& work, Range range) {
  Lanes parameter, update;
  float parameters[kChunk], updates[kChunk];
  Pieces pieces(table, work);
  for (std::int64_t at = range.begin; at < range.end; at += kChunk) {
    const std::int64_t end = at + kChunk < range.end ? at + kChunk : range.end;
    each_piece({at, end}, [&](std::int64_t from, int n) {
      update_range<rule, storage>(pieces.open(from, n), {0, n});
      pieces.close_moments(from, n);
      const Work& stored = pieces.open(from, n);
      const auto put = [&](int i, auto... some) {
        const Elements<Vector> e = load_state<rule>(stored, i, some...);
        store(parameters + (from - at) + i, e.parameter, some...);
        store(updates + (from - at) + i, RuleOf<rule>::direction(e, work.c), some...);
      };
      int i = 0;
      for (; i + Vector::width <= n; i += Vector::width) put(i);
      if (i < n) put(i, n - i);
    });
    add_squares(parameter, parameters, static_cast<int>(end - at));
    add_squares(update, updates, static_cast<int>(end - at));
  }
  return {parameter.total(), update.total()};
}

/// Pass 2 of one block.
template <UpdateRule rule, Storage storage>
inline void update_block(const StepTable& table, std::int64_t b, const Work& work, Range range) {
  const bool coded = is_coded(work.tensor);
  if constexpr (RuleOf<rule>::kTrust) {
    table.trust[b] = coded ? update_and_square_pieces<rule, storage>(table, work, range)
                           : update_and_square<rule, storage>(work, range);
  } else if (rule != UpdateRule::ema && coded) {
    update_pieces<rule, storage>(table, work, range);
  } else {
    update_range<rule, storage>(work, range);
  }
}

void update_pass(const StepTable& table, std::int64_t begin, std::int64_t end) {
  if (table.state->skipped != 0.0f) return;
  with_rule(table.range.rule, [&]<UpdateRule rule>() {
    each_block(table, begin, end, [&](std::int64_t b, const TensorEntry& tensor, Range range) {
      Work work = work_of(table, b);
      work.arrays &= RuleOf<rule>::kTouched;
      with_storage(tensor.gradient_storage,
                   [&]<Storage storage>() { update_block<rule, storage>(table, b, work, range); });
    });
  });
}

template <UpdateRule rule, class... Some>
inline void apply_vector(const Work& work, std::int64_t i, Some... some) {
  Elements<Vector> e = load_state<rule>(work, i, some...);
  kernels::apply_trust<rule>(e, work.c);
  store(work.tensor.parameter + i, e.parameter, some...);
  store_copies(work, i, e.parameter, some...);
}

template <UpdateRule rule>
void apply_range(const Work& work, Range range) {
  std::int64_t i = range.begin;
  for (; i + Vector::width <= range.end; i += Vector::width) apply_vector<rule>(work, i);
  if (i < range.end) apply_vector<rule>(work, i, static_cast<int>(range.end - i));
}

void apply_trust_pass(const StepTable& table, std::int64_t begin, std::int64_t end) {
  if (table.state->skipped != 0.0f) return;
  with_rule(table.range.rule, [&]<UpdateRule rule>() {
    if constexpr (RuleOf<rule>::kTrust) {
      each_block(table, begin, end, [&](std::int64_t b, const TensorEntry& tensor, Range range) {
        const Work work = work_of(table, b);
        if (!is_coded(tensor)) return apply_range<rule>(work, range);
        Pieces pieces(table, work);
        each_piece(range, [&](std::int64_t at, int n) {
          apply_range<rule>(pieces.open(at, n), {0, n});
          pieces.close_parameter(at, n);
        });
      });
    }
  });
}

}  // namespace
}  // namespace demi::kernels
