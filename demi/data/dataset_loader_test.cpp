// Truth is torch::data's own DataLoader: the same dataset, transforms and order.
#include "demi/data/dataset_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <string>
#include <thread>

#include "demi/core/error.h"
#include "demi/data/prefetch_loader.h"

namespace demi::data {
namespace {

using torch::data::Example;
using torch::data::datasets::Dataset;
using torch::data::transforms::Stack;

// Squares: input (3), target a number. It fails if two threads use one copy at a time.
class Squares : public Dataset<Squares> {
 public:
  explicit Squares(std::size_t size) : size_(size) {}
  Squares(const Squares& other) : Dataset<Squares>(other), size_(other.size_) { ++copies; }
  Example<> get(std::size_t i) override {
    EXPECT_FALSE(is_busy_.exchange(true)) << "two threads in one copy";
    const auto x = static_cast<double>(i);
    Example<> example{torch::tensor({x, x + 0.25, x + 0.5}), torch::tensor(x * x)};
    is_busy_ = false;
    return example;
  }
  std::optional<std::size_t> size() const override { return size_; }

  static inline std::atomic<int> copies = 0;

 private:
  std::size_t size_;
  std::atomic<bool> is_busy_ = false;
};

void expect_same(const Batch& ours, const Example<>& theirs) {
  EXPECT_TRUE(torch::equal(ours.input, theirs.data)) << ours.input << theirs.data;
  EXPECT_TRUE(torch::equal(ours.target, theirs.target)) << ours.target << theirs.target;
  EXPECT_EQ(ours.input.scalar_type(), theirs.data.scalar_type());
}

TEST(DatasetLoader, GivesTheBatchesOfTorchsDataLoader) {
  for (const std::size_t size : {1, 7, 8, 9}) {  // a last batch of one, of all but one, none
    auto theirs = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
        Squares(size).map(Stack<>()), torch::data::DataLoaderOptions(4).workers(2));
    const auto stacked = loader_of(Squares(size).map(Stack<>()), {.batch_size = 4});
    const auto plain = loader_of(Squares(size), {.batch_size = 4});
    const PrefetchLoader ahead(stacked, {.workers = 2, .device = torch::kCPU});
    EXPECT_EQ(stacked->examples(), static_cast<int64_t>(size));
    for (int64_t epoch = 0; epoch < 2; ++epoch) {  // torch's begin() resets
      int64_t position = 0;
      for (const Example<>& batch : *theirs) {
        expect_same(stacked->batch(epoch, position), batch);
        expect_same(plain->batch(epoch, position), batch);
        expect_same(ahead.batch(epoch, position), batch);
        ++position;
      }
      EXPECT_EQ(stacked->batches(), position);
      EXPECT_THROW(stacked->batch(epoch, position), UsageError);
    }
  }
}

TEST(DatasetLoader, ShufflesEachEpochAnewAndTheSameAgain) {
  const OrderOptions order{.batch_size = 4, .shuffle = true, .seed = 3};
  const auto one = loader_of(Squares(10), order), again = loader_of(Squares(10), order);
  const auto epoch_of = [](const Loader& loader, int64_t epoch) {
    std::vector<torch::Tensor> targets;
    for (int64_t i = 0; i < loader.batches(); ++i) targets.push_back(loader.batch(epoch, i).target);
    return torch::cat(targets);
  };
  EXPECT_TRUE(torch::equal(epoch_of(*one, 1), epoch_of(*again, 1)));
  EXPECT_FALSE(torch::equal(epoch_of(*one, 1), epoch_of(*one, 2)));
  const auto all = torch::arange(10, torch::kFloat).square();
  EXPECT_TRUE(torch::equal(std::get<0>(epoch_of(*one, 2).to(torch::kFloat).sort()), all));
}

TEST(DatasetLoader, EachThreadHasACopyThatIsUsedAgain) {
  const auto loader = loader_of(Squares(64), {.batch_size = 2});
  Squares::copies = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int64_t i = 0; i < loader->batches(); ++i)
        EXPECT_EQ(loader->batch(1, i).target[0].item<double>(), static_cast<double>(4 * i * i));
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(Squares::copies, 1);
  EXPECT_LE(Squares::copies, 4);
}

struct Inputs : Dataset<Inputs, torch::data::TensorExample> {
  torch::data::TensorExample get(std::size_t i) override {
    return torch::full({2}, static_cast<double>(i));
  }
  std::optional<std::size_t> size() const override { return 3; }
};

TEST(DatasetLoader, ExamplesNeedNoTarget) {
  const auto expected = torch::tensor({{0.0, 0.0}, {1.0, 1.0}, {2.0, 2.0}}).to(torch::kFloat);
  for (const Batch& batch :
       {loader_of(Inputs())->batch(0, 0),
        loader_of(Inputs().map(Stack<torch::data::TensorExample>()))->batch(0, 0)}) {
    EXPECT_TRUE(torch::equal(batch.input, expected));
    EXPECT_FALSE(batch.target.defined());
  }
}

// Texts of 1, 2, 3 tokens.
struct Texts : Dataset<Texts> {
  Example<> get(std::size_t i) override {
    return {torch::full({static_cast<int64_t>(i) + 1}, 7, torch::kLong), torch::tensor(0)};
  }
  std::optional<std::size_t> size() const override { return 3; }
};

struct Pad : torch::data::transforms::BatchTransform<std::vector<Example<>>, Batch> {
  Batch apply_batch(std::vector<Example<>> texts) override {
    std::vector<torch::Tensor> inputs;
    Batch batch;
    for (const Example<>& text : texts) inputs.push_back(text.data);
    batch.input = torch::nn::utils::rnn::pad_sequence(inputs, /*batch_first=*/true);
    batch.target = torch::zeros({static_cast<int64_t>(texts.size())}, torch::kLong);
    batch.lengths = batch.input.ne(0).sum(1);
    return batch;
  }
};

TEST(DatasetLoader, ATransformMakesABatchWithLengths) {
  const Batch batch = loader_of(Texts().map(Pad()))->batch(0, 0);
  EXPECT_TRUE(torch::equal(batch.lengths, torch::tensor({1, 2, 3})));
  EXPECT_EQ(batch.input.sizes(), at::IntArrayRef({3, 3}));
}

struct Endless : Inputs {
  std::optional<std::size_t> size() const override { return std::nullopt; }
};

TEST(DatasetLoader, WhatCannotBeABatchIsRefusedWithTheWayOut) {
  const auto says = [](const auto& make, const char* text) {
    try {
      make();
      ADD_FAILURE() << "not refused: " << text;
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(text));
    }
  };
  says([] { loader_of(Texts())->batch(0, 0); },
       "the inputs of a batch differ; seen: Long [1] and Long [2]");
  says([] { loader_of(Endless()); }, "does not say its size");
  says([] { stack_examples({}, "inputs"); }, "no examples");
  says([] { stack_examples({torch::ones(1), {}}, "targets"); }, "undefined tensor");
  says(
      [] {
        stack_examples({torch::ones(1), torch::ones(1, torch::kHalf)}, "targets");
      },
      "Half [1]");
}

}  // namespace
}  // namespace demi::data
