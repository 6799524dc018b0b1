#include "lab/recipes/eval.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "demi/checkpoint/checkpoint.h"
#include "demi/core/error.h"
#include "lab/data/picture.h"
#include "lab/data/picture_testing.h"
#include "lab/files/folder_testing.h"
#include "lab/recipes/job.h"
#include "lab/recipes/run.h"
#include "lab/settings/recipe.h"
#include "lab/settings/resolved.h"
#include "lab/workload/model_data.h"
#include "lab/workload/model_file.h"
#include "lab/workload/saved_network.h"
#include "lab/workload/workload.h"

namespace demi::recipes {
namespace {

namespace fs = std::filesystem;
using files::complaint;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kRows =
    "label,text\npos,good and fine\nneg,bad and dull\npos,fine film\nneg,dull film\n";

class Eval : public ::testing::Test {
 protected:
  Eval() {
    folder_.write("train.csv", kRows);
    folder_.write("test.csv", "label,text\npos,good film\nneg,dull and bad\n");
  }

  static settings::Config small(const char* recipe) {
    settings::Config config = settings::find_recipe(recipe).config;
    for (const char* name : {"embedding", "hidden", "batch-size", "test-batch-size"})
      settings::set(config, name, "4", name);
    config.epochs = 1;
    return config;
  }
  settings::Config texts() const {
    settings::Config config = small("imdb-lstm");
    config.data = "csv";
    config.train_file = folder_ / "train.csv";
    config.test_file = folder_ / "test.csv";
    return config;
  }
  // Trains, and takes the weights file out of the run's folder.
  fs::path file_of(const settings::Config& config) {
    run(settings::resolve(config, settings::parse_run("fp32")),
        workload::load_workload(config, c10::kCPU),
        {.folder = folder_.path(), .checkpoints = folder_ / "checkpoints"});
    fs::create_directories(folder_ / "shipped");
    fs::rename(folder_ / "model.safetensors", folder_ / "shipped" / "model.safetensors");
    return folder_ / "shipped" / "model.safetensors";
  }
  // The same file with other entries; "": without that one. The checksum is that of the new ones.
  static void change(const fs::path& file, const checkpoint::Metadata& entries) {
    checkpoint::Metadata all = checkpoint::read_safetensors_header(file).metadata;
    checkpoint::NamedTensors tensors;
    for (const auto& [name, tensor] : checkpoint::load(file).model) tensors[name] = tensor.clone();
    for (const auto& [name, text] : entries) {
      all[name] = text;
      if (text.empty()) all.erase(name);
    }
    all["demi.crc32c"].clear();
    checkpoint::save_safetensors(file, tensors, all);
  }
  static void make_older(const fs::path& file) {
    change(file, {{"demi.file", ""}, {"demi.model", ""}, {"demi.vocabulary", ""}});
  }
  double loss(const fs::path& file, EvalOptions options = {}) const {
    if (options.data_dir.empty()) options.data_dir = folder_.path();
    return evaluate_saved(file, options).runs.at(0).evaluation.loss;
  }
  std::string refusal(const fs::path& file) const {
    return complaint([&] { loss(file); });
  }

  TestFolder folder_;
};

TEST_F(Eval, TextsAreNumberedByTheFilesWords) {
  const fs::path file = file_of(texts());
  const double expected = loss(file);
  folder_.write("train.csv", kRows + "pos,zebra zebra zebra zebra\n");  // the most frequent word
  EXPECT_EQ(loss(file), expected);
  EXPECT_EQ(loss(folder_ / "checkpoints"), expected);
  fs::remove(folder_ / "train.csv");
  EXPECT_EQ(loss(file), expected);
  fs::rename(folder_ / "test.csv", folder_ / "moved.csv");
  EXPECT_EQ(loss(file, {.test_file = folder_ / "moved.csv"}), expected);
  EXPECT_THAT(refusal(file), HasSubstr("--test-file names it"));
}

// Each setting is one that only a training reads, or one that decides what a saved model computes.
TEST(ForEvaluation, LeavesToTheTrainingWhatItAloneReads) {
  const std::set<std::string> read{"model",
                                   "model-output",
                                   "fuse",
                                   "channels-last",
                                   "data",
                                   "data-dir",
                                   "train-file",
                                   "test-file",
                                   "test-limit",
                                   "workers",
                                   "normalize",
                                   "in",
                                   "out",
                                   "depth",
                                   "batches",
                                   "input-scale",
                                   "image-size",
                                   "classes",
                                   "pool",
                                   "embedding",
                                   "hidden",
                                   "bidirectional",
                                   "vocabulary-size",
                                   "max-length",
                                   "tokenizer",
                                   "context",
                                   "heads",
                                   "key-heads",
                                   "feed-forward",
                                   "block",
                                   "bias",
                                   "dropout",
                                   "tied-head",
                                   "norm-eps",
                                   "rope-theta",
                                   "batch-size",
                                   "test-batch-size",
                                   "loss",
                                   "loss-weight",
                                   "label-smoothing",
                                   "top-k",
                                   "precision",
                                   "fp32-part",
                                   "op-policy",
                                   "flush-subnormals",
                                   "cuda-matmul-allow-tf32",
                                   "cudnn-allow-tf32",
                                   "allow-fp16-reduced-precision-reduction",
                                   "allow-bf16-reduced-precision-reduction",
                                   "cudnn-enabled",
                                   "cudnn-benchmark",
                                   "deterministic",
                                   "threads",
                                   "device",
                                   "seed"};
  const settings::Config unset;
  for (const settings::Setting& setting : settings::all_settings()) {
    settings::Config trained;
    // A word of its list, or a value of any other setting's kind; a refused one is passed over.
    std::vector<std::string> texts = setting.accepted;
    for (const char* text : {"7", "0.5", "true", "false", "resnet18", "lion", "fp16", "1epoch",
                             "0,1", "1-2", "FILE", "cuda", "64", "0.25", "1h30m", "cpu,cpu", "csv"})
      texts.emplace_back(text);
    for (const std::string& text : texts) try {
        setting.set(trained, text, setting.name);
        if (setting.get(trained) != setting.get(unset)) break;
      } catch (const UsageError&) {
      }
    ASSERT_NE(setting.get(trained), setting.get(unset)) << setting.name << ": add a value to try";
    EXPECT_EQ(setting.get(workload::for_evaluation(trained)),
              setting.get(read.contains(setting.name) ? trained : unset))
        << setting.name;
  }
}

// bf16 alone has weights that are kept so; their FP32 values are in the checkpoint.
TEST_F(Eval, ARunOfSplitWeightsIsTestedInFp32) {
  settings::Config config = texts();
  config.weight_mode = "split";
  config.precision = "bf16";
  run(settings::resolve(config, settings::parse_run("bf16")),
      workload::load_workload(config, c10::kCPU),
      {.folder = folder_.path(), .checkpoints = folder_ / "checkpoints"});
  for (const char* path : {"checkpoints", "model.safetensors"}) {
    const EvalResult result =
        evaluate_saved(folder_ / path, {.precisions = "fp32,bf16", .data_dir = folder_.path()});
    ASSERT_EQ(result.runs.size(), 2U);
    EXPECT_TRUE(std::isfinite(result.runs[0].evaluation.loss)) << path;
  }
}

// Three steps are trained. The recipe is over before the last, or else it is that of the test.
TEST_F(Eval, ARecipeThatTrainingHadLeftIsNotTested) {
  settings::Config config = texts();
  config.epochs = 3;
  folder_.write("policy.txt", "part * nvfp4 until 2\n");
  config.op_policy = folder_ / "policy.txt";
  const auto trained = run(settings::resolve(config, settings::parse_run("bf16")),
                           workload::load_workload(config, c10::kCPU), {.folder = folder_.path()});
  ASSERT_EQ(trained.history.steps.back().step, 3);
  const fs::path file = folder_ / "model.safetensors";
  const EvalOptions in_bf16{.precisions = "bf16"};
  EXPECT_EQ(loss(file, in_bf16), trained.test_loss);
  change(file, {{"demi.step", ""}});
  EXPECT_EQ(loss(file, in_bf16), trained.test_loss) << "an older file";
  change(file, {{"demi.step", "2"}});
  EXPECT_NE(loss(file, in_bf16), trained.test_loss) << "in the recipe";
}

TEST_F(Eval, NewWordsAreUnknownAndTheirShareIsSaid) {
  const fs::path file = file_of(texts());
  folder_.write("test.csv", "label,text\npos,good zebra\nneg,dull giraffe\n");
  const EvalResult result = evaluate_saved(file, {.data_dir = folder_.path()});
  EXPECT_EQ(result.unknown_words, 0.5);
  EXPECT_THAT(result.notes, Contains(AllOf(HasSubstr("50.00 %"), HasSubstr("<unk>"))));
  folder_.write("test.csv", "label,text\npos,good <unk>\nneg,dull <unk>\n");
  EXPECT_EQ(loss(file), result.runs[0].evaluation.loss);
}

// The training texts were changed, and lack a word of the test that the model knows.
TEST_F(Eval, ResumedTrainingTestsOnAllWordsOfTheModel) {
  const settings::Config config = texts();
  file_of(config);
  const auto model = workload::data_of_checkpoint(folder_ / "checkpoints");
  ASSERT_TRUE(model);
  folder_.write("train.csv", "label,text\npos,good and fine\nneg,bad and dull\npos,fine\n");
  const auto workload = workload::read_data(settings::resolve(config, c10::kCPU), {}, model)(4);
  EXPECT_EQ(workload.unknown_test, 0) << "film";
  EXPECT_EQ(workload.unknown_train, 0);
  const at::Tensor numbers = workload.test->batch(0, 0).input;
  EXPECT_EQ(numbers.eq(model->vocabulary->id("film")).sum().item<int64_t>(), 1);
}

// Every second row is "pos".
TEST_F(Eval, AClassThatALimitLeavesOutIsNamed) {
  const fs::path file = file_of(texts());
  std::string rows = "label,text\n";
  for (int i = 0; i < 10; ++i) rows += "pos,good film\nneg,dull and bad\n";
  folder_.write("test.csv", rows);
  const auto notes = [&](int64_t limit) {
    return evaluate_saved(file, {.data_dir = folder_.path(), .limit = limit}).notes;
  };
  EXPECT_THAT(notes(10), Contains(AllOf(HasSubstr("the 10 test examples"), HasSubstr("none of neg"),
                                        HasSubstr("shuffle"))));
  EXPECT_THAT(notes(7), Not(Contains(HasSubstr("none of"))));
  EXPECT_THAT(notes(0), Not(Contains(HasSubstr("none of"))));
}

TEST_F(Eval, OtherClassesAreRefusedWithBoth) {
  const fs::path file = file_of(texts());
  folder_.write("test.csv", "label,text\npos,good\nbad,dull\n");
  EXPECT_THAT(refusal(file), AllOf(HasSubstr("bad"), HasSubstr("neg, pos")));
}

TEST_F(Eval, AnOlderFileIsReadAsBeforeWithOneNote) {
  const fs::path file = file_of(texts());
  const double expected = loss(file);
  make_older(file);
  const EvalResult result = evaluate_saved(file, {.data_dir = folder_.path()});
  EXPECT_EQ(result.runs[0].evaluation.loss, expected);
  EXPECT_EQ(result.notes.size(), 1U);
  EXPECT_THAT(result.notes, Contains(HasSubstr("older demi")));
  EXPECT_FALSE(result.unknown_words);
  fs::remove(folder_ / "train.csv");
  EXPECT_THAT(refusal(file), AllOf(HasSubstr("training file"), HasSubstr("--data-dir names")));
}

TEST_F(Eval, ANewerFileAndAStaleChecksumAreRefused) {
  const fs::path file = file_of(texts());
  change(file, {{"demi.file", "2"}});
  EXPECT_THAT(refusal(file), AllOf(HasSubstr("version 2"), HasSubstr("at most 1")));
  change(file, {{"demi.file", "1"}});
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary)
      .seekp(-1, std::ios::end)
      .put('\x01');
  EXPECT_THAT(refusal(file), HasSubstr("demi inspect --verify"));
}

// Beside a file that was moved lies a folder of the name that its data had.
TEST_F(Eval, DataThatAreFoundByTheirNameAreNamed) {
  const fs::path file = file_of(texts());
  fs::copy_file(folder_ / "test.csv", folder_ / "shipped" / "test.csv");
  EXPECT_THAT(evaluate_saved(file, {}).notes,
              Contains(HasSubstr((folder_ / "shipped" / "test.csv").string() + " was taken")));
  EXPECT_THAT(evaluate_saved(file, {.data_dir = folder_.path()}).notes, ::testing::IsEmpty());
}

class EvalOfPictures : public Eval {
 protected:
  void SetUp() override {
    if (data::picture_formats().find("PNG") == std::string::npos) GTEST_SKIP() << "no libpng";
    for (const char* part : {"train", "val"}) {
      for (const char* name : {"cat", "dog"})
        fs::create_directories(folder_ / "pictures" / part / name);
      fs::copy_file(data::fixture_folder() / "middle_33x49.png",
                    folder_ / "pictures" / part / "cat/1.png");
      fs::copy_file(data::fixture_folder() / "middle_91x37.png",
                    folder_ / "pictures" / part / "dog/1.png");
    }
  }
  settings::Config pictures() const {
    settings::Config config = small("folder-resnet50");
    config.model = "simple-cnn";
    config.data_dir = folder_ / "pictures";
    config.image_size = 32;
    config.workers = 0;
    config.batch_size = 2;
    return config;
  }
  double loss_here(const fs::path& file) const {
    return loss(file, {.data_dir = folder_ / "pictures"});
  }
};

TEST_F(EvalOfPictures, TrainingPicturesAreNotNeededAndTheFilesRuleCounts) {
  const fs::path file = file_of(pictures());
  const double expected = loss_here(file);
  fs::remove_all(folder_ / "pictures" / "train");
  EXPECT_EQ(loss_here(file), expected);
  // What the file says counts, not the constants of the program.
  checkpoint::Metadata texts = checkpoint::read_safetensors_header(file).metadata;
  std::string& model = texts["demi.model"];
  const std::size_t at = model.find("\"mean\":[0.485");
  ASSERT_NE(at, std::string::npos);
  model.replace(at, 13, "\"mean\":[0.785");
  change(file, {{"demi.model", model}});
  EXPECT_NE(loss_here(file), expected);
}

TEST_F(EvalOfPictures, TestFilesThatAreNotReadAreCounted) {
  const fs::path file = file_of(pictures());
  folder_.write("pictures/val/cat/x.webp", "");
  const auto said = HasSubstr("1 files in " + (folder_ / "pictures/val").string());
  EXPECT_THAT(workload::load_workload(pictures(), c10::kCPU).note, said);
  EXPECT_THAT(evaluate_saved(file, {.data_dir = folder_ / "pictures"}).notes, Contains(said));
  folder_.write("pictures/train/cat/y.webp", "");
  EXPECT_THAT(workload::load_workload(pictures(), c10::kCPU).note,
              AllOf(HasSubstr("1 files in " + (folder_ / "pictures/train").string()), said));
}

TEST_F(EvalOfPictures, AFolderThatIsNotThereIsAskedFor) {
  const fs::path file = file_of(pictures());
  fs::remove_all(folder_ / "pictures" / "train");
  fs::rename(folder_ / "pictures", folder_ / "gone");
  EXPECT_THAT(complaint([&] { evaluate_saved(file, {}); }), HasSubstr("--data-dir names"));
}

TEST_F(EvalOfPictures, AClassThatTheModelDoesNotKnowIsRefused) {
  const fs::path file = file_of(pictures());
  fs::rename(folder_ / "pictures/val/cat", folder_ / "pictures/val/eel");
  EXPECT_THAT(complaint([&] { loss_here(file); }), AllOf(HasSubstr("eel"), HasSubstr("cat, dog")));
}

// What is trained on when a run resumes.
TEST_F(EvalOfPictures, ResumedTrainingNeedsTheClassesOfItsCheckpoint) {
  const settings::Config config = pictures();
  file_of(config);
  const auto model = workload::data_of_checkpoint(folder_ / "checkpoints");
  ASSERT_TRUE(model);
  const auto read = [&] {
    workload::read_data(settings::resolve(config, c10::kCPU), {}, model)(2);
  };
  EXPECT_NO_THROW(read());
  for (const char* part : {"train", "val"})
    fs::rename(folder_ / "pictures" / part / "cat", folder_ / "pictures" / part / "eel");
  EXPECT_THAT(complaint(read), AllOf(HasSubstr("number 0 is \"cat\""), HasSubstr("\"dog\"")));
}

TEST_F(Eval, ResumedTrainingNumbersTextsByItsCheckpoint) {
  const settings::Config config = texts();
  file_of(config);
  folder_.write("train.csv", kRows + "pos,zebra zebra zebra zebra\n");
  const auto model = workload::data_of_checkpoint(folder_ / "checkpoints");
  ASSERT_TRUE(model);
  const workload::Workload workload =
      workload::read_data(settings::resolve(config, c10::kCPU), {}, model)(1);
  EXPECT_EQ(workload.shape.vocabulary, model->shape.vocabulary);
  EXPECT_EQ(workload.vocabulary->id("zebra"), 0);
  EXPECT_NEAR(workload.unknown_train.value(), 4.0 / 14, 1e-15);
  folder_.write("train.csv", "label,text\npos,good\nneg,bad\nodd,dull\n");
  folder_.write("test.csv", "label,text\npos,good\n");
  EXPECT_THAT(
      complaint([&] { workload::read_data(settings::resolve(config, c10::kCPU), {}, model); }),
      AllOf(HasSubstr("3 classes"), HasSubstr("2 classes")));
}

// Another running text by the file's tokenizer: the training text need not be there.
TEST_F(Eval, ARunningTextByTheFileAlone) {
  const std::string text = "to be or not to be, that is the question\n";
  folder_.write("train.txt", text + text + text);
  folder_.write("other.txt", "to be that question\n");
  settings::Config config = small("gpt-shakespeare");
  for (const char* name : {"depth", "heads", "steps", "eval-every"})
    settings::set(config, name, "1", name);
  config.context = 8;
  config.data = "text";
  config.train_file = folder_ / "train.txt";
  const fs::path file = file_of(config);
  const EvalResult here = evaluate_saved(file, {.test_file = folder_ / "other.txt"});
  fs::remove(folder_ / "train.txt");
  const EvalResult alone = evaluate_saved(file, {.test_file = folder_ / "other.txt"});
  EXPECT_EQ(alone.runs.at(0).evaluation.loss, here.runs.at(0).evaluation.loss);
  EXPECT_NEAR(alone.runs.at(0).evaluation.loss, std::log(15), 0.1) << "of 15 characters, untrained";
  folder_.write("other.txt", "to be \u00fc");
  EXPECT_THAT(complaint([&] { evaluate_saved(file, {.test_file = folder_ / "other.txt"}); }),
              AllOf(HasSubstr("other.txt"), HasSubstr("U+00FC")));
}

}  // namespace
}  // namespace demi::recipes
