// demi data check with data of the user's own, and what training says of the same.
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

TEST_F(CliData, OnePictureThatBatchNormCannotTrainOnIsSaidInWords) {
  const Outcome outcome = run({"profile", "synthetic-resnet50", "--batch-size", "1", "--image-size",
                               "32", "--model", "resnet50-imagenet"});
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("give a greater --batch-size or --image-size"));
}

}  // namespace
