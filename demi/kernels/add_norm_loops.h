#pragma once

#include <cstdint>

#include "demi/kernels/add_norm.h"
#include "demi/kernels/add_norm_formulas.h"
#include "demi/kernels/add_norm_pieces.h"
#include "demi/kernels/formulas.h"
#include "demi/kernels/wide_loops.h"

// The passes of add_norm.h, written once for float and for the vectors of an instruction set
// (wide_loops.h). A row is read from memory once, and from the cache for each of its sums. The
// order of sums is that of sum_terms() within a row; over rows, one after the other.
namespace demi::kernels {
namespace {

/// An element of `add`, which is of `storage` unless that is FP32.
template <Storage storage, class V, class... Some>
inline V added_at(const AddNorm& norm, V as, std::int64_t i, Some... some) {
  if constexpr (storage == Storage::fp32) {
    if (norm.added == Storage::bf16) return get<Storage::bf16>(as, norm.add, i, some...);
    if (norm.added == Storage::fp16) return get<Storage::fp16>(as, norm.add, i, some...);
  }
  return get<storage>(as, norm.add, i, some...);
}

template <Storage storage, class V, class... Some>
inline void put_added(const AddNorm& norm, std::int64_t i, V x, Some... some) {
  if constexpr (storage == Storage::fp32) {
    if (norm.added == Storage::bf16) return put<Storage::bf16>(norm.add_gradient, i, x, some...);
    if (norm.added == Storage::fp16) return put<Storage::fp16>(norm.add_gradient, i, x, some...);
  }
  put<storage>(norm.add_gradient, i, x, some...);
}

inline const void* summed(const AddNorm& norm) { return norm.add ? norm.sum : norm.input; }

/// Element i of s, which is written where it is a sum.
template <Storage storage, class V, class... Some>
inline V make_sum(const AddNorm& norm, V as, std::int64_t i, Some... some) {
  const V x = get<storage>(as, norm.input, i, some...);
  if (!norm.add) return x;
  const V s = x + added_at<storage>(norm, as, i, some...);
  put<storage>(norm.sum, i, s, some...);
  return rounded<storage>(s);
}

/// Writes the row's s, and gives its statistics.
template <class Wide, Storage storage>
inline NormedRow<float> statistics_of_row(const AddNorm& norm, std::int64_t begin) {
  const auto count = static_cast<float>(norm.width);
  float sum[1] = {0.0f}, squares[1];
  if (norm.centered) {
    sum_terms<Wide>(begin, norm.width, sum, [&](auto as, std::int64_t i, auto... some) {
      return Terms<decltype(as), 1>{{make_sum<storage>(norm, as, i, some...)}};
    });
    const float mean = sum[0] / count;
    sum_terms<Wide>(begin, norm.width, squares, [&](auto as, std::int64_t i, auto... some) {
      using V = decltype(as);
      const V d = get<storage>(as, summed(norm), i, some...) - V(mean);
      return Terms<V, 1>{{d * d}};
    });
    return {mean, 1.0f / square_root(squares[0] / count + norm.eps)};
  }
  sum_terms<Wide>(begin, norm.width, squares, [&](auto as, std::int64_t i, auto... some) {
    const auto s = make_sum<storage>(norm, as, i, some...);
    return Terms<decltype(as), 1>{{s * s}};
  });
  return {0.0f, 1.0f / square_root(squares[0] / count + norm.eps)};
}

template <class Wide, Storage storage, Storage normed>
void normalise_rows(AddNorm norm, std::int64_t piece) {
  const void* const of = summed(norm);
  for (std::int64_t row = first_row(norm, piece); row < first_row(norm, piece + 1); ++row) {
    const std::int64_t begin = row * norm.width;
    const NormedRow<float> found = statistics_of_row<Wide, storage>(norm, begin);
    norm.mean[row] = found.mean;
    norm.inverse[row] = found.inverse;
    each<Wide>(norm.width, [&](auto as, std::int64_t c, auto... some) {
      using V = decltype(as);
      const NormedRow<V> numbers{V(found.mean), V(found.inverse)};
      V y = numbers.normalised(get<storage>(as, of, begin + c, some...));
      if (norm.weight) y = y * get_float(as, norm.weight, c, some...);
      if (norm.bias) y = y + get_float(as, norm.bias, c, some...);
      put<normed>(norm.output, begin + c, y, some...);
    });
  }
}

/// Element c of g in a row that begins at `begin`.
template <Storage normed, class V, class... Some>
inline V gradient_behind_weight(const AddNorm& norm, V as, std::int64_t begin, std::int64_t c,
                                Some... some) {
  const V dy = get<normed>(as, norm.output_gradient, begin + c, some...);
  return norm.weight ? dy * get_float(as, norm.weight, c, some...) : dy;
}

template <class Wide, Storage storage, Storage normed>
void differentiate_rows(AddNorm norm, std::int64_t piece) {
  const void* const of = summed(norm);
  const auto count = static_cast<float>(norm.width);
  float* const products = norm.sums ? norm.sums + piece * 2 * norm.width : nullptr;
  float* const gradients = products + (products ? norm.width : 0);
  if (products) clear(products, 2 * norm.width);
  for (std::int64_t row = first_row(norm, piece); row < first_row(norm, piece + 1); ++row) {
    const std::int64_t begin = row * norm.width;
    const float mean = norm.mean[row], inverse = norm.inverse[row];
    float sums[2];
    sum_terms<Wide>(0, norm.width, sums, [&](auto as, std::int64_t c, auto... some) {
      using V = decltype(as);
      const V g = gradient_behind_weight<normed>(norm, as, begin, c, some...);
      const NormedRow<V> numbers{V(mean), V(inverse)};
      return Terms<V, 2>{{g, g * numbers.normalised(get<storage>(as, of, begin + c, some...))}};
    });
    const float mean_of_g = norm.centered ? sums[0] / count : 0.0f, mean_of_gh = sums[1] / count;
    each<Wide>(norm.width, [&](auto as, std::int64_t c, auto... some) {
      using V = decltype(as);
      const NormedRow<V> numbers{V(mean), V(inverse)};
      const V h = numbers.normalised(get<storage>(as, of, begin + c, some...));
      const V g = gradient_behind_weight<normed>(norm, as, begin, c, some...);
      V dx = gradient_of_sum(numbers, g, h, V(mean_of_g), V(mean_of_gh));
      if (norm.sum_gradient) dx = dx + get<storage>(as, norm.sum_gradient, begin + c, some...);
      put<storage>(norm.input_gradient, begin + c, dx, some...);
      if (norm.add_gradient) put_added<storage>(norm, begin + c, dx, some...);
      if (!products) return;
      const V dy = get<normed>(as, norm.output_gradient, begin + c, some...);
      add_float(products, c, dy * h, some...);
      add_float(gradients, c, dy, some...);
    });
  }
}

// A copy, which a store through a pointer cannot change.
using NormRows = void (*)(AddNorm norm, std::int64_t piece);

template <class Wide, Storage storage, Storage normed>
NormRows rows_by(AddNormPass pass) {
  return pass == AddNormPass::forward ? normalise_rows<Wide, storage, normed>
                                      : differentiate_rows<Wide, storage, normed>;
}

template <class Wide>
NormRows rows_by(const AddNorm& norm, AddNormPass pass) {
  if (norm.storage == Storage::bf16) return rows_by<Wide, Storage::bf16, Storage::bf16>(pass);
  if (norm.storage == Storage::fp16) return rows_by<Wide, Storage::fp16, Storage::fp16>(pass);
  if (norm.normed == Storage::bf16) return rows_by<Wide, Storage::fp32, Storage::bf16>(pass);
  if (norm.normed == Storage::fp16) return rows_by<Wide, Storage::fp32, Storage::fp16>(pass);
  return rows_by<Wide, Storage::fp32, Storage::fp32>(pass);
}

template <class Wide>
void add_norm_pieces(const AddNorm& norm, AddNormPass pass, std::int64_t begin, std::int64_t end) {
  const NormRows rows = rows_by<Wide>(norm, pass);
  for (std::int64_t i = begin; i < end; ++i) rows(norm, i);
}

}  // namespace
}  // namespace demi::kernels
