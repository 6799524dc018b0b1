#include "demi/imported/zip_archive.h"

#include <gmock/gmock.h>

#include "demi/core/error.h"
#include "demi/core/memory_file_testing.h"
#include "demi/imported/zip_testing.h"

namespace demi::imported {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Key;
using testing::ThrowsMessage;

std::string text_of(const std::string& bytes, std::string_view name) {
  const MemoryFile file(bytes);
  const ZipArchive archive(file.path(), "test");
  return archive.text(archive.records().at(std::string(name)));
}

TEST(ZipArchive, ReadsStoredRecords) {
  const std::string bytes = zip_of({{"a", "first"}, {"b/c", ""}});
  EXPECT_EQ(text_of(bytes, "a"), "first");
  EXPECT_EQ(text_of(bytes, "b/c"), "");
}

TEST(ZipArchive, LeavesTheFolderOutThatHoldsAll) {
  const MemoryFile file(zip_of({{"net/a", "1"}, {"net/b/c", "2"}}));
  EXPECT_THAT(ZipArchive(file.path(), "test").records(), ElementsAre(Key("a"), Key("b/c")));
  const MemoryFile two(zip_of({{"net/a", "1"}, {"other/b", "2"}}));
  EXPECT_THAT(ZipArchive(two.path(), "test").records(), ElementsAre(Key("net/a"), Key("other/b")));
}

TEST(ZipArchive, RefusesAChangedByteOfARecord) {
  std::string bytes = zip_of({{"a", "first"}});
  bytes[bytes.find("first") + 2] ^= 1;
  EXPECT_THAT([&] { text_of(bytes, "a"); },
              ThrowsMessage<DataError>(HasSubstr("a is damaged; seen: checksum")));
}

TEST(ZipArchive, RefusesAnotherNameThanTheListSays) {
  std::string bytes = zip_of({{"name", "first"}});
  bytes[bytes.find("name")] = 'g';  // of the local header, which comes first
  EXPECT_THAT([&] { text_of(bytes, "name"); }, ThrowsMessage<DataError>(HasSubstr("not the beg")));
}

TEST(ZipArchive, RefusesCompressedRecords) {
  std::string bytes = zip_of({{"a", "first"}});
  bytes[8] = 8;  // the local header's method: deflated
  EXPECT_THAT([&] { text_of(bytes, "a"); }, ThrowsMessage<DataError>(HasSubstr("compressed")));
}

TEST(ZipArchive, RefusesRecordsThatOverlapOrLeaveTheFile) {
  const std::string bytes = zip_of({{"a", "first"}, {"b", "second"}});
  std::string overlapping = bytes, longer = bytes;
  const std::size_t second = bytes.rfind("PK\x01\x02");
  overlapping[second + 42] = 3;  // where b begins
  EXPECT_THAT([&] { text_of(overlapping, "a"); }, ThrowsMessage<DataError>(HasSubstr("overlaps")));
  longer[second + 20] = longer[second + 24] = '\x7f';  // b's two sizes
  EXPECT_THAT([&] { text_of(longer, "b"); }, ThrowsMessage<DataError>(HasSubstr("lies outside")));
}

TEST(ZipArchive, RefusesANameThatOccursTwice) {
  std::string bytes = zip_of({{"a", "1"}, {"b", "2"}});
  bytes[bytes.rfind('b')] = 'a';
  EXPECT_THAT([&] { text_of(bytes, "a"); }, ThrowsMessage<DataError>(HasSubstr("twice")));
}

TEST(ZipArchive, ReadsTheListOfALargeArchive) {
  // The sizes of the list are in the 64-bit end, as in archives above 4 GB (APPNOTE 4.3.14).
  using namespace std::string_literals;
  const std::string bytes = zip_of({{"a", "first"}});
  const std::size_t end = bytes.rfind("PK\x05\x06"), list = bytes.rfind("PK\x01\x02");
  std::string large = bytes.substr(0, end) + "PK\x06\x06"s;
  put(large, 44, 8);
  put(large, 45, 2);
  put(large, 45, 2);
  put(large, 0, 8);
  put(large, 1, 8);
  put(large, 1, 8);
  put(large, end - list, 8);
  put(large, list, 8);
  large += "PK\x06\x07"s;
  put(large, 0, 4);
  put(large, end, 8);
  put(large, 1, 4);
  large += "PK\x05\x06"s;
  put(large, 0, 4);
  put(large, 0xFFFFFFFFFFFFFFFF, 8);
  put(large, 0xFFFFFFFF, 4);
  put(large, 0, 2);
  large.replace(large.size() - 22 + 4, 4, std::string(4, '\0'));
  EXPECT_EQ(text_of(large, "a"), "first");
}

}  // namespace
}  // namespace demi::imported
