// What `demi predict` gives the network is what evaluation gives it, bit for bit, and what it says
// of the output is the softmax, or the sigmoid, of evaluation's logits.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "demi/checkpoint/checkpoint.h"
#include "demi/core/error.h"
#include "lab/data/picture.h"
#include "lab/predict/predict.h"
#include "lab/settings/resolved.h"
#include "lab/workload/model_data.h"
#include "lab/workload/model_file.h"
#include "lab/workload/weights_file.h"
#include "lab/workload/workload.h"
#include "tests/small_recipes.h"

namespace {

namespace fs = std::filesystem;
namespace predict = demi::predict;
using demi::data::Batch;
using demi::settings::Config;
using demi::workload::Workload;
using predict::Input;
using predict::Prediction;
using ::testing::HasSubstr;

constexpr auto kQuiet = [](const std::string&) {};

class PredictRecipe : public ::testing::Test {
 protected:
  PredictRecipe()
      : folder_(fs::temp_directory_path() / ("demi-predict-" + std::to_string(getpid()))) {
    fs::create_directories(folder_);
  }
  ~PredictRecipe() override { fs::remove_all(folder_); }

  void SetUp() override {
    has_png_ = demi::data::picture_formats().find("PNG") != std::string::npos;
  }

  // The file of a network with its initial weights.
  void save(const Config& config) {
    const auto run = demi::settings::resolve(config, c10::kCPU);
    workload_ = demi::workload::load_workload(config, c10::kCPU);
    network_ = workload_.make_network(7);
    const auto spare = workload_.make_network(0);
    file_ = folder_ / "model.safetensors";
    demi::workload::save_shipped_weights(*network_.module, *spare.module, run.spec.precision, file_,
                                         config,
                                         demi::workload::model_texts(run, workload_, false));
    network_.module->eval();
  }

  std::vector<Batch> seen_by_evaluation() const {
    std::vector<Batch> all;
    for (int64_t i = 0; i < workload_.test->batches(); ++i)
      all.push_back(workload_.test->batch(0, i));
    return all;
  }

  // The network's inputs, and what is predicted.
  std::vector<Batch> ask(const std::vector<Input>& inputs, std::vector<Prediction>& predictions,
                         int64_t batch_size = 0, int64_t workers = 0) {
    predict::Model model =
        predict::load_model(file_, {.batch_size = batch_size, .workers = workers});
    std::vector<Batch> seen;
    model.network.forward = [&seen, forward = model.network.forward](const Batch& batch) {
      seen.push_back(batch);
      return forward(batch);
    };
    predict::predict(
        model, inputs, [&](const Prediction& one) { predictions.push_back(one); },
        [this](const std::string& what) { said_.push_back(what); });
    return seen;
  }

  void expect_inputs_of_evaluation(const std::vector<Input>& inputs) {
    const std::vector<Batch> expected = seen_by_evaluation();
    std::vector<Prediction> predictions;
    const std::vector<Batch> seen = ask(inputs, predictions);
    ASSERT_EQ(seen.size(), expected.size());
    for (std::size_t i = 0; i < seen.size(); ++i) {
      EXPECT_TRUE(at::equal(seen[i].input, expected[i].input)) << i;
      EXPECT_EQ(seen[i].input.strides(), expected[i].input.strides());
      if (expected[i].lengths.defined()) {
        EXPECT_TRUE(at::equal(seen[i].lengths, expected[i].lengths)) << i;
      }
    }
  }

  // Each input by itself through the trained network, in FP64 from the logits on.
  void expect_probabilities(const std::vector<Input>& inputs) {
    const at::NoGradGuard no_grad;
    std::vector<Prediction> alone;
    const std::vector<Batch> single = ask(inputs, alone, 1);
    for (const int64_t batch_size : {0, 1, 3}) {
      std::vector<Prediction> predictions;
      ask(inputs, predictions, batch_size);
      ASSERT_EQ(predictions.size(), inputs.size());
      for (std::size_t i = 0; i < inputs.size(); ++i) EXPECT_EQ(predictions[i].input, i);
      for (const Batch& one : single) {  // texts are not in the order of the inputs
        const at::Tensor logits = network_.forward(one).to(at::kDouble);
        const at::Tensor all = logits.size(1) == 1
                                   ? at::cat({1 - logits.sigmoid(), logits.sigmoid()}, 1)
                                   : logits.softmax(1);
        const auto place = static_cast<std::size_t>(one.target.item<int64_t>());
        for (const predict::Likely& likely : predictions[place].likeliest)
          EXPECT_NEAR(likely.probability, all[0][likely.number].item<double>(), 1e-6);
        EXPECT_EQ(predictions[place].likeliest[0].number, all.argmax(1).item<int64_t>());
      }
    }
  }

  // The test pictures of a data set, in its order, as PNG files.
  std::vector<Input> as_png(const at::Tensor& images) {
    std::vector<Input> inputs;
    const auto side = static_cast<uint32_t>(images.size(2));
    for (int64_t i = 0; i < images.size(0); ++i) {
      const at::Tensor colours = images[i].expand({3, side, side}).permute({1, 2, 0}).contiguous();
      const std::string bytes(reinterpret_cast<const char*>(colours.const_data_ptr<uint8_t>()),
                              static_cast<std::size_t>(colours.numel()));
      const fs::path file = folder_ / (std::to_string(i) + ".png");
      small_recipes::write(file, small_recipes::png_of(bytes, side));
      inputs.push_back({.name = file.string()});
    }
    return inputs;
  }

  fs::path folder_, file_;
  bool has_png_ = false;
  Workload workload_;
  demi::train::Network network_;
  std::vector<std::string> said_;
};

TEST_F(PredictRecipe, CifarAsPngIsTheTestSet) {
  if (!has_png_) GTEST_SKIP() << "built without libpng";
  const Config config = small_recipes::of("cifar10-cnn", folder_);
  save(config);
  const auto inputs =
      as_png(demi::data::load_images("cifar10", demi::data::Split::test, config.data_dir).images);
  expect_inputs_of_evaluation(inputs);
  expect_probabilities(inputs);
  EXPECT_THAT(said_, ::testing::IsEmpty()) << "nothing was scaled";
}

TEST_F(PredictRecipe, GreyPicturesAreTheTestSet) {
  if (!has_png_) GTEST_SKIP() << "built without libpng";
  const Config config = small_recipes::of("mnist-cnn", folder_);
  save(config);
  expect_inputs_of_evaluation(
      as_png(demi::data::load_images("mnist", demi::data::Split::test, config.data_dir).images));
  EXPECT_THAT(said_, ::testing::IsEmpty());
}

TEST_F(PredictRecipe, AFolderIsItsValidationSet) {
  if (!has_png_) GTEST_SKIP() << "built without libpng";
  Config config = small_recipes::of("folder-resnet50", folder_);
  config.model = "simple-cnn";
  config.image_size = 32;
  save(config);
  std::istringstream empty;
  const std::vector<std::string> arguments{config.data_dir + "/val"};
  const auto inputs = predict::picture_inputs(arguments, {empty, kQuiet});
  ASSERT_EQ(inputs.size(), 4U);
  expect_inputs_of_evaluation(inputs);
  expect_probabilities(inputs);
  std::vector<Prediction> alone, ahead;
  ask(inputs, alone, 1);
  ask(inputs, ahead, 1, 2);
  for (std::size_t i = 0; i < inputs.size(); ++i)
    EXPECT_EQ(alone[i].likeliest[0].probability, ahead[i].likeliest[0].probability) << i;
}

TEST_F(PredictRecipe, ReviewsAreTheTestSet) {
  const Config config = small_recipes::of("imdb-lstm", folder_);
  save(config);
  std::vector<Input> inputs;
  for (const char* name : {"neg", "pos"}) {
    std::set<fs::path> files;  // 0_1.txt, 1_1.txt: fewer than ten
    for (const auto& file : fs::directory_iterator(fs::path(config.data_dir) / "test" / name))
      files.insert(file.path());
    for (const fs::path& file : files) {
      std::ifstream in(file, std::ios::binary);
      inputs.push_back({.name = {std::istreambuf_iterator<char>(in), {}}});
    }
  }
  expect_inputs_of_evaluation(inputs);
  expect_probabilities(inputs);
}

TEST_F(PredictRecipe, AColumnIsTheTestFile) {
  Config config = small_recipes::of("imdb-lstm", folder_);
  config.data = "csv";
  config.train_file = folder_ / "train.csv";
  config.test_file = folder_ / "test.csv";
  config.max_length = 4;
  small_recipes::write(config.train_file,
                       "label,text\na,\"one, two\"\nb,two three\nc,four five six seven eight\n"
                       "a,one\nb,two\nc,eight\n");
  small_recipes::write(config.test_file,
                       "label,text\na,\"one, two\"\nb,four five six seven eight nine\na,\nc,ten\n");
  config.loss = "cross-entropy";
  save(config);
  const std::vector<std::string> files{config.test_file};
  const auto inputs = predict::csv_inputs(files, "text");
  ASSERT_EQ(inputs.size(), 4U);
  EXPECT_EQ(inputs[2].name, "") << "an empty text is one <unk>, as in training";
  expect_inputs_of_evaluation(inputs);
  expect_probabilities(inputs);
}

TEST_F(PredictRecipe, WhatIsNoPictureHasAnErrorInItsPlace) {
  if (!has_png_) GTEST_SKIP() << "built without libpng";
  const Config config = small_recipes::of("cifar10-cnn", folder_);
  save(config);
  auto inputs =
      as_png(demi::data::load_images("cifar10", demi::data::Split::test, config.data_dir).images);
  std::vector<Prediction> whole, damaged;
  ask(inputs, whole);
  small_recipes::write(folder_ / "no.png", "no picture");
  inputs.insert(inputs.begin() + 1, Input{.name = folder_ / "no.png"});
  inputs.insert(inputs.begin() + 3, Input{.name = "x", .error = "it is not there"});
  ask(inputs, damaged);
  ASSERT_EQ(damaged.size(), whole.size() + 2);
  EXPECT_THAT(damaged[1].error, HasSubstr("not a picture"));
  EXPECT_EQ(damaged[3].error, "it is not there");
  EXPECT_NEAR(damaged[2].likeliest[0].probability, whole[1].likeliest[0].probability, 1e-6);
  EXPECT_EQ(damaged[2].likeliest[0].number, whole[1].likeliest[0].number);
}

TEST_F(PredictRecipe, AnotherSizeIsScaledAndSaidOnce) {
  if (!has_png_) GTEST_SKIP() << "built without libpng";
  save(small_recipes::of("mnist-cnn", folder_));
  // One colour everywhere, which scaling keeps.
  std::string colours;
  for (int i = 0; i < 40 * 40; ++i) colours += "\xC8\x32\x78";  // 200, 50, 120
  small_recipes::write(folder_ / "a.png", small_recipes::png_of(colours, 40));
  std::vector<Prediction> predictions;
  const auto seen = ask({{.name = folder_ / "a.png"}, {.name = folder_ / "a.png"}}, predictions);
  // 0.299 * 200 + 0.587 * 50 + 0.114 * 120 = 102.83
  const float expected = (103.0F / 255 - 0.1307F) / 0.3081F;
  EXPECT_LT((seen[0].input - expected).abs().max().item<float>(), 1e-5F);
  // Workers decode none twice, though they are done before the network is.
  ask({{.name = folder_ / "a.png"}, {.name = folder_ / "a.png"}}, predictions, 1, 2);
  ASSERT_EQ(said_.size(), 4U);
  for (const std::size_t i : {0U, 2U}) {
    EXPECT_THAT(said_[i], HasSubstr("2 of 2 pictures had another size"));
    EXPECT_THAT(said_[i + 1], HasSubstr("2 of 2 pictures had colours"));
  }
}

TEST_F(PredictRecipe, ABadTextAndNaNAreErrors) {
  Config config = small_recipes::of("imdb-lstm", folder_);
  save(config);
  std::vector<Prediction> predictions;
  ask({{.name = "good film"}, {.name = "caf\xe9", .place = "x.txt, line 2"}, {.name = ""}},
      predictions);
  ASSERT_EQ(predictions.size(), 3U);
  EXPECT_THAT(predictions[1].error, HasSubstr("x.txt, line 2: not UTF-8: byte 0xe9 at offset 3"));
  EXPECT_EQ(predictions[0].likeliest.size(), 2U);
  EXPECT_NEAR(predictions[0].likeliest[0].probability + predictions[0].likeliest[1].probability, 1,
              1e-6);
  predict::Model model = predict::load_model(file_, {});
  {
    const at::NoGradGuard no_grad;
    model.network.module->parameters().back().fill_(std::nan(""));
  }
  const predict::Counts counts = predict::predict(
      model, std::vector<Input>{{.name = "good"}},
      [&](const Prediction& one) { EXPECT_THAT(one.error, HasSubstr("NaN")); }, kQuiet);
  EXPECT_EQ(counts.not_finite, 1);
  EXPECT_EQ(counts.errors, 1);
}

// More than are sorted by length together.
TEST_F(PredictRecipe, ManyTextsComeBackInTheirOrder) {
  save(small_recipes::of("imdb-lstm", folder_));
  std::vector<Input> inputs(5000, {.name = "good"});
  inputs[4500].name = "it is a bad film";
  std::vector<Prediction> predictions;
  ask(inputs, predictions, 500);
  ASSERT_EQ(predictions.size(), inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_EQ(predictions[i].input, i);
    const double difference =
        predictions[i].likeliest[0].probability - predictions[0].likeliest[0].probability;
    EXPECT_EQ(std::abs(difference) > 1e-6, i == 4500) << i;
  }
}

TEST_F(PredictRecipe, AnOlderFileOfPicturesNumbersItsClasses) {
  if (!has_png_) GTEST_SKIP() << "built without libpng";
  const Config config = small_recipes::of("cifar10-cnn", folder_);
  save(config);
  const auto inputs =
      as_png(demi::data::load_images("cifar10", demi::data::Split::test, config.data_dir).images);
  std::vector<Prediction> named, numbered;
  ask(inputs, named);
  auto texts = demi::checkpoint::read_safetensors_header(file_).metadata;
  demi::checkpoint::NamedTensors tensors;
  for (const auto& [name, tensor] : demi::checkpoint::load(file_).model)
    tensors[name] = tensor.clone();
  for (const char* name : {"demi.file", "demi.model", "demi.crc32c"}) texts.erase(name);
  demi::checkpoint::save_safetensors(file_, tensors, texts);
  ask(inputs, numbered);
  const predict::Model model = predict::load_model(file_, {});
  EXPECT_TRUE(model.is_older);
  EXPECT_EQ(model.data->classes.size(), 10U);
  EXPECT_EQ(model.data->classes[9], "9");
  for (std::size_t i = 0; i < inputs.size(); ++i)
    EXPECT_EQ(numbered[i].likeliest[0].probability, named[i].likeliest[0].probability);
}

TEST_F(PredictRecipe, RowsAndAnOlderFileOfTextsAreRefused) {
  save(small_recipes::of("mlp", folder_));
  EXPECT_THROW(predict::load_model(file_, {}), demi::UsageError);
  save(small_recipes::of("imdb-lstm", folder_));
  EXPECT_THROW(predict::load_model(file_, {.top_k = 3}), demi::UsageError) << "of two classes";
  auto texts = demi::checkpoint::read_safetensors_header(file_).metadata;
  demi::checkpoint::NamedTensors tensors;
  for (const auto& [name, tensor] : demi::checkpoint::load(file_).model)
    tensors[name] = tensor.clone();
  for (const char* name : {"demi.file", "demi.model", "demi.vocabulary", "demi.crc32c"})
    texts.erase(name);
  demi::checkpoint::save_safetensors(file_, tensors, texts);
  EXPECT_THROW(predict::load_model(file_, {}), demi::DataError);
  EXPECT_TRUE(predict::lacks_words(demi::workload::read_model_texts(file_)));
}

}  // namespace
