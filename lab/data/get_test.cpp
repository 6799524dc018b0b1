#include "lab/data/get.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lab/files/folder_testing.h"

namespace demi::data {
namespace {

using files::complaint;
using ::testing::AllOf;
using ::testing::HasSubstr;

// `demi data check` sends one to `demi data get`, which would send one back for ever.
TEST(GetDataSet, OfAFolderThatIsNotTheWholeSetIsRefused) {
  const TestFolder folder;
  for (const char* name : {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                           "data_batch_4.bin", "data_batch_5.bin", "test_batch.bin"})
    folder.write(std::string("cifar10/") + name, "cut off");
  const std::string said =
      complaint([&] { get_data_set("cifar10", folder.path(), [](auto, auto, auto) {}); });
  EXPECT_THAT(said, AllOf(HasSubstr("is there and is not the whole set"),
                          HasSubstr("mv " + (folder / "cifar10").string() + " ")));
}

}  // namespace
}  // namespace demi::data
