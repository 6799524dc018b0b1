// docs/reference/op_table.md holds the table that the code has. DEMI_WRITE_DOCS=1 writes it.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "demi/autocast/op_lists.h"
#include "demi/autocast/op_policy.h"
#include "demi/core/source_dir_testing.h"

namespace demi {
namespace {

struct Row {
  std::string cpu = "as given", cuda = "as given", reason;
};

std::string table() {
  std::map<std::string, Row> rows;
  for (const auto& rule : default_op_rules(torch::kCUDA)) {
    rows[rule.op].cuda = name_of(rule.category);
    rows[rule.op].reason = rule.reason;
  }
  for (const auto& rule : default_op_rules(torch::kCPU)) {
    Row& row = rows[rule.op];
    row.cpu = name_of(rule.category);
    const bool differs = !row.reason.empty() && row.reason != rule.reason;
    row.reason = differs ? "CPU: " + rule.reason + "; CUDA: " + row.reason : rule.reason;
  }
  std::string text = "| op | CPU | CUDA | reason |\n|---|---|---|---|\n";
  for (const auto& [op, row] : rows)
    text += "| `" + op + "` | " + row.cpu + " | " + row.cuda + " | " + row.reason + " |\n";
  return text;
}

TEST(Docs, TheTableIsTheCodes) {
  const auto path = source_dir() / "docs/reference/op_table.md";
  std::stringstream file;
  file << std::ifstream(path).rdbuf();
  const std::string text = file.str();
  const std::string begin = "<!-- table -->\n", end = "<!-- end of table -->";
  const auto first = text.find(begin), last = text.find(end);
  ASSERT_NE(first, std::string::npos) << path;
  ASSERT_NE(last, std::string::npos);
  const auto start = first + begin.size();
  const char* write = std::getenv("DEMI_WRITE_DOCS");
  if (write && *write == '1')
    std::ofstream(path) << text.substr(0, start) << table() << text.substr(last);
  else if (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR != 15)
    GTEST_SKIP() << "the page is made on LibTorch 2.15";
  else
    EXPECT_EQ(text.substr(start, last - start), table());
}

}  // namespace
}  // namespace demi
