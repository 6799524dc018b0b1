#include "lab/data/locate.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <string>

#include "demi/core/error.h"

namespace demi::data {
namespace {

class CacheFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"DEMI_CACHE", "XDG_CACHE_HOME", "HOME"}) {
      const char* value = std::getenv(name);
      before_[name] = value ? std::optional<std::string>(value) : std::nullopt;
      unsetenv(name);
    }
    setenv("HOME", "/home/a", 1);
  }
  void TearDown() override {
    for (const auto& [name, value] : before_)
      value ? setenv(name.c_str(), value->c_str(), 1) : unsetenv(name.c_str());
  }

 private:
  std::map<std::string, std::optional<std::string>> before_;
};

// As scripts/say.sh has it: an empty variable is none.
TEST_F(CacheFolder, IsThatOfTheStrongestVariable) {
  EXPECT_EQ(cache_folder(), "/home/a/.cache/demi");
  setenv("XDG_CACHE_HOME", "relative", 1);
  EXPECT_EQ(cache_folder(), "/home/a/.cache/demi");
  setenv("XDG_CACHE_HOME", "", 1);
  EXPECT_EQ(cache_folder(), "/home/a/.cache/demi");
  setenv("XDG_CACHE_HOME", "/var/cache", 1);
  EXPECT_EQ(cache_folder(), "/var/cache/demi");
  setenv("DEMI_CACHE", "", 1);
  EXPECT_EQ(cache_folder(), "/var/cache/demi");
  setenv("DEMI_CACHE", "/srv/demi", 1);
  EXPECT_EQ(cache_folder(), "/srv/demi");
  setenv("DEMI_CACHE", "relative", 1);
  EXPECT_THROW(cache_folder(), UsageError);
}

}  // namespace
}  // namespace demi::data
