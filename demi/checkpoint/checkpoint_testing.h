#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "demi/checkpoint/checkpoint.h"

namespace demi::checkpoint {

/// Names of all entries of the folder, sorted.
inline std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

/// A test with a folder of its own. In memory where there is /dev/shm: what these tests look at
/// does not depend on the disk, and thousands of saves would wait for it.
class CheckpointFolder : public testing::Test {
 protected:
  void SetUp() override {
    const std::filesystem::path memory = "/dev/shm";
    std::error_code code;
    const bool has_memory = std::filesystem::is_directory(memory, code);
    std::string pattern =
        ((has_memory ? memory : std::filesystem::temp_directory_path()) / "demi-test-XXXXXX")
            .string();
    folder_ = mkdtemp(pattern.data());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::vector<std::string> names() const { return names_in(folder_); }

  std::filesystem::path folder_;
};

inline std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_bytes(const std::filesystem::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

/// Ten small tensors, each full of `value`, and numbers and texts that hold it.
inline Checkpoint ten_tensors(double value) {
  Checkpoint result;
  for (int i = 0; i < 6; ++i)
    result.model["layer." + std::to_string(i)] = at::full({3, 5 + i}, value, at::kFloat);
  result.state["optimizer/0.exp_avg"] = at::full({3, 5}, value, at::kDouble);
  result.state["optimizer/1.exp_avg"] = at::full({7}, value, at::kBFloat16);
  result.state["random/cpu"] = at::full({11}, value, at::kByte);
  result.state["optimizer/taken"] = at::full({}, value, at::kLong);
  result.numbers["progress"] = {{"step", value}, {"rate", 1 / value}};
  result.text["demi.note"] = "value " + std::to_string(value);
  result.model_text["demi.words"] = "words " + std::to_string(value);
  return result;
}

/// The checkpoint with tensors of its own.
inline Checkpoint own_copy(Checkpoint original) {
  for (auto* tensors : {&original.model, &original.state})
    for (auto& [name, tensor] : *tensors) tensor = tensor.clone();
  return original;
}

inline bool same_tensors(const NamedTensors& a, const NamedTensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.first == y.first && x.second.scalar_type() == y.second.scalar_type() &&
           x.second.sizes() == y.second.sizes() && at::equal(x.second, y.second);
  });
}

/// Runs it in a process of its own, which is another run.
template <class Work>
void in_another_process(const Work& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      work();
      ::_exit(0);
    } catch (const std::exception& error) {
      ::fprintf(stderr, "%s\n", error.what());
      ::_exit(1);
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
}

/// Bit by bit: NaN equals NaN of the same bits, and 0 is not -0.
inline bool same_numbers(const StateDict& a, const StateDict& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.first == y.first &&
           std::bit_cast<uint64_t>(x.second) == std::bit_cast<uint64_t>(y.second);
  });
}

inline bool same(const Checkpoint& a, const Checkpoint& b) {
  return same_tensors(a.model, b.model) && same_tensors(a.state, b.state) && a.text == b.text &&
         a.model_text == b.model_text &&
         std::equal(a.numbers.begin(), a.numbers.end(), b.numbers.begin(), b.numbers.end(),
                    [](const auto& x, const auto& y) {
                      return x.first == y.first && same_numbers(x.second, y.second);
                    });
}

}  // namespace demi::checkpoint
