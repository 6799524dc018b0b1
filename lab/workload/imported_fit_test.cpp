#include "lab/workload/imported_fit.h"

#include <gmock/gmock.h>

#include <set>
#include <string>

#include "demi/core/error.h"
#include "demi/core/source_dir_testing.h"
#include "lab/files/folder_testing.h"
#include "lab/settings/recipe.h"

namespace demi::workload {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::string network_fixture(const std::string& name) {
  return (source_dir() / "tests/fixtures/imported" / name).string();
}

/// A file's recipe with these settings: name, value, name, value.
Workload network_workload(const std::string& file, std::vector<std::string> words) {
  settings::Config config = settings::find_recipe(network_fixture(file)).config;
  for (std::size_t i = 0; i + 1 < words.size(); i += 2)
    settings::set(config, words[i], words[i + 1], "--" + words[i]);
  return load_workload(config, c10::kCPU);
}

Workload row_network(std::vector<std::string> words = {}) {
  words.insert(words.begin(), {"data", "synthetic-rows", "out", "2", "loss", "mse"});
  return network_workload("rows.pt2", words);
}

Workload picture_network(const std::string& file, std::vector<std::string> words) {
  words.insert(words.begin(), {"data", "synthetic-images", "image-size", "32", "classes", "10",
                               "batch-size", "4", "batches", "2"});
  return network_workload(file, words);
}

template <class Call, class... Words>
void expect_misfit(const Call& call, const Words&... words) {
  EXPECT_THAT(call, ThrowsMessage<UsageError>(AllOf(HasSubstr(words)...)));
}

TEST(NetworkFile, TakesItsSizesFromTheFile) {
  EXPECT_EQ(settings::find_recipe(network_fixture("rows.pt2")).config.in, 8);
  EXPECT_EQ(settings::find_recipe(network_fixture("pictures.pt2")).config.image_size, 32);
  EXPECT_EQ(settings::folder_name(network_fixture("rows.pt2")), "rows");
  EXPECT_EQ(settings::folder_name("a b/c.d.pt2"), "c_d");
  EXPECT_EQ(settings::folder_name("mlp"), "mlp");
}

TEST(NetworkFile, RunsInChannelsLastIfAsked) {
  for (const bool asked : {true, false}) {
    const Workload workload = picture_network(
        "pictures.pt2", {"model-output", "logits", "channels-last", asked ? "true" : "false"});
    const auto network = workload.make_network(0);
    const at::Tensor weight = network.module->named_parameters()["conv.weight"];
    EXPECT_EQ(weight.is_contiguous(at::MemoryFormat::ChannelsLast), asked);
    network.module->to(at::kBFloat16);
    EXPECT_EQ(weight.is_contiguous(at::MemoryFormat::ChannelsLast), asked) << "as it is shipped";
  }
}

TEST(NetworkFile, HasItsWeightsForEachSeed) {
  const Workload workload = row_network();
  const auto first = workload.make_network(1), second = workload.make_network(2);
  const auto weights = first.module->named_parameters(), others = second.module->named_parameters();
  EXPECT_EQ(weights.size(), 4U);
  for (const auto& item : weights) {
    EXPECT_TRUE(item.value().equal(others[item.key()])) << item.key();
    EXPECT_FALSE(item.value().is_same(others[item.key()])) << item.key();
  }
}

TEST(NetworkFile, KeepsTheStridesOfTheFile) {
  const Workload workload = picture_network("pictures.pt2", {"model-output", "logits"});
  EXPECT_TRUE(workload.make_network(0).module->named_parameters()["conv.weight"].is_contiguous());
}

TEST(NetworkFile, IsComparedWithTheDataBeforeTraining) {
  expect_misfit([] { row_network({"in", "9"}); }, "another shape", "(batch, 9)", ", 8)");
  expect_misfit([] { row_network({"out", "3"}); }, "does not fit the loss mse", "(2, 2)", "(2, 3)");
  expect_misfit([] { picture_network("rows.pt2", {}); }, "reads rows");
  expect_misfit([] { picture_network("pictures.pt2", {}); }, "several tensors", "logits, features",
                "--model-output");
  expect_misfit(
      [] {
        picture_network("pictures.pt2", {"model-output", "logit"});
      },
      "no such output", "logits");
  expect_misfit(
      [] {
        picture_network("pictures.pt2", {"model-output", "features"});
      },
      "does not fit the loss cross-entropy", "(2, 4)", "(2, 10)");
  expect_misfit(
      [] {
        picture_network("pictures.pt2", {"model-output", "logits", "classes", "7"});
      },
      "(2, 10)", "7 classes");
  expect_misfit(
      [] {
        picture_network("pictures.pt2", {"model-output", "logits", "image-size", "33"});
      },
      "another shape", "(batch, 3, 33, 33)", "3, 32, 32)");
  expect_misfit(
      [] {
        picture_network("pictures.pt2", {"model-output", "loss"});
      },
      "does not compute a loss", "1 inputs, 2 outputs");
}

TEST(NetworkFile, OfAFixedBatchTakesNoOther) {
  expect_misfit(
      [] {
        picture_network("pictures_of_two.pt2", {"model-output", "logits"});
      },
      "takes no batch of this size", "seen: 4, of 8 examples in batches of 4", "accepted: 2;",
      "--batch-size 2");
  EXPECT_NO_THROW(
      picture_network("pictures_of_two.pt2", {"model-output", "logits", "batch-size", "2"}));
  // Of 7 examples the last batch has one.
  expect_misfit(
      [] {
        picture_network("pictures_of_two.pt2",
                        {"model-output", "logits", "batch-size", "2", "limit", "3"});
      },
      "seen: 1, of 3 examples in batches of 2");
}

/// As --batch-size auto does: the settings have none yet.
TEST(NetworkFile, TakesTheBatchSizeOfItsWorkload) {
  settings::Config config = settings::find_recipe(network_fixture("rows.pt2")).config;
  for (const auto& [name, value] : {std::pair("data", "synthetic-rows"), std::pair("out", "2"),
                                    std::pair("loss", "mse"), std::pair("batch-size", "auto")})
    settings::set(config, name, value, name);
  EXPECT_EQ(read_data(settings::resolve(config, c10::kCPU))(4).train->batch(0, 0).input.size(0), 4);
}

TEST(NetworkFile, IsShownBeforeTraining) {
  const Workload workload =
      picture_network("pictures_of_two.pt2", {"model-output", "logits", "batch-size", "2"});
  ASSERT_EQ(workload.about.size(), 2U);
  EXPECT_THAT(workload.note, HasSubstr("exported in eval mode"));
  EXPECT_EQ(workload.about[0].notes.front(), workload.note);
  const auto& rows_of = workload.about[1].rows;
  const auto row = [&](const std::string& op) {
    for (const auto& one : rows_of)
      if (one.front() == op) return one;
    return std::vector<std::string>();
  };
  EXPECT_EQ(row("aten::conv2d"),
            (std::vector<std::string>{"aten::conv2d", "1", "16 bits", "conv"}));
  EXPECT_EQ(row("aten::relu").at(2), "that of its input");
  EXPECT_EQ(row("aten::linear").at(3), "head");
}

TEST(NetworkFile, SaysWhichParametersGetNoGradient) {
  const Workload workload =
      picture_network("pictures.pt2", {"model-output", "features", "classes", "4"});
  EXPECT_THAT(workload.note, HasSubstr("no gradient reaches head.weight, head.bias"));
}

/// It returns (batch, 4, 5).
TEST(NetworkFile, OfTokensHasOneNumberForEach) {
  const TestFolder folder;
  const auto text_of = [&](const std::string& name, std::string_view characters) {
    std::string text;
    for (std::size_t i = 0; i < 400; ++i) text += characters[i * i % characters.size()];
    folder.write(name, text);
    return network_workload("tokens.pt2",
                            {"data", "text", "train-file", (folder.path() / name).string()});
  };
  const Workload workload = text_of("five", "abcde");
  const data::Batch batch = workload.train->batch(0, 0);
  EXPECT_EQ(batch.input.size(1), 4) << "the length is the file's";
  const at::Tensor output = workload.make_network(0).forward(batch);
  EXPECT_EQ(output.sizes(), (std::vector<int64_t>{batch.input.size(0), 5, 4}));
  expect_misfit([&] { text_of("six", "abcdefghijk"); }, "aten::embedding", "index out of range");
}

/// Rows whose output the file fixes, and whose targets are real numbers.
TEST(NetworkFile, ComputesALossOfRows) {
  const Workload workload =
      network_workload("rows_loss.pt2", {"data", "synthetic-rows", "model-output", "loss"});
  const data::Batch batch = workload.train->batch(0, 0);
  EXPECT_EQ(workload.make_network(0).forward(batch).dim(), 0);
  EXPECT_EQ(settings::find_recipe(network_fixture("rows.pt2")).config.out, 2);
  EXPECT_NO_THROW(network_workload("rows.pt2", {"data", "synthetic-rows", "loss", "mse"}));
}

Workload text_network(const std::string& file, const TestFolder& folder,
                      std::vector<std::string> words) {
  folder.write("texts.csv",
               "label,text\nneg,bad\npos,good good film\npos,good\nneg,bad bad\n"
               "neg,a bad film that never ends at all\n");
  const std::string path = (folder.path() / "texts.csv").string();
  words.insert(words.begin(),
               {"data", "csv", "train-file", path, "test-file", path, "batch-size", "2"});
  return network_workload(file, words);
}

/// texts_of_five.pt2 takes (N, 5): shorter batches are padded, longer texts cut.
TEST(NetworkFile, OfTextsOfOneLengthHasThemPadded) {
  const TestFolder folder;
  EXPECT_EQ(settings::find_recipe(network_fixture("texts_of_five.pt2")).config.max_length, 5);
  const Workload workload = text_network("texts_of_five.pt2", folder, {"loss", "bce"});
  const auto network = workload.make_network(0);
  std::set<int64_t> lengths;
  for (int64_t i = 0; i < workload.train->batches(); ++i) {
    const data::Batch batch = workload.train->batch(0, i);
    lengths.insert(batch.input.size(1));
    EXPECT_EQ(network.forward(batch).sizes(), (std::vector<int64_t>{batch.input.size(0), 1}));
  }
  EXPECT_LT(*lengths.begin(), 5) << "nothing was padded";
  EXPECT_NO_THROW(text_network("texts_of_five.pt2", folder, {"loss", "bce", "max-length", "3"}));
  for (const char* length : {"0", "6"})
    expect_misfit(
        [&] {
          text_network("texts_of_five.pt2", folder, {"loss", "bce", "max-length", length});
        },
        "longer than", "at most 5 words", "--max-length 5");
}

TEST(NetworkFile, ComputesALossOfTwoClassesOfTexts) {
  const TestFolder folder;
  const Workload workload = text_network("texts_loss.pt2", folder, {"model-output", "loss"});
  EXPECT_EQ(workload.make_network(0).forward(workload.train->batch(0, 0)).dim(), 0);
}

/// modes.pt2 has a batch norm that reads one value a channel of each row.
TEST(NetworkFile, WithBatchNormIsNotTrainedOnABatchOfOneRow) {
  const auto rows = [](const std::string& size) {
    return network_workload("modes.pt2", {"data", "synthetic-rows", "out", "3", "loss", "mse",
                                          "model-output", "0", "batch-size", size});
  };
  EXPECT_NO_THROW(rows("2"));
  expect_misfit([&] { rows("1"); }, "aten::batch_norm in bn", "batches of two rows or more");
}

TEST(NetworkFile, ComputesItsLossAndHasNoClassesThen) {
  const Workload workload = picture_network("pictures_loss.pt2", {"model-output", "loss"});
  EXPECT_TRUE(workload.classes.empty());
  const auto network = workload.make_network(0);
  EXPECT_EQ(network.forward(workload.train->batch(0, 0)).dim(), 0);
}

}  // namespace
}  // namespace demi::workload
