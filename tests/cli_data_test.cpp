// demi data check with data of the user's own, and what training says of the same.
#include <cmath>

#include "demi/core/source_dir_testing.h"
#include "tests/cli_testing.h"

namespace {

using namespace cli_testing;

class CliData : public Cli {
 protected:
  void write(const std::string& name, const std::string& content) {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << content;
  }
  // Sound pictures, all of other bytes.
  void write_pictures() {
    const fs::path fixtures = demi::source_dir() / "tests/fixtures/pictures";
    write("pics/train/cat/1.png", slurp(fixtures / "rgb8_gamma1.png"));
    write("pics/train/cat/2.png", slurp(fixtures / "rgb16.png"));
    write("pics/train/dog/3.png", slurp(fixtures / "grey16.png"));
    write("pics/val/cat/4.png", slurp(fixtures / "grey2.png"));
    write("pics/val/dog/5.png", slurp(fixtures / "palette4_gamma.png"));
  }
  std::string at(const std::string& name) const { return (folder_ / name).string(); }
};

TEST_F(CliData, CheckOfASoundFolderCountsAndExitsWith0) {
  write_pictures();
  const Outcome text = run({"data", "check", at("pics")});
  if (text.code == 2 && text.err.find("cannot decode") != std::string::npos)
    GTEST_SKIP() << "built without libpng";
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_EQ(text.err, "");
  EXPECT_THAT(text.out, HasSubstr("3 pictures: cat 2, dog 1"));
  EXPECT_THAT(text.out, Not(HasSubstr("damaged")));
  const nlohmann::json json = json_of({"data", "check", at("pics")});
  EXPECT_EQ(json["train_examples"], 3);
  EXPECT_EQ(json["test_examples"], 2);
  EXPECT_EQ(json["classes"][1]["name"], "dog");
  EXPECT_EQ(json["classes"][1]["train_examples"], 1);
  EXPECT_TRUE(json["damaged"].empty() && json["repeated"].empty());
}

TEST_F(CliData, CheckListsAllDamageInOnePassAndExitsWith3) {
  write_pictures();
  write("pics/train/dog/6.png", "no picture");
  write("pics/train/cat/7.jpg", "");
  write("pics/val/dog/8.png", slurp(folder_ / "pics/train/cat/1.png"));
  const Outcome text = run({"data", "check", at("pics")});
  EXPECT_EQ(text.code, 3);
  for (const char* words : {"6.png: not a picture", "7.jpg: not a picture",
                            "8.png: trained on and tested on: under different classes"})
    EXPECT_THAT(text.out, HasSubstr(words));
  EXPECT_THAT(text.err, HasSubstr("damaged: 2 places in 8 pictures"));
  const Outcome json = run({"data", "check", at("pics"), "--json"});
  EXPECT_EQ(json.code, 3);
  const auto found = nlohmann::json::parse(json.out);
  EXPECT_EQ(found["damaged"].size(), 2U);
  EXPECT_EQ(found["repeated"][0]["in_both_parts"], true);
}

TEST_F(CliData, ChecksTexts) {
  write("train.csv", "label,text\npos,good\nneg,bad,worse\nneg,bad\npos,caf\xe9\n");
  write("test.csv", "label,text\npos,good\nnone,so so\n");
  const Outcome outcome = run({"data", "check", at("train.csv"), "--test-file", at("test.csv")});
  EXPECT_EQ(outcome.code, 3);
  for (const char* words : {"train.csv, line 3: another number of fields", "not UTF-8",
                            "test.csv, line 3: a label is unknown", "trained on and tested on"})
    EXPECT_THAT(outcome.out, HasSubstr(words));
  write("semicolons.csv", "label;text\npos;good\nneg;bad\n");
  EXPECT_THAT(run({"data", "check", at("semicolons.csv")}).out, HasSubstr("with semicolons in it"));
  EXPECT_EQ(run({"data", "check", at("absent.csv")}).code, 3);
  EXPECT_THAT(run({"data", "check", "imbd"}).err, HasSubstr("did you mean imdb?"));
  write_pictures();
  EXPECT_EQ(run({"data", "check", at("pics"), "--test-file", at("test.csv")}).code, 2);
  EXPECT_EQ(run({"data", "check", "imdb", "--test-file", at("test.csv")}).code, 2);
  EXPECT_EQ(run({"data", "check", at("pics"), "--data-dir", at("")}).code, 2);
}

TEST_F(CliData, TrainingRefusesOneClassAndAForeignSeparator) {
  write_pictures();
  fs::remove_all(folder_ / "pics/train/dog");
  const Outcome pictures = run({"train", "folder-resnet50", "--data-dir", at("pics")});
  EXPECT_EQ(pictures.code, 3) << pictures.err;
  EXPECT_THAT(pictures.err, HasSubstr(at("pics/train") + ": all pictures have one class"));
  write("semicolons.csv", "label;text\npos;good\nneg;bad\n");
  const Outcome texts = run({"train", "imdb-lstm", "--data", "csv", "--train-file",
                             at("semicolons.csv"), "--test-file", at("semicolons.csv")});
  EXPECT_EQ(texts.code, 3) << texts.err;
  EXPECT_THAT(texts.err, HasSubstr("with semicolons in it"));
}

// examples/csv_rows, which pages name for the numbers of a CSV file.
TEST_F(CliData, TheExampleOfRowsReadsNoFieldInPart) {
  const char* programs = std::getenv("DEMI_EXAMPLE_PROGRAMS");
  const fs::path program = fs::path(programs ? programs : "") / "csv_rows";
  if (!fs::exists(program)) GTEST_SKIP() << "no examples are built";
  const auto with = [&](const std::string& field, const std::string& of_class) {
    std::string rows = "x,y,class\n";
    for (int i = 0; i < 8; ++i) rows += "1.5, -2e-1 ,0\n0.25,3,1\n";
    write("rows.csv", rows + "2,\"" + field + "\"," + of_class + "\n");
    return run({"cpu", "bf16", at("rows.csv")}, {}, program.string());
  };
  EXPECT_EQ(with("1234.56", "1").code, 0);
  for (const char* field : {"1,234.56", "", "2x", "nan", "inf"}) {
    const Outcome outcome = with(field, "1");
    EXPECT_EQ(outcome.code, 1) << field;
    EXPECT_THAT(outcome.err, HasSubstr("rows.csv, line 18, column y")) << field;
  }
  for (const char* of_class : {"0.9", "2", "-1"})
    EXPECT_THAT(with("1", of_class).err, HasSubstr("line 18, column class")) << of_class;
}

// The advice to resume alone would end at the same picture each time.
TEST_F(CliData, ADamagedPictureEndsWithWhatToDo) {
  write_pictures();
  for (int i = 0; i < 4; ++i)
    write("pics/train/dog/more" + std::to_string(i) + ".png",
          slurp(folder_ / "pics/train/dog/3.png"));
  write("pics/train/dog/zz.png", slurp(folder_ / "pics/train/dog/3.png").substr(0, 60));
  const Outcome outcome = run({"train", "folder-resnet50", "--model", "resnet18", "--image-size",
                               "32", "--data-dir", at("pics"), "--batch-size", "2", "--workers",
                               "1", "--epochs", "2", "--checkpoint-every", "1"});
  if (outcome.code == 2 && outcome.err.find("cannot decode") != std::string::npos)
    GTEST_SKIP() << "built without libpng";
  EXPECT_EQ(outcome.code, 3) << outcome.err;
  for (const std::string& words :
       {at("pics/train/dog/zz.png"), std::string("demi data check FOLDER"),
        std::string("go on once what is damaged is mended: demi train --resume")})
    EXPECT_THAT(outcome.err, HasSubstr(words));
}

// A network of texts with two classes has one output: it is class 0 that is the likeliest always.
TEST_F(CliData, ASavedModelIsTestedOnItsTestSetInAPrecision) {
  std::string rows = "label,text\n";
  for (int i = 0; i < 24; ++i) rows += i % 2 ? "1,good film\n" : "0,bad film\n";
  write("texts.csv", rows);
  const Words texts{"train",        "imdb-lstm",
                    "--data",       "csv",
                    "--train-file", at("texts.csv"),
                    "--test-file",  at("texts.csv"),
                    "--hidden",     "4",
                    "--embedding",  "4",
                    "--epochs",     "1",
                    "--batch-size", "4",
                    "--device",     "cpu"};
  const auto with = [](Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const Outcome top = run(with(texts, {"--top-k", "1"}));
  EXPECT_EQ(top.code, 2) << top.err;
  EXPECT_THAT(top.err, HasSubstr("top-k"));
  EXPECT_FALSE(fs::exists(folder_ / "runs"));
  ASSERT_EQ(run(with(texts, {"--overfit-batches", "2"})).code, 0);
  const std::string folder = at("runs/train-imdb-lstm-001");

  const auto eval = json_of({"eval", folder, "--limit", "3"});
  const double correct = 3 * eval["runs"][0]["test_accuracy"].get<double>();
  EXPECT_NEAR(correct, std::round(correct), 1e-6) << "of three examples";
  EXPECT_THAT(eval.dump(), HasSubstr("--overfit-batches"));
  const Outcome eval_top = run({"eval", folder, "--top-k", "1"});
  EXPECT_EQ(eval_top.code, 2) << eval_top.err;
  EXPECT_THAT(eval_top.err, HasSubstr("one output"));
  for (const char* variant : {"bf16:no-autocast", "bf16:scale=128", "fp16:no-skip"}) {
    const Outcome outcome = run({"eval", folder, "--precision", variant});
    EXPECT_EQ(outcome.code, 2) << variant;
    EXPECT_THAT(outcome.err, HasSubstr("a test has no gradients")) << variant;
  }
}

TEST_F(CliData, ALossThatDoesNotFitThePicturesIsRefused) {
  write_pictures();
  for (const char* loss : {"mse", "bce"}) {
    const Outcome outcome = run({"train", "folder-resnet50", "--model", "resnet18", "--image-size",
                                 "32", "--data-dir", at("pics"), "--loss", loss});
    if (outcome.err.find("cannot decode") != std::string::npos)
      GTEST_SKIP() << "built without libpng";
    EXPECT_EQ(outcome.code, 2) << loss << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("the loss does not fit the data folder"));
    EXPECT_THAT(outcome.err, HasSubstr("cross-entropy"));
  }
}

TEST_F(CliData, OnePictureThatBatchNormCannotTrainOnIsSaidInWords) {
  const Outcome outcome = run({"profile", "synthetic-resnet50", "--batch-size", "1", "--image-size",
                               "32", "--model", "resnet50-imagenet"});
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("give a greater --batch-size or --image-size"));
}

}  // namespace
