#include "lab/data/text_set.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>
#include <string>
#include <string_view>

#include "demi/core/error.h"
#include "lab/data/cifar_testing.h"
#include "lab/data/corpus_cache.h"
#include "lab/data/imdb.h"
#include "lab/data/registry.h"
#include "lab/files/folder_testing.h"

namespace demi::data {
namespace {

using files::complaint;
using files::contents;
using testing::ElementsAre;
using testing::HasSubstr;

TextSource source(std::string text, int64_t label = 0) {
  return {.read = [text] { return text; }, .label = label, .place = "memory"};
}

TextCorpus small() {
  return tokenize({source("b a b", 1), source(""), source("c b a!")}, {source("a zebra", 1)},
                  {"no", "yes"}, "small");
}

TEST(Vocabulary, GoesByFrequencyThenAlphabet) {
  const Vocabulary vocabulary(
      std::vector<WordCount>{{"z", 2}, {"b", 1}, {"a", 1}, {"y", 5}, {"A", 1}});
  EXPECT_THAT(vocabulary.words(), ElementsAre("<unk>", "y", "z", "A", "a", "b"));
  EXPECT_EQ(vocabulary.id("z"), 2);
  EXPECT_EQ(vocabulary.id("never seen"), 0);
  EXPECT_EQ(vocabulary.size(), 6);
  EXPECT_EQ(Vocabulary().size(), 1);
}

TEST(Vocabulary, RefusesWordsThatStandTwice) {
  EXPECT_THROW(Vocabulary(std::vector<std::string>{"<unk>", "a", "a"}), DataError);
  EXPECT_THROW(Vocabulary(std::vector<std::string>{"a"}), DataError);
}

TEST(Tokenize, NumbersWordsByTheTrainingSplit) {
  const TextCorpus corpus = small();
  EXPECT_THAT(corpus.vocabulary->words(), ElementsAre("<unk>", "b", "a", "!", "c"));
  EXPECT_TRUE(
      at::equal(corpus.train.tokens, at::tensor({1, 2, 1, /* empty: */ 0, 4, 1, 2, 3}, at::kInt)));
  EXPECT_TRUE(at::equal(corpus.train.offsets, at::tensor({0, 3, 4, 8}, at::kLong)));
  EXPECT_TRUE(at::equal(corpus.train.labels, at::tensor({1, 0, 0}, at::kLong)));
  EXPECT_TRUE(at::equal(corpus.test.tokens, at::tensor({2, 0}, at::kInt)));
}

TEST(Tokenize, GivesTheSameForAnyNumberOfThreads) {
  std::vector<TextSource> sources;
  for (int i = 0; i < 1700; ++i) sources.push_back(source(fmt::format("w{} v{}", i % 97, i)));
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const TextCorpus one = tokenize(sources, {}, {}, "x");
  at::set_num_threads(3);
  const TextCorpus three = tokenize(sources, {}, {}, "x");
  at::set_num_threads(before);
  EXPECT_TRUE(at::equal(one.train.tokens, three.train.tokens));
  EXPECT_EQ(one.vocabulary->size(), 1 + 97 + 1700);
  EXPECT_THAT(one.vocabulary->words()[1], "w0");  // 18 times, as w1 to w50 are
}

TEST(Tokenize, SaysWhichTextIsNotUtf8) {
  try {
    tokenize({source("fine"), source("na\xefve")}, {}, {}, "x");
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("memory, offset 2: the text is not UTF-8; seen: byte 0xef"));
  }
}

TEST(CorpusCache, GivesBackWhatWasWritten) {
  const TestFolder folder;
  const TextCorpus corpus = small();
  write_corpus(folder / "c", corpus, 42);
  const auto read = read_corpus(folder / "c", 42);
  ASSERT_TRUE(read);
  EXPECT_TRUE(at::equal(read->train.tokens, corpus.train.tokens));
  EXPECT_TRUE(at::equal(read->train.offsets, corpus.train.offsets));
  EXPECT_TRUE(at::equal(read->test.labels, corpus.test.labels));
  EXPECT_EQ(read->classes, corpus.classes);
  EXPECT_EQ(read->train.name, "small train");
  EXPECT_EQ(read->vocabulary->id("c"), corpus.vocabulary->id("c"));
}

TEST(CorpusCache, IsNotUsedWhenASingleBitIsWrong) {
  const TestFolder folder;
  write_corpus(folder / "c", small(), 42);
  const std::string whole = contents(folder / "c");
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << (at % 8)));
    folder.write("d", damaged);
    EXPECT_FALSE(read_corpus(folder / "d", 42)) << at;
  }
  for (const char* text : {"", "demitext", "something quite different that is long enough"}) {
    folder.write("d", text);
    EXPECT_FALSE(read_corpus(folder / "d", 42)) << text;
  }
  folder.write("d", whole + "x");
  EXPECT_FALSE(read_corpus(folder / "d", 42));
  EXPECT_FALSE(read_corpus(folder / "c", 43));
  EXPECT_FALSE(read_corpus(folder / "absent", 42));
}

/// The official layout with file names of the given form.
void write_imdb(const TestFolder& folder, const std::string& ending) {
  folder.write("aclImdb/train/pos/0" + ending, "Great!");
  folder.write("aclImdb/train/pos/10" + ending, "good good");
  folder.write("aclImdb/train/pos/9" + ending, "fine");
  folder.write("aclImdb/train/neg/0" + ending, "bad");
  folder.write("aclImdb/test/pos/0" + ending, "good");
  folder.write("aclImdb/test/neg/0" + ending, "awful, bad");
}

class Imdb : public testing::Test {
 protected:
  void SetUp() override { setenv("DEMI_CACHE", cache_.path().c_str(), 1); }
  void TearDown() override { unsetenv("DEMI_CACHE"); }
  std::string complaint() const {
    try {
      load_texts("imdb", folder_.path());
    } catch (const DataError& error) {
      return error.what();
    }
    return "no DataError";
  }

  TestFolder cache_, folder_;
};

TEST_F(Imdb, ReadsBothFormsOfFileNames) {
  for (const char* ending : {".txt", "_9.txt"}) {
    const TestFolder folder;
    write_imdb(folder, ending);
    const TextCorpus corpus = load_texts("imdb", folder.path());
    EXPECT_TRUE(at::equal(corpus.train.labels, at::tensor({0, 1, 1, 1}, at::kLong)));
    EXPECT_THAT(corpus.vocabulary->words(),
                ElementsAre("<unk>", "good", "!", "bad", "fine", "great"));
    EXPECT_TRUE(at::equal(corpus.train.tokens,
                          at::tensor({3, 5, 2, 4, 1, 1}, at::kInt)));  // 0, 9, 10 by number
    EXPECT_TRUE(at::equal(corpus.test.tokens, at::tensor({0, 0, 3, 1}, at::kInt)));
  }
}

TEST_F(Imdb, CachesUntilAFileChanges) {
  write_imdb(folder_, ".txt");
  const TextCorpus first = load_texts("imdb", folder_.path());
  EXPECT_EQ(first.note, "");
  ASSERT_TRUE(std::filesystem::exists(cache_ / "texts"));
  EXPECT_TRUE(at::equal(load_texts("imdb", folder_.path()).train.tokens, first.train.tokens));
  folder_.write("aclImdb/train/neg/0.txt", "bad bad bad");
  EXPECT_EQ(load_texts("imdb", folder_.path()).train.tokens.numel(),
            first.train.tokens.numel() + 2);
}

// `cp -p`, `rsync -t` and `tar -x` keep the time at which contents changed, and images may set it.
TEST_F(Imdb, NoticesAReplacedReviewOfTheSameSizeAndTime) {
  namespace fs = std::filesystem;
  write_imdb(folder_, ".txt");
  const auto word = [&] {
    return std::string(load_texts("imdb", folder_.path()).vocabulary->words()[3]);
  };
  EXPECT_EQ(word(), "bad");
  const fs::path review = folder_ / "aclImdb/train/neg/0.txt", other = folder_ / "other";
  const auto time = fs::last_write_time(review);
  folder_.write("other", "bat");
  fs::last_write_time(other, time);
  fs::rename(other, review);
  EXPECT_EQ(word(), "bat") << "another file";
  folder_.write("aclImdb/train/neg/0.txt", "bar");
  fs::last_write_time(review, time);
  EXPECT_EQ(word(), "bar") << "the same file, written";
}

TEST_F(Imdb, ReadsTheTestSetAloneWhereTheTrainingSetIsNot) {
  write_imdb(folder_, ".txt");
  const Vocabulary vocabulary({"<unk>", "bad", "good"});
  const Vocabulary more({"<unk>", "awful", "good"});  // a word that these training texts lack
  const at::Tensor expected = at::tensor({0, 0, 1, 2}, at::kInt);  // awful , bad; good
  const at::Tensor of_more = at::tensor({1, 0, 0, 2}, at::kInt);
  const auto read = [&](const Vocabulary& by) {
    return load_test_texts("imdb", folder_.path(), by).tokens;
  };
  EXPECT_TRUE(at::equal(read(vocabulary), expected));
  EXPECT_TRUE(at::equal(read(more), of_more));
  std::filesystem::remove_all(folder_ / "aclImdb/train");
  EXPECT_TRUE(at::equal(read(vocabulary), expected));
  EXPECT_TRUE(at::equal(read(more), of_more));
}

// As it lies: in the forms of its authors, and of those who pack the folder again.
TEST_F(Imdb, ReadsTheArchive) {
  write_imdb(folder_, "_9.txt");
  folder_.write("aclImdb/train/urls_pos.txt", "an address");
  folder_.write("aclImdb/train/unsup/0_0.txt", "without a label");
  const TextCorpus expected = load_texts("imdb", folder_.path());
  for (const char* name : {"aclImdb_v1.tar.gz", "imdb/aclImdb.tar.xz"}) {
    const TestFolder packed;
    packed.write(name, "");
    cifar_testing::pack(folder_ / "aclImdb", packed / name, "aclImdb/",
                        std::string_view(name).ends_with("xz"));
    for (int twice = 0; twice < 2; ++twice) {  // the second time from the cache
      const TextCorpus corpus = load_texts("imdb", packed.path());
      EXPECT_TRUE(at::equal(corpus.train.tokens, expected.train.tokens)) << name;
      EXPECT_TRUE(at::equal(corpus.train.labels, expected.train.labels)) << name;
      EXPECT_TRUE(at::equal(corpus.test.tokens, expected.test.tokens)) << name;
    }
    std::string bytes = contents(packed / name);
    bytes[bytes.size() / 2] ^= 1;
    packed.write(name, bytes);
    EXPECT_THROW(load_texts("imdb", packed.path()), DataError) << "not from the cache";
  }
  std::filesystem::remove_all(folder_ / "aclImdb/test/neg");
  const TestFolder packed;
  cifar_testing::pack(folder_ / "aclImdb", packed / "aclImdb.tar.gz", "aclImdb/");
  try {
    load_texts("imdb", packed.path());
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("aclImdb.tar.gz/test/neg: there are no reviews"));
  }
}

// 56 MB each for the published set.
TEST_F(Imdb, KeepsOneCacheAFolder) {
  const auto caches = [&] {
    using Files = std::filesystem::directory_iterator;
    return std::distance(Files(cache_ / "texts"), Files());
  };
  write_imdb(folder_, ".txt");
  for (const char* text : {"bad", "worse", "worst"}) {
    folder_.write("aclImdb/train/neg/0.txt", text);
    load_texts("imdb", folder_.path());
    EXPECT_EQ(caches(), 1) << text;
  }
  const TestFolder other;
  write_imdb(other, ".txt");
  load_texts("imdb", other.path());
  EXPECT_EQ(caches(), 2);
}

TEST_F(Imdb, ADanglingLinkIsDamagedData) {
  write_imdb(folder_, ".txt");
  std::filesystem::create_symlink("nowhere", folder_ / "aclImdb/test/pos/7.txt");
  EXPECT_THAT(complaint(), testing::AllOf(HasSubstr("7.txt: cannot be read"),
                                          HasSubstr("No such file"), HasSubstr("mend the link")));
}

TEST_F(Imdb, GoesOnWithoutACacheAndSaysSo) {
  write_imdb(folder_, ".txt");
  cache_.write("texts", "a file where the folder should be");
  EXPECT_THAT(load_texts("imdb", folder_.path()).note, HasSubstr("could not be kept"));
}

TEST_F(Imdb, SaysWhatIsWrong) {
  EXPECT_THAT(complaint(), HasSubstr("demi data get imdb"));
  write_imdb(folder_, ".txt");
  folder_.write("aclImdb/train/pos/3.txt", "caf\xe9");
  EXPECT_THAT(complaint(), testing::AllOf(HasSubstr("3.txt, offset 3"), HasSubstr("not UTF-8")));
  EXPECT_FALSE(std::filesystem::exists(cache_ / "texts"));  // nothing half-cached
  folder_.write("aclImdb/train/pos/3.txt", "");
  EXPECT_EQ(complaint(), "no DataError");
  folder_.write("aclImdb/train/pos/readme.txt", "");
  EXPECT_THAT(complaint(), HasSubstr("not the name of a review"));
  std::filesystem::remove(folder_ / "aclImdb/train/pos/readme.txt");
  std::filesystem::remove_all(folder_ / "aclImdb/test/neg");
  EXPECT_THAT(complaint(), HasSubstr("there are no reviews"));
}

}  // namespace
}  // namespace demi::data
