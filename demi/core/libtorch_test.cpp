#include "demi/core/libtorch.h"

#include <gtest/gtest.h>

#include "demi/core/error.h"

namespace demi {
namespace {

std::string problem(std::string_view compiled, const LoadedLibTorch& loaded) {
  try {
    check_libtorch(compiled, loaded);
    return "";
  } catch (const UsageError& error) {
    return error.what();
  }
}

LoadedLibTorch one(const std::string& version) {
  return {version, "/a/libtorch_cpu.so", {"/a/libtorch_cpu.so"}};
}

TEST(LibTorch, OfTheMinorVersionIsTaken) {
  EXPECT_EQ(problem("2.15.0", one("2.15.0")), "");
  EXPECT_EQ(problem("2.15.0", one("2.15.1")), "");
  EXPECT_EQ(problem("2.15.2", one("2.15.0")), "");
}

TEST(LibTorch, OfAnotherMinorVersionIsRefused) {
  for (const std::string version :
       {"2.11.0", "2.14.9", "2.16.0", "2.1.5", "2.150.0", "3.15.0", "1.15.0"}) {
    const std::string text = problem("2.15.0", one(version));
    EXPECT_NE(text.find("compiled against LibTorch 2.15.0"), text.npos) << text;
    EXPECT_NE(text.find("seen: " + version + ", /a/libtorch_cpu.so; accepted: 2.15;"), text.npos)
        << text;
  }
}

TEST(LibTorch, WithoutAVersionIsOlder) {
  const std::string text = problem("2.15.0", one(""));
  EXPECT_NE(text.find("seen: older than 2.11, /a/libtorch_cpu.so"), text.npos) << text;
}

// The version alone says nothing of a LibTorch that is linked statically: its file is the program.
TEST(LibTorch, InTheProgramItselfIsComparedToo) {
  EXPECT_EQ(problem("2.15.0", {"2.15.0", "/a/program", {}}), "");
  EXPECT_NE(problem("2.15.0", {"2.11.0", "/a/program", {}}).find("/a/program"), std::string::npos);
}

TEST(LibTorch, TwoAreRefusedByName) {
  const LoadedLibTorch two{
      "2.15.0", "/a/libtorch_cpu.so", {"/a/libtorch_cpu.so", "/b/libtorch_cpu.so"}};
  const std::string text = problem("2.15.0", two);
  EXPECT_NE(text.find("two LibTorches"), text.npos) << text;
  EXPECT_NE(text.find("seen: /a/libtorch_cpu.so, /b/libtorch_cpu.so; accepted: one;"), text.npos)
      << text;
}

// This program has none.
TEST(LibTorch, NoneIsNoMistakeOfItself) {
  EXPECT_TRUE(loaded_libtorch().files.empty());
  EXPECT_EQ(loaded_libtorch().version, "");
  EXPECT_NO_THROW(require_libtorch());
}

}  // namespace
}  // namespace demi
