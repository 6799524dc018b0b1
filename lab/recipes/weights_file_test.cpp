#include "lab/recipes/weights_file.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "demi/checkpoint/safetensors.h"
#include "demi/core/error.h"
#include "demi/optim/adamw.h"

namespace demi::train {
namespace {

namespace fs = std::filesystem;

class WeightsFile : public ::testing::Test {
 protected:
  WeightsFile()
      : folder_(fs::temp_directory_path() / ("demi-weights-" + std::to_string(getpid()))) {
    fs::create_directories(folder_);
  }
  ~WeightsFile() override { fs::remove_all(folder_); }
  static torch::nn::Sequential model() {
    return torch::nn::Sequential(torch::nn::Linear(64, 64), torch::nn::BatchNorm1d(64));
  }
  fs::path folder_;
};

TEST_F(WeightsFile, MixedRunShipsSixteenBitWeightsAndFp32Normalisation) {
  auto trained = model(), spare = model(), again = model();
  const auto file = folder_ / "m.safetensors";
  const int64_t half = save_shipped_weights(*trained, *spare, parse_precision("bf16"), file);
  const auto saved = checkpoint::load_safetensors(file).tensors;
  EXPECT_EQ(saved.at("0.weight").scalar_type(), c10::kBFloat16);
  EXPECT_EQ(saved.at("1.weight").scalar_type(), c10::kFloat);
  EXPECT_EQ(saved.at("1.running_var").scalar_type(), c10::kFloat);
  EXPECT_TRUE(torch::equal(saved.at("0.weight"), trained[0]->parameters()[0].to(c10::kBFloat16)));

  load_shipped_weights(*again, parse_precision("bf16"), file);
  EXPECT_TRUE(torch::equal(again[0]->parameters()[0], spare[0]->parameters()[0]));

  auto fp32 = model();
  const int64_t whole =
      save_shipped_weights(*trained, *fp32, parse_precision("fp32"), folder_ / "w.safetensors");
  EXPECT_GT(whole, half + 64 * 64 * 2 - 200);
}

// Bytes of the file after three steps from one seed.
std::string state_of_a_run(const fs::path& file, int64_t spare) {
  torch::manual_seed(3);
  std::vector<at::Tensor> elsewhere;  // other addresses
  for (int64_t i = 0; i < spare; ++i) elsewhere.push_back(at::empty({64 + i}));
  torch::nn::Sequential model;
  for (int i = 0; i < 12; ++i) {
    model->push_back(torch::nn::Linear(8, 8));
    elsewhere.push_back(at::empty({spare}));
  }
  optim::AdamW optimizer(model->parameters(), optim::AdamWOptions(1e-3));
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    model->forward(torch::ones({4, 8})).square().sum().backward();
    optimizer.step();
  }
  save_training_state(*model, optimizer, History(), file);
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The optimizer's archive is ordered by addresses.
TEST_F(WeightsFile, StatesOfEqualRunsAreEqual) {
  const std::string first = state_of_a_run(folder_ / "s.safetensors", 1);
  for (const int64_t spare : {7, 100, 3000})
    EXPECT_TRUE(state_of_a_run(folder_ / "s.safetensors", spare) == first) << spare;
  const auto saved = checkpoint::load_safetensors(folder_ / "s.safetensors").tensors;
  EXPECT_EQ(saved.at("optimizer/taken").item<int64_t>(), 3);
  EXPECT_EQ(saved.at("optimizer/0.exp_avg").sizes(), (std::vector<int64_t>{8, 8}));
  EXPECT_EQ(saved.at("optimizer/lr").item<double>(), 1e-3);
}

// What the metadata say does not need the tensors: they may be gigabytes.
TEST_F(WeightsFile, InfoReadsTheHeaderAlone) {
  auto trained = model(), spare = model();
  trained->register_buffer("flag", at::zeros({1}, at::kBool));
  spare->register_buffer("flag", at::zeros({1}, at::kBool));
  const auto file = folder_ / "m.safetensors";
  save_shipped_weights(*trained, *spare, parse_precision("bf16"), file, Config{.epochs = 7});
  std::fstream damaged(file, std::ios::binary | std::ios::in | std::ios::out);
  damaged.seekp(-1, std::ios::end).put('\x07');  // the truth value, last in the file, is neither
  damaged.close();
  EXPECT_THROW(checkpoint::load_safetensors(file), DataError);
  EXPECT_EQ(weights_info(file).config.epochs, 7);
}

TEST_F(WeightsFile, OfAnotherModelIsRefused) {
  auto trained = model(), spare = model();
  const auto file = folder_ / "m.safetensors";
  save_shipped_weights(*trained, *spare, parse_precision("bf16"), file);
  torch::nn::Sequential other(torch::nn::Linear(64, 32), torch::nn::BatchNorm1d(32));
  EXPECT_THROW(load_shipped_weights(*other, parse_precision("bf16"), file), DataError);
  auto same = model();
  EXPECT_THROW(load_shipped_weights(*same, parse_precision("fp32"), file), DataError)
      << "another dtype";
}

}  // namespace
}  // namespace demi::train
