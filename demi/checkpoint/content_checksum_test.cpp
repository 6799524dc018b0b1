#include "demi/checkpoint/content_checksum.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <string>

#include "demi/checkpoint/checkpoint.h"
#include "demi/checkpoint/checkpoint_testing.h"
#include "demi/checkpoint/contents.h"
#include "demi/checkpoint/manifest.h"
#include "demi/core/crc32c.h"
#include "demi/core/error.h"

namespace demi::checkpoint {
namespace {

using testing::HasSubstr;

class ContentChecksum : public CheckpointFolder {
 protected:
  void SetUp() override {
    CheckpointFolder::SetUp();
    file_ = folder_ / "m.safetensors";
    save_safetensors(
        file_,
        {{"u", at::tensor({1, -2, 3}, at::kShort).view({1, 3})}, {"t", at::tensor({1.F, 2.F})}},
        {{"demi.a", "x y"}, {"demi.bé", ""}, {"format", "pt"}, {"demi.crc32c", "of no meaning"}});
  }
  std::string complaint() const {
    try {
      load(file_);
    } catch (const DataError& error) {
      return error.what();
    }
    return "no DataError";
  }
  void replace(const std::string& old, const std::string& text) const {
    std::string content = bytes_of(file_);
    ASSERT_NE(content.find(old), std::string::npos);
    write_bytes(file_, content.replace(content.find(old), old.size(), text));
  }

  std::filesystem::path file_;
};

// The text of the header's comment, and its CRC-32C by a table in Python.
TEST_F(ContentChecksum, IsThatOfTextsAndValuesByName) {
  EXPECT_EQ(load_safetensors(file_).metadata.at("demi.crc32c"), "4e748bad");
  EXPECT_NO_THROW(verify(contents(file_)));
  EXPECT_EQ(map(file_).model.size(), 2U);
}

TEST_F(ContentChecksum, IsThatOfTensorsInAnyOrder) {
  const TensorSum t{.name = "t", .dtype = "F32", .shape = {2}, .sum = 1},
      u{.name = "u", .dtype = "I16", .shape = {1, 3}, .sum = 2};
  EXPECT_EQ(content_checksum({}, {u, t}), content_checksum({}, {t, u}));
}

TEST_F(ContentChecksum, ChangedValuesAndTextsAreRefused) {
  const std::string whole = bytes_of(file_);
  std::string other = whole;
  other.back() = '\x01';  // of the last value
  write_bytes(file_, other);
  EXPECT_THAT(complaint(), testing::AllOf(HasSubstr("4e748bad"), HasSubstr(file_.string()),
                                          HasSubstr("demi inspect --verify")));
  EXPECT_THROW(map(file_), DataError);
  EXPECT_THROW(load_safetensors(file_), DataError);
  EXPECT_THROW(verify(contents(file_)), DataError);
  write_bytes(file_, whole);
  replace("x y", "x z");
  EXPECT_THAT(complaint(), HasSubstr("demi inspect --verify"));
  write_bytes(file_, whole);
  replace("4e748bad", "4E748BAD");
  EXPECT_THAT(complaint(), HasSubstr("4E748BAD"));
}

// Another program writes the same content in another order, with texts of its own.
TEST_F(ContentChecksum, AnotherOrderAndForeignTextsAreTheSameContent) {
  replace(R"("format":"pt")", R"("format":"np")");
  EXPECT_EQ(load(file_).model.size(), 2U);
}

TEST_F(ContentChecksum, OfACheckpointIsInItsModelFile) {
  Checkpoint checkpoint = ten_tensors(1);
  checkpoint.model_text = {{"demi.words", std::string(200'000, 'w')}};
  const std::filesystem::path saved = save(folder_, 1, checkpoint);
  EXPECT_EQ(load(saved).model_text, checkpoint.model_text);
  EXPECT_EQ(load(saved).text, checkpoint.text);
  const std::string manifest = bytes_of(saved / "manifest.json");
  EXPECT_LT(manifest.size(), 10'000U) << "it has no copy";
  EXPECT_EQ(read_manifest(saved).files.at("model.safetensors").texts.at("demi.words"),
            crc32c(checkpoint.model_text.at("demi.words")));
  EXPECT_EQ(contents(saved).metadata.at("demi.words").size(), 200'000U);
  // The file by itself, as one that was copied out of the folder.
  std::filesystem::copy_file(saved / "model.safetensors", folder_ / "alone.safetensors");
  const Checkpoint alone = load(folder_ / "alone.safetensors");
  EXPECT_EQ(alone.text.at("demi.words").size(), 200'000U);
  EXPECT_EQ(alone.text.at("demi.crc32c").size(), 8U);
}

TEST_F(ContentChecksum, OfFilesWithoutSuchTextsIsNotThere) {
  save_safetensors(file_, {{"t", at::ones({2})}}, {{"demi.a", "x"}});
  EXPECT_FALSE(load_safetensors(file_).metadata.contains("demi.crc32c"));
  Checkpoint plain = ten_tensors(1);
  plain.model_text.clear();
  EXPECT_FALSE(load(save(folder_, 1, plain) / "model.safetensors").text.contains("demi.crc32c"));
}

}  // namespace
}  // namespace demi::checkpoint
