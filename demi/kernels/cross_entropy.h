#pragma once

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
  void* logits;  // (rows, classes) in `storage`, read; the gradient if `wants_gradient`
  Storage storage;
  const float* bias;                  // (classes), added to the logits; or null
  const std::int64_t* target;         // (rows), from 0 to classes - 1
  const float* row_weight;            // (rows): w_y
  const float* row_scale;             // (rows), a factor of the row's gradient
  const float* factor;                // one number, of all gradients; or null: 1
  const float* class_weight;          // (classes), or null: 1
  const float* sum_of_class_weights;  // one number, or null: classes
  float* losses;                      // (rows), written
  bool* right;  // (rows), written: the first largest logit is the target's; or null
  std::int64_t rows, classes;
  float smoothing;
  float softcap;  // 0: none
  bool wants_gradient;
};

namespace {

/// What a thread, then all of them, know of a row.
struct RowSum {
  float largest;          // of the logits
  float exponentials;     // sum of exp(z - largest)
  float weighted;         // w . z, where there is smoothing
  std::int32_t position;  // of the largest, the first of equals
};

/// One row by one thread block, in phases with a barrier between them (cuda/bodies.h says how).
template <Storage storage>
struct CrossEntropy {
  static constexpr int kThreads = 256;
  static constexpr int kAtOnce = 4;  // loads under way
  static constexpr float kLeast = -std::numeric_limits<float>::infinity();
  struct Shared {
    RowSum sums[kThreads];
  };
  static constexpr int kFold = 8;  // 128 ... 1
  static constexpr int phases = 1 + kFold + 1;

  static DEMI_HOST_DEVICE float logit(const CrossEntropyRows& of, std::int64_t row,
                                      std::int64_t c) {
    float z = cuda::load_one(of.logits, storage, row * of.classes + c);
    if (of.bias) z += of.bias[c];
    if (of.softcap > 0.0f) z = of.softcap * tanhf(z / of.softcap);
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

  /// Of the thread's logits; those that are -Inf add nothing.
  static DEMI_HOST_DEVICE RowSum sum_of(const CrossEntropyRows& of, std::int64_t row, int t) {
    RowSum sum{kLeast, 0.0f, 0.0f, std::numeric_limits<std::int32_t>::max()};
    for (std::int64_t c = t; c < of.classes; c += kThreads * kAtOnce) {
      float z[kAtOnce];
      DEMI_UNROLLED
      for (int k = 0; k < kAtOnce; ++k) {
        const std::int64_t at = c + k * kThreads;
        z[k] = at < of.classes ? logit(of, row, at) : kLeast;
        if (of.smoothing > 0.0f && at < of.classes) sum.weighted += class_weight(of, at) * z[k];
      }
      const float before = sum.largest;
      DEMI_UNROLLED
      for (int k = 0; k < kAtOnce; ++k) {
        if (!(z[k] > sum.largest)) continue;
        sum.largest = z[k];
        sum.position = static_cast<std::int32_t>(c + k * kThreads);
      }
      if (sum.exponentials != 0.0f && sum.largest > before)
        sum.exponentials *= expf(before - sum.largest);
      DEMI_UNROLLED
      for (int k = 0; k < kAtOnce; ++k) {
        if (z[k] != kLeast) sum.exponentials += expf(z[k] - sum.largest);
      }
    }
    return sum;
  }

  static DEMI_HOST_DEVICE float sum_of_weights(const CrossEntropyRows& of) {
    return of.sum_of_class_weights ? *of.sum_of_class_weights : static_cast<float>(of.classes);
  }

  static DEMI_HOST_DEVICE void write_loss(const CrossEntropyRows& of, std::int64_t row,
                                          const RowSum& sum, float at_target) {
    const float lse = sum.largest + logf(sum.exponentials), e = of.smoothing;
    float loss = (1.0f - e) * of.row_weight[row] * (lse - at_target);
    if (e > 0.0f)
      loss += e / static_cast<float>(of.classes) * (sum_of_weights(of) * lse - sum.weighted);
    of.losses[row] = loss;
    if (of.right) of.right[row] = sum.position == of.target[row];
  }

  static DEMI_HOST_DEVICE void write_gradient(const CrossEntropyRows& of, std::int64_t row, int t,
                                              const RowSum& sum) {
    const float e = of.smoothing, share = e / static_cast<float>(of.classes),
                scale = of.row_scale[row] * (of.factor ? *of.factor : 1.0f),
                of_target = (1.0f - e) * of.row_weight[row] * scale;
    const float of_softmax =
        (of_target + (e > 0.0f ? share * sum_of_weights(of) * scale : 0.0f)) / sum.exponentials;
    const std::int64_t target = of.target[row];
    for (std::int64_t c = t; c < of.classes; c += kThreads * kAtOnce) {
      DEMI_UNROLLED
      for (int k = 0; k < kAtOnce; ++k) {
        const std::int64_t at = c + k * kThreads;
        if (at >= of.classes) continue;
        const float z = logit(of, row, at);
        float gradient = of_softmax * expf(z - sum.largest);
        if (at == target) gradient -= of_target;
        if (e > 0.0f) gradient -= share * class_weight(of, at) * scale;
        if (of.softcap > 0.0f) gradient *= 1.0f - (z / of.softcap) * (z / of.softcap);
        cuda::store_one(of.logits, storage, row * of.classes + at, gradient);
      }
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
      if (p == kFold && t == 0) write_loss(of, row, shared.sums[0], logit(of, row, of.target[row]));
    } else if (of.wants_gradient) {
      write_gradient(of, row, t, shared.sums[0]);
    }
  }
};

}  // namespace
}  // namespace demi::kernels
