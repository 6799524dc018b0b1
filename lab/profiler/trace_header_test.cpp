#include "lab/profiler/trace_header.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace demi::profiler {
namespace {

namespace fs = std::filesystem;

class TraceHeader : public ::testing::Test {
 protected:
  ~TraceHeader() override { fs::remove(file_); }
  std::string blanked(const std::string& text) const {
    std::ofstream(file_, std::ios::binary) << text;
    EXPECT_TRUE(blank_host_name(file_));
    std::ifstream file(file_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  const fs::path file_ = fs::path(::testing::TempDir()) / "demi-trace-header.json";
};

TEST_F(TraceHeader, TheNameBecomesSpacesAndNothingElseChanges) {
  EXPECT_EQ(blanked("{\n  \"a\": [],\n\n  \"host_name\": \"node-7.lan\",\n  \"b\": \"ns\",\n"
                    "\"traceEvents\": []}"),
            "{\n  \"a\": [],\n\n  \"host_name\": \"          \",\n  \"b\": \"ns\",\n"
            "\"traceEvents\": []}");
  EXPECT_EQ(blanked("{\"host_name\":\"x\",\"b\":\"c\"}"), "{\"host_name\":\" \",\"b\":\"c\"}")
      << "one line";
  EXPECT_EQ(blanked("{\"host_name\": \"a\\\"b\",\n\"c\": \"d\"}"),
            "{\"host_name\": \"    \",\n\"c\": \"d\"}")
      << "a quote in the name";
}

TEST_F(TraceHeader, OfABigFileTheRestStays) {
  const std::string events(std::size_t{1} << 20U, 'e');
  const std::string head = "{ \"host_name\": \"", tail = "\",\n \"traceEvents\": [\"" + events;
  EXPECT_EQ(blanked(head + "box" + tail), head + "   " + tail);
}

TEST_F(TraceHeader, AFileWithoutANameStaysAsItIs) {
  for (const std::string text :
       {"", "{}", "{\"host_name\"", "{\"host_name\": 7, \"b\": \"c\"}", "{\"host_name\": \"open",
        "{\"host_name\": \"\",\n}",
        "{\"traceEvents\": [{\"name\": \"host_name\", \"host_name\": \"text\"}]}"})
    EXPECT_EQ(blanked(text), text);
}

TEST_F(TraceHeader, AFileThatCannotBeOpenedIsSaid) {
  EXPECT_FALSE(blank_host_name("/nowhere/at/all/trace.json"));
}

}  // namespace
}  // namespace demi::profiler
