#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace demi {

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  int below(std::size_t n) { return static_cast<int>(engine_() % n); }
  bool chance(int percent) { return below(100) < percent; }
  template <class T>
  const T& of(const std::vector<T>& all) {
    return all[static_cast<std::size_t>(below(all.size()))];
  }

 private:
  std::mt19937_64 engine_;
};

/// How often what was done.
using Counts = std::map<std::string, int>;

/// Makes episodes of random calls, Episode(seed, wrong, counts).run(calls_each), which returns how
/// many it made. $DEMI_RANDOM_CALLS: how many at least (`calls`); $DEMI_RANDOM_SEED: the first
/// seed.
template <class Episode>
void expect_no_wrong_call(std::int64_t calls, int calls_each) {
  const auto number_from = [](const char* variable, std::int64_t otherwise) {
    const char* text = std::getenv(variable);
    return text && *text ? std::stoll(text) : otherwise;
  };
  const std::int64_t wanted = number_from("DEMI_RANDOM_CALLS", calls);
  auto seed = static_cast<std::uint64_t>(number_from("DEMI_RANDOM_SEED", 1));
  int wrong = 0;
  std::int64_t made = 0;
  Counts counts;
  for (; made < wanted && wrong < 10; ++seed) made += Episode(seed, wrong, counts).run(calls_each);
  std::cout << made << " calls, " << wrong << " wrong";
  for (const auto& [what, count] : counts) std::cout << "; " << what << " " << count;
  std::cout << "\n";
  EXPECT_EQ(wrong, 0);
}

}  // namespace demi
