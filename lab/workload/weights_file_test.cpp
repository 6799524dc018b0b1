#include "lab/workload/weights_file.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "demi/checkpoint/safetensors.h"
#include "demi/core/error.h"

namespace demi::workload {
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

// What the metadata say does not need the tensors: they may be gigabytes.
TEST_F(WeightsFile, InfoReadsTheHeaderAlone) {
  auto trained = model(), spare = model();
  trained->register_buffer("flag", at::zeros({1}, at::kBool));
  spare->register_buffer("flag", at::zeros({1}, at::kBool));
  const auto file = folder_ / "m.safetensors";
  save_shipped_weights(*trained, *spare, parse_precision("bf16"), file,
                       settings::Config{.epochs = 7});
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

// All of it or nothing: the last tensor is what does not fit.
TEST_F(WeightsFile, ThatDoNotFitChangeNothing) {
  auto module = model();
  checkpoint::NamedTensors weights;
  for (const auto& item : module->named_parameters())
    weights[item.key()] = torch::ones_like(item.value());
  for (const auto& item : module->named_buffers())
    weights[item.key()] = torch::ones_like(item.value());
  const at::Tensor before = module[0]->parameters()[0].detach().clone();
  checkpoint::NamedTensors missing = weights, reshaped = weights;
  missing.erase("1.weight");
  reshaped["1.weight"] = torch::ones({63});
  EXPECT_THROW(load_weights(*module, missing), DataError);
  EXPECT_THROW(load_weights(*module, reshaped), DataError);
  EXPECT_TRUE(torch::equal(module[0]->parameters()[0], before));
  load_weights(*module, weights);
  EXPECT_TRUE(module[0]->parameters()[0].eq(1).all().item<bool>());
}

}  // namespace
}  // namespace demi::workload
