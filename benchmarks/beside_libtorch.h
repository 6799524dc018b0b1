#pragma once

// Benchmarks of an operator beside LibTorch's operators share this: forward and backward of both in
// turn, memory kept as the program keeps it, the least time of each.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <limits>

#include "demi/backends/backends.h"
#include "demi/core/instruction_set.h"

namespace beside_libtorch {

/// Norm of the difference over b's.
inline double apart(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).to(at::kFloat).norm() / b.to(at::kFloat).norm()).item<double>();
}

inline void clear_gradients(std::initializer_list<const at::Tensor*> leaves) {
  for (const at::Tensor* leaf : leaves)
    if (leaf->defined()) leaf->mutable_grad().reset();
}

template <class Act>
double milliseconds(const Act& act) {
  const auto start = std::chrono::steady_clock::now();
  act();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

/// Prints `name` and both least times, unless the results differ. Of a Work: agrees(), and
/// run(demis) and run(libtorchs) of what its demis() and libtorchs() give, forward and backward.
template <class Work>
bool measure(const char* name, const Work& work, int rounds) {
  if (!work.agrees()) {
    std::printf("%s differs from LibTorch's: not timed\n", name);
    return false;
  }
  double demi = std::numeric_limits<double>::infinity(), libtorch = demi;
  for (int i = 0; i < rounds; ++i) {
    const auto libtorchs = [&] { work.run([&] { return work.libtorchs(); }); };
    const auto demis = [&] { work.run([&] { return work.demis(); }); };
    libtorch = std::min(libtorch, milliseconds(libtorchs));
    demi = std::min(demi, milliseconds(demis));
  }
  std::printf("%-52s LibTorch %7.3f  demi %7.3f  %.2f x\n", name, libtorch, demi, libtorch / demi);
  return true;
}

/// The program `name [ROUNDS]`: measure_all(rounds) says whether all results agreed.
template <class MeasureAll>
int run(int argc, char** argv, const char* name, const MeasureAll& measure_all) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 15;
  if (rounds < 1) {
    std::fprintf(stderr, "%s [ROUNDS], 1 or more\n", name);
    return 2;
  }
  demi::keep_memory();
  std::printf("%d threads, %s; ms of forward and backward, the least of %d\n",
              at::get_num_threads(), demi::processor_name().c_str(), rounds);
  return measure_all(rounds) ? 0 : 1;
}

}  // namespace beside_libtorch
