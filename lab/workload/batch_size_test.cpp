#include "lab/workload/batch_size.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "demi/core/error.h"
#include "demi/data/tensor_loader.h"
#include "lab/settings/recipe.h"
#include "lab/workload/within_memory.h"

namespace demi::workload {
namespace {

double line(int64_t size) { return 1000 + 10 * static_cast<double>(size); }

TEST(LargestBatch, FillsTheRoom) {
  EXPECT_EQ(largest_batch(line, 1'000'000, 1 << 30), 99'900);
  EXPECT_EQ(largest_batch(line, 1'000'000, 5'000), 5'000);
  EXPECT_EQ(largest_batch(line, 1e300, 1 << 30), 1 << 30);
  EXPECT_EQ(largest_batch(line, 1'200, 1 << 30), 20) << "32 need 1320";
  EXPECT_EQ(largest_batch(line, 1'080, 1 << 30), 8);
  EXPECT_EQ(largest_batch(line, 1'320, 1 << 30), 32);
  EXPECT_EQ(largest_batch(line, 2'000, 5), 5);
}

// Where memory is overcommitted, a trial beyond the limit ends the process.
TEST(LargestBatch, TriesHalfOfWhatItPredictsAtMost) {
  for (const double room : {1e4, 1e5, 1e6, 1e9}) {
    double most = 0;
    const auto noted = [&](int64_t size) {
      most = std::max(most, line(size));
      return line(size);
    };
    const int64_t size = largest_batch(noted, room, 1 << 30);
    EXPECT_LE(line(size), room);
    EXPECT_LE(most, 0.51 * room + 1000) << "of line(8) and line(32) at least";
  }
}

// What grows faster than a line is met on the way, in steps of at most eight times.
TEST(LargestBatch, StaysWithinWhatTurnsOutToBeSteeper) {
  std::vector<int64_t> tried;
  const auto limited = [&](int64_t of) {
    tried.push_back(of);
    return of > 1000 ? std::numeric_limits<double>::infinity() : line(of);
  };
  EXPECT_EQ(largest_batch(limited, 81'000, 1 << 30), 511);
  EXPECT_EQ(tried, (std::vector<int64_t>{8, 32, 256, 2'048, 1'023, 511}));
  const auto square = [](int64_t of) { return static_cast<double>(of * of); };
  const int64_t size = largest_batch(square, 1e8, 1 << 30);
  EXPECT_LE(size, 10'000 * 5 / 4);
  EXPECT_GE(size, 5'000);
}

// A heap takes some more or less from one trial to the next: two of nearly the same size make no
// line. Here 2,048 and 2,351 would, with a slope of 16.6 where 10 is right.
TEST(LargestBatch, ALineNeedsDistance) {
  bool more = false;
  const auto unsteady = [&](int64_t size) {
    more = !more;
    return line(size) + (more ? -1'000 : 1'000);
  };
  const int64_t size = largest_batch(unsteady, 52'000, 1 << 30);
  EXPECT_GE(size, 4'700) << "of 5,100";
  EXPECT_LE(size, 5'100);
}

// Between 8, which fit, and 32, which do not: by a line, by halves where memory ran out, and again
// where the line leads too far.
TEST(LargestBatch, LooksBetweenTheFirstTwo) {
  std::vector<int64_t> tried;
  const auto ends_at = [&](int64_t last, auto memory) {
    return [&tried, last, memory](int64_t size) {
      tried.push_back(size);
      return size > last ? std::numeric_limits<double>::infinity() : memory(size);
    };
  };
  EXPECT_EQ(largest_batch(ends_at(21, line), 1e6, 1 << 30), 20);
  EXPECT_EQ(tried, (std::vector<int64_t>{8, 32, 20, 26, 23}));
  const auto square = [](int64_t of) { return static_cast<double>(of * of); };
  const int64_t size = largest_batch(square, 500, 1 << 30);  // 22 * 22 is 484
  EXPECT_LE(size, 22);
  EXPECT_GE(size, 20);
  const auto bent = [](int64_t of) { return of > 25 ? 700. : 10. * static_cast<double>(of); };
  EXPECT_LE(largest_batch(bent, 650, 1 << 30), 25);
}

TEST(LargestBatch, SaysThatNothingFits) {
  EXPECT_THROW(largest_batch(line, 1'000, 1 << 30), TrainingError);
}

/// A network of 8 features, data of 40 rows.
Workload small_workload(const settings::Config& config) {
  Workload workload;
  const auto rows = data::synthetic_rows(40, 8, 8, 0);
  workload.train = std::make_shared<data::TensorLoader>(rows.input, rows.target);
  workload.make_network = [config](uint64_t seed) {
    return make_network(config, DataShape(), seed, c10::kCPU);
  };
  return workload;
}

settings::Config small_config() {
  settings::Config config = settings::find_recipe("mlp").config;
  for (const char* name : {"in", "out"}) settings::set(config, name, "8", name);
  return config;
}

TEST(FindBatchSize, IsAtMostTheWholeSet) {
  settings::Config config = small_config();
  config.data = "cifar10";  // any that is not synthetic
  EXPECT_EQ(find_batch_size(settings::resolve(config, settings::parse_run("fp32")),
                            small_workload(config)),
            40);
}

// An error that is not of memory would else pass for a batch that is too large.
TEST(FindBatchSize, AnErrorOfTheModelIsNotOneOfMemory) {
  const settings::Config config = small_config();
  Workload workload = small_workload(config);
  workload.make_network = [](uint64_t) -> train::Network { throw std::domain_error("no model"); };
  EXPECT_THROW(find_batch_size(settings::resolve(config, settings::parse_run("fp32")), workload),
               std::domain_error);
}

/// A network whose evaluation takes 64 MB, and whose training takes little.
Workload evaluated_workload(const settings::Config& config) {
  Workload workload = small_workload(config);
  workload.test = workload.train;
  workload.make_network = [](uint64_t) {
    torch::nn::Linear model(8, 8);
    return train::Network{model.ptr(), [model](const data::Batch& batch) mutable {
                            if (!model->is_training()) torch::ones({16, 1'000'000});
                            return model(batch.input);
                          }};
  };
  return workload;
}

TEST(FindBatchSize, CountsTheEvaluation) {
  settings::Config config = small_config();
  config.data = "cifar10";
  const settings::Resolved run = settings::resolve(config, settings::parse_run("fp32"));
  double needed = 0;
  BatchSearch search{.free_bytes = 1'000'000'000};
  search.tried = [&](const BatchTrial& one) { needed = std::max(needed, one.needed_bytes); };
  EXPECT_EQ(find_batch_size(run, evaluated_workload(config), search), 40);
  EXPECT_GE(needed, 64e6);
  search.free_bytes = 60'000'000;
  EXPECT_EQ(find_batch_size(run, small_workload(config), search), 40);
  try {
    find_batch_size(run, evaluated_workload(config), search);
    ADD_FAILURE() << "no complaint";
  } catch (const TrainingError& error) {
    EXPECT_NE(std::string(error.what()).find("--test-batch-size 500"), std::string::npos)
        << error.what();
  }
}

/// Rows of several widths, as texts have them.
class Texts : public data::Loader {
 public:
  int64_t examples() const override { return 12; }
  int64_t batches() const override { return 3; }
  data::Batch batch(int64_t, int64_t position) const override {
    const int64_t width = position == 1 ? 8 : 5;
    return {torch::ones({4, width}), torch::ones({4, 8}), torch::full({4}, width, torch::kLong)};
  }
};

TEST(FindBatchSize, TriesTheLongestTextsWithTheirLengths) {
  settings::Config config = small_config();
  config.data = "imdb";
  Workload workload = small_workload(config);
  workload.train = std::make_shared<Texts>();
  std::set<int64_t> widths, lengths;
  workload.make_network = [&](uint64_t) {
    torch::nn::Linear model(8, 8);
    return train::Network{model.ptr(), [&, model](const data::Batch& batch) mutable {
                            widths.insert(batch.input.size(1));
                            lengths.insert(batch.lengths.defined() ? batch.lengths.size(0) : 0);
                            return model(batch.input);
                          }};
  };
  EXPECT_EQ(find_batch_size(settings::resolve(config, settings::parse_run("fp32")), workload), 12);
  EXPECT_EQ(widths, std::set<int64_t>{8});
  EXPECT_EQ(lengths, (std::set<int64_t>{8, 12}));
}

template <class Error>
auto throws(Error error) {
  return [error]() -> int { throw error; };
}

TEST(WithinMemory, SizesThatNoMemoryHoldsAreUsageErrors) {
  const auto held = [](const auto& make) { return within_memory("data", "--in 9", make); };
  EXPECT_THROW(held(throws(std::bad_alloc())), UsageError);
  EXPECT_THROW(held(throws(std::length_error("vector::_M_default_append"))), UsageError);
  EXPECT_THROW(held([]() -> int { TORCH_CHECK(false, "Storage size calculation overflowed"); }),
               UsageError);
  EXPECT_THROW(held(throws(std::domain_error("no such shape"))), std::domain_error);
  EXPECT_EQ(held([] { return 7; }), 7);
}

int64_t memory_bytes(const std::string& name) {
  std::ifstream stream("/proc/meminfo");
  for (std::string line_; std::getline(stream, line_);)
    if (line_.starts_with(name)) return std::stoll(line_.substr(name.size())) * 1024;
  return 0;
}

// The set is made for the batch size: a provisional one of 40 rows is no bound. 64 bytes a row and
// 1,600,000 batches: 102 MB for each row of a batch.
TEST(FindBatchSize, OfSyntheticDataIsSetByMemory) {
  settings::Config config = small_config();
  config.batches = 1'600'000;
  constexpr int64_t kOfOne = 1'600'000 * 64;
  if (memory_bytes("MemAvailable:") < 100 * kOfOne) GTEST_SKIP() << "too little memory";
  const int64_t size = find_batch_size(settings::resolve(config, settings::parse_run("fp32")),
                                       small_workload(config));
  EXPECT_GE(size, 8);
  EXPECT_LE(size * kOfOne, memory_bytes("MemTotal:"));
  config.batches = 16'000;
  EXPECT_GT(find_batch_size(settings::resolve(config, settings::parse_run("fp32")),
                            small_workload(config)),
            10 * size)
      << "data of a hundredth";
}

// A whole run takes what its data take, too: 50 batches of rows. The figure of free memory stands
// in for a machine, so that nothing is filled here.
TEST(FindBatchSize, CountsDataAndTheProcess) {
  settings::Config config = small_config();
  config.batches = 1000;  // 64,000 bytes of data for each row of a batch
  constexpr int64_t kFree = int64_t{1} << 30;
  std::vector<BatchTrial> trials;
  const int64_t size = find_batch_size(
      settings::resolve(config, settings::parse_run("fp32")), small_workload(config),
      {.free_bytes = kFree, .tried = [&](const BatchTrial& one) { trials.push_back(one); }});
  EXPECT_LE(1.1 * static_cast<double>(size) * 64'000, 0.8 * kFree);
  EXPECT_GE(1.1 * static_cast<double>(size) * 64'000, 0.72 * kFree) << "the network is small";
  ASSERT_GE(trials.size(), 3U);
  for (const BatchTrial& one : trials) {
    EXPECT_LE(2 * static_cast<double>(one.size) * 64'000, 0.8 * kFree);
    EXPECT_GE(one.needed_bytes, static_cast<double>(one.size) * 64'000);
    EXPECT_EQ(one.room_bytes, 0.8 * kFree);
  }
}

// The limit of a trial comes before the system's.
TEST(FindBatchSize, ATrialBeyondItsLimitIsNoDeath) {
  settings::Config config = small_config();
  config.data = "cifar10";  // any that is not synthetic
  EXPECT_THROW(find_batch_size(settings::resolve(config, settings::parse_run("fp32")),
                               small_workload(config), {.free_bytes = 2'000, .tried = {}}),
               TrainingError);
}

TEST(IsOutOfMemory, IsToldFromOtherErrors) {
  EXPECT_TRUE(is_out_of_memory(std::bad_alloc()));
  EXPECT_TRUE(is_out_of_memory(std::runtime_error("DefaultCPUAllocator: can't allocate memory")));
  EXPECT_FALSE(is_out_of_memory(std::runtime_error("mat1 and mat2 shapes cannot be multiplied")));
}

}  // namespace
}  // namespace demi::workload
