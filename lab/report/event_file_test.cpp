#include "lab/report/event_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "lab/report/protobuf.h"

namespace demi::report {
namespace {

using namespace std::string_literals;

TEST(TfRecord, LengthAndChecksumsAreThoseOfEveryTensorBoardFile) {
  // A TensorBoard file begins with a record of 24 bytes, whose length and masked checksum are these
  // in each of them.
  const std::string record = tfrecord(std::string(24, 'x'));
  ASSERT_EQ(record.size(), 8U + 4 + 24 + 4);
  EXPECT_EQ(record.substr(0, 12), "\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22"s);
}

TEST(Protobuf, ExamplesOfTheEncodingPage) {
  EXPECT_EQ(Message().varint(1, 150).encoded(), "\x08\x96\x01");
  EXPECT_EQ(Message().bytes(2, "testing").encoded(), "\x12\x07testing");
  EXPECT_EQ(Message().message(3, Message().varint(1, 150)).encoded(), "\x1a\x03\x08\x96\x01");
  EXPECT_EQ(Message().varint(1, -2).encoded(), "\x08\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01");
}

TEST(EventFile, BeginsWithItsVersionAndIsNamedForTensorBoard) {
  std::filesystem::path path;
  {
    EventFile events(testing::TempDir(), 0, std::chrono::seconds(10), [] { return 1.0; });
    path = events.path();
    events.scalar("a", 1, 2);
  }
  EXPECT_EQ(path.filename().string().rfind("events.out.tfevents.1.", 0), 0U);
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  // wall_time 1.0 as field 1 (fixed64), "brain.Event:2" as field 3: event.proto.
  const std::string version = "\x09\0\0\0\0\0\0\xf0\x3f\x1a\x0d"s + "brain.Event:2";
  EXPECT_EQ(text.substr(0, 40), tfrecord(version));
  // wall_time, step 0, session_log (field 7) { status START (field 1, value 1) }.
  const std::string start = "\x09\0\0\0\0\0\0\xf0\x3f\x10\0\x3a\x02\x08\x01"s;
  EXPECT_EQ(text.substr(40, 31), tfrecord(start));
  // wall_time, step 1, summary { value { tag "a", simple_value 2.0 } }.
  EXPECT_EQ(
      text.substr(71),
      tfrecord("\x09\0\0\0\0\0\0\xf0\x3f\x10\x01\x2a\x0a\x0a\x08\x0a\x01\x61\x15\0\0\0\x40"s));
  std::filesystem::remove(path);
}

// TensorBoard reads the files of a folder in the order of their names, whichever process and second
// they are of.
TEST(EventFile, IsReadAfterTheOlderOnesOfItsFolder) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "demi_event_files";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "events.out.tfevents.1700000007.10.0.0.1.999999.3") << "";
  std::string last = "events.out.tfevents.1700000007.10.0.0.1.999999.3";
  for (const double now : {1700000007.9, 1700000007.9, 1600000000.0, 1700000100.0}) {
    const EventFile events(folder, 5, std::chrono::seconds(10), [=] { return now; });
    EXPECT_GT(events.path().filename().string(), last);
    last = events.path().filename().string();
  }
  EXPECT_TRUE(last.starts_with("events.out.tfevents.1700000100.")) << last;
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace demi::report
