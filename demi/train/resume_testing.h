#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "demi/checkpoint/checkpoint.h"
#include "demi/data/tensor_loader.h"
#include "demi/train/trainer.h"

namespace demi::train::testing {

/// A model with every kind of state: parameters, running statistics, random numbers.
struct SmallNetImpl : torch::nn::Module {
  explicit SmallNetImpl(double dropout = 0.3)
      : first(register_module("first", torch::nn::Linear(6, 10))),
        norm(register_module("norm", torch::nn::BatchNorm1d(10))),
        drop(register_module("drop", torch::nn::Dropout(dropout))),
        last(register_module("last", torch::nn::Linear(10, 3))) {}
  at::Tensor forward(const at::Tensor& input) {
    return last(drop(torch::relu(norm(first(input)))));
  }
  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Dropout drop;
  torch::nn::Linear last;
};
TORCH_MODULE(SmallNet);

/// Copies, as a file holds them.
inline checkpoint::Checkpoint copy_of(checkpoint::Checkpoint original) {
  for (auto* tensors : {&original.model, &original.state})
    for (auto& [name, tensor] : *tensors) tensor = tensor.detach().cpu().contiguous().clone();
  return original;
}

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const at::Tensor x = a.cpu().contiguous(), y = b.cpu().contiguous();
  return std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

/// Whether a name is that of a time, which no two runs share, or of LibTorch's archive, whose bytes
/// hold addresses.
inline bool is_compared(const std::string& name) {
  return name.find("seconds") == std::string::npos && !name.ends_with("/archive");
}

/// Expects the same names and the same bits.
inline void expect_same(const checkpoint::NamedTensors& a, const checkpoint::NamedTensors& b) {
  for (const auto& [name, tensor] : a) {
    if (!b.contains(name)) {
      ADD_FAILURE() << name << " is missing";
    } else if (is_compared(name)) {
      EXPECT_TRUE(same_bits(tensor, b.at(name))) << name << "\n" << tensor << "\n" << b.at(name);
    }
  }
  for (const auto& [name, tensor] : b) EXPECT_TRUE(a.contains(name)) << name << " is new";
}

inline void expect_same(const checkpoint::Checkpoint& a, const checkpoint::Checkpoint& b) {
  expect_same(a.model, b.model);
  expect_same(a.state, b.state);
  ASSERT_EQ(a.numbers.size(), b.numbers.size());
  for (const auto& [part, numbers] : a.numbers) {
    ASSERT_TRUE(b.numbers.contains(part)) << part;
    const StateDict& others = b.numbers.at(part);
    EXPECT_EQ(numbers.size(), others.size()) << part;
    for (const auto& [name, number] : numbers) {
      ASSERT_TRUE(others.contains(name)) << part << " " << name;
      if (!is_compared(name)) continue;
      EXPECT_EQ(std::bit_cast<std::uint64_t>(number), std::bit_cast<std::uint64_t>(others.at(name)))
          << part << " " << name << ": " << number << " and " << others.at(name);
    }
  }
  EXPECT_EQ(a.text, b.text);
}

/// A training, made of new objects each time.
struct Job {
  Network network;
  TrainerOptions options;
  std::shared_ptr<const data::Loader> training, validation;
};

/// Rows of three classes.
inline std::shared_ptr<const data::Loader> rows(int64_t examples, int64_t batch_size,
                                                uint64_t seed) {
  const at::Tensor input = data::synthetic_rows(examples, 6, 1, seed).input;
  const at::Tensor target = (input.slice(1, 0, 2) > 0).sum(1);
  return std::make_shared<data::TensorLoader>(
      input, target, data::OrderOptions{.batch_size = batch_size, .shuffle = true, .seed = seed});
}

/// The result of a run.
struct Outcome {
  checkpoint::Checkpoint state;
  History history;
};

/// Trains until the job ends, from `from` if it is given.
inline Outcome train(Job job, const checkpoint::Checkpoint* from = nullptr,
                     std::shared_ptr<Callback> callback = nullptr) {
  Trainer trainer(job.network, std::move(job.options));
  if (callback) trainer.add(std::move(callback));
  if (from) trainer.resume(*from);
  torch::manual_seed(from ? 1234 : 99);  // those of the checkpoint are loaded by the first step
  Trainer::Parts parts(trainer, *job.training, job.validation.get());
  while (parts.advance(std::numeric_limits<int64_t>::max())) {
  }
  return {copy_of(parts.checkpoint()), parts.history()};
}

/// The state of a run that is stopped when should_stop is asked for the k-th time: after a batch,
/// or before one of a validation.
inline Outcome stopped_after(Job job, int64_t k, std::shared_ptr<Callback> callback = nullptr) {
  job.options.should_stop = [left = k]() mutable { return --left <= 0; };
  return train(std::move(job), nullptr, std::move(callback));
}

}  // namespace demi::train::testing
