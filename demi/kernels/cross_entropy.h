#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "demi/kernels/cuda/packets.h"
#include "demi/kernels/host_device.h"
#include "demi/kernels/storage.h"

// Cross entropy of rows of logits and its gradient in their place, on a CUDA device. With
// p = softmax(z), target y, class weights w, smoothing e and C classes (torch.nn.CrossEntropyLoss):
//   loss = (1 - e) w_y (lse - z_y) + e / C (sum(w) lse - w . z)
//   dloss / dz_c = ((1 - e) w_y + e / C sum(w)) p_c - (1 - e) w_y [c = y] - e / C w_c
// and, where logits are capped at s, z = s tanh(x / s): dloss / dx_c = dloss / dz_c (1 - (z_c /
// s)^2).
namespace demi::kernels {

/// Pointers are of the device's memory. Of a row that does not count both weights are 0.
struct CrossEntropyRows {
  void* logits;  // (rows, columns) in `storage`, read; the gradient if `wants_gradient`
  Storage storage;
  const float* bias;                  // (classes), added to the logits; or null
  const std::int64_t* target;         // (rows); out of range: loss and gradient are NaN
  const float* row_weight;            // (rows): w_y
  const float* row_scale;             // (rows), a factor of the row's gradient
  const float* class_weight;          // (classes), or null: 1
  const float* sum_of_class_weights;  // one number, or null: classes
  float* losses;                      // (rows), written
  bool* right;  // (rows), written: the first largest logit is the target's; or null
  std::int64_t rows, classes;
  std::int64_t columns;  // classes or more: the others have no logits, and a gradient of 0
  float smoothing;
  float softcap;  // 0: none
  bool wants_gradient;
};

/// Classes from which a row takes more threads: that leaves fewer rows under way, which a level 2
/// cache of 50 MB then holds until the gradient reads them again.
inline constexpr std::int64_t kLongRow = 8192;

namespace {

/// What a thread, then all of them, know of a row.
struct RowSum {
  float largest;          // of the logits
  float exponentials;     // sum of exp(z - largest)
  float weighted;         // w . z, where there is smoothing
  std::int32_t position;  // of the largest, the first of equals
};

/// One row by one thread block, in phases with a barrier between them (cuda/bodies.h says how).
template <Storage storage, int threads>
struct CrossEntropy {
  static constexpr int kThreads = threads;
  static constexpr int kAtOnce = 2;  // packets under way
  static constexpr std::int64_t kStride = std::int64_t(threads) * cuda::kPacket;
  static constexpr float kLeast = -std::numeric_limits<float>::infinity();
  struct Shared {
    RowSum sums[kThreads];
  };
  static constexpr int kFold = std::countr_zero(unsigned(threads));
  static constexpr int phases = 1 + kFold + 1;

  static DEMI_HOST_DEVICE bool vector(const CrossEntropyRows& of) {
    return cuda::is_aligned(of.logits) && of.columns % cuda::kPacket == 0;
  }

  static DEMI_HOST_DEVICE float shaped(const CrossEntropyRows& of, float z, std::int64_t c) {
    if (of.bias) z += of.bias[c];
    if (of.softcap > 0.0f) z = of.softcap * tanhf(z / of.softcap);
    return z;
  }

  static DEMI_HOST_DEVICE float logit(const CrossEntropyRows& of, std::int64_t row,
                                      std::int64_t c) {
    return shaped(of, cuda::load_one(of.logits, storage, row * of.columns + c), c);
  }

  /// The logits of classes c to c + 7; -Inf where there is no class.
  static DEMI_HOST_DEVICE cuda::Packet logits(const CrossEntropyRows& of, std::int64_t row,
                                              std::int64_t c) {
    const std::int64_t first = row * of.columns;
    cuda::Packet z =
        cuda::load_packet(of.logits, storage, first + c, first + of.classes, vector(of));
    DEMI_UNROLLED
    for (int k = 0; k < cuda::kPacket; ++k)
      z.v[k] = c + k < of.classes ? shaped(of, z.v[k], c + k) : kLeast;
    return z;
  }

  static DEMI_HOST_DEVICE float class_weight(const CrossEntropyRows& of, std::int64_t c) {
    return of.class_weight ? of.class_weight[c] : 1.0f;
  }

  static DEMI_HOST_DEVICE RowSum joined(const RowSum& a, const RowSum& b) {
    const bool a_leads =
        a.largest > b.largest || (a.largest == b.largest && a.position < b.position);
    const RowSum &more = a_leads ? a : b, &less = a_leads ? b : a;
    RowSum all = more;
    if (less.exponentials != 0.0f)  // exp(-Inf - -Inf) would be NaN
      all.exponentials += less.exponentials * expf(less.largest - more.largest);
    all.weighted += less.weighted;
    return all;
  }

  /// The sums over the thread's logits of a row; those that are -Inf add nothing.
  static DEMI_HOST_DEVICE RowSum sum_of(const CrossEntropyRows& of, std::int64_t row, int t) {
    RowSum sum{kLeast, 0.0f, 0.0f, std::numeric_limits<std::int32_t>::max()};
    for (std::int64_t c = t * cuda::kPacket; c < of.classes; c += kStride * kAtOnce) {
      cuda::Packet z[kAtOnce];
      DEMI_UNROLLED
      for (int a = 0; a < kAtOnce; ++a) z[a] = logits(of, row, c + a * kStride);
      const float before = sum.largest;
      DEMI_UNROLLED
      for (int i = 0; i < kAtOnce * cuda::kPacket; ++i) {
        const float one = z[i / cuda::kPacket].v[i % cuda::kPacket];
        const std::int64_t at = c + i / cuda::kPacket * kStride + i % cuda::kPacket;
        if (of.smoothing > 0.0f && at < of.classes) sum.weighted += class_weight(of, at) * one;
        if (!(one > sum.largest)) continue;
        sum.largest = one;
        sum.position = static_cast<std::int32_t>(at);
      }
      if (sum.exponentials != 0.0f && sum.largest > before)
        sum.exponentials *= expf(before - sum.largest);
      DEMI_UNROLLED
      for (int i = 0; i < kAtOnce * cuda::kPacket; ++i) {
        const float one = z[i / cuda::kPacket].v[i % cuda::kPacket];
        if (one != kLeast) sum.exponentials += expf(one - sum.largest);
      }
    }
    return sum;
  }

  static DEMI_HOST_DEVICE float sum_of_weights(const CrossEntropyRows& of) {
    return of.sum_of_class_weights ? *of.sum_of_class_weights : static_cast<float>(of.classes);
  }

  static DEMI_HOST_DEVICE bool has_class(const CrossEntropyRows& of, std::int64_t row) {
    return of.target[row] >= 0 && of.target[row] < of.classes;
  }

  static DEMI_HOST_DEVICE float row_weight(const CrossEntropyRows& of, std::int64_t row) {
    return has_class(of, row) ? of.row_weight[row] : std::numeric_limits<float>::quiet_NaN();
  }

  static DEMI_HOST_DEVICE float target_logit(const CrossEntropyRows& of, std::int64_t row) {
    return has_class(of, row) ? logit(of, row, of.target[row]) : 0.0f;
  }

  static DEMI_HOST_DEVICE void write_loss(const CrossEntropyRows& of, std::int64_t row,
                                          const RowSum& sum, float at_target) {
    const float lse = sum.largest + logf(sum.exponentials), e = of.smoothing;
    float loss = (1.0f - e) * row_weight(of, row) * (lse - at_target);
    if (e > 0.0f)
      loss += e / static_cast<float>(of.classes) * (sum_of_weights(of) * lse - sum.weighted);
    of.losses[row] = loss;
    if (of.right) of.right[row] = sum.position == of.target[row];
  }

  static DEMI_HOST_DEVICE void write_gradient(const CrossEntropyRows& of, std::int64_t row, int t,
                                              const RowSum& sum) {
    const float e = of.smoothing, share = e / static_cast<float>(of.classes),
                scale = of.row_scale[row], of_target = (1.0f - e) * row_weight(of, row) * scale;
    const float of_softmax =
        (of_target + (e > 0.0f ? share * sum_of_weights(of) * scale : 0.0f)) / sum.exponentials;
    const std::int64_t target = of.target[row];
    const std::int64_t first = row * of.columns;
    for (std::int64_t c = t * cuda::kPacket; c < of.columns; c += kStride) {
      const cuda::Packet z = logits(of, row, c);
      cuda::Packet gradient;
      DEMI_UNROLLED
      for (int k = 0; k < cuda::kPacket; ++k) {
        const std::int64_t at = c + k;
        float g = of_softmax * expf(z.v[k] - sum.largest);
        if (at == target) g -= of_target;
        if (e > 0.0f && at < of.classes) g -= share * class_weight(of, at) * scale;
        if (of.softcap > 0.0f) g *= 1.0f - (z.v[k] / of.softcap) * (z.v[k] / of.softcap);
        gradient.v[k] = at < of.classes ? g : 0.0f;
      }
      cuda::store_packet(of.logits, storage, first + c, first + of.columns, vector(of), gradient);
    }
  }

  static DEMI_HOST_DEVICE void phase(int p, const CrossEntropyRows& of, std::int64_t row, int t,
                                     Shared& shared) {
    if (p == 0) {
      shared.sums[t] = sum_of(of, row, t);
    } else if (p <= kFold) {
      const int half = kThreads >> p;
      if (t < half) shared.sums[t] = joined(shared.sums[t], shared.sums[t + half]);
      // The gradient takes the place of the logit of the target: it is read before.
      if (p == kFold && t == 0) write_loss(of, row, shared.sums[0], target_logit(of, row));
    } else if (of.wants_gradient) {
      write_gradient(of, row, t, shared.sums[0]);
    }
  }
};

/// Calls work(body) with the CrossEntropy for these rows.
template <class Work>
void with_body(const CrossEntropyRows& of, Work work) {
  const bool is_long = of.classes > kLongRow;
  switch (of.storage) {
    case Storage::fp32:
      return is_long ? work(CrossEntropy<Storage::fp32, 1024>())
                     : work(CrossEntropy<Storage::fp32, 256>());
    case Storage::fp16:
      return is_long ? work(CrossEntropy<Storage::fp16, 1024>())
                     : work(CrossEntropy<Storage::fp16, 256>());
    case Storage::bf16:
      return is_long ? work(CrossEntropy<Storage::bf16, 1024>())
                     : work(CrossEntropy<Storage::bf16, 256>());
    default:
      return;
  }
}

}  // namespace
}  // namespace demi::kernels
