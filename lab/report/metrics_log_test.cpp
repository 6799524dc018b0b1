#include "lab/report/metrics_log.h"

#include <cmath>
#include <limits>

#include "demi/core/error.h"
#include "lab/report/files_testing.h"

namespace demi::report {
namespace {

using MetricsLogTest = Files;

TEST_F(MetricsLogTest, MetricsComeBackAsTheyWereWritten) {
  const fs::path path = folder / "metrics.jsonl";
  const double inf = std::numeric_limits<double>::infinity();
  MetricsLog log(path);
  log.write({{"step", std::int64_t{1}},
             {"loss", 0.5},
             {"run", std::string("b\"16")},
             {"skipped", false},
             {"counts", std::vector<std::int64_t>{3, 0, 4}}});
  log.write({{"step", std::int64_t{2}}, {"loss", std::nan("")}, {"norm", -inf}});
  log.sync();
  EXPECT_EQ(content(path),
            "{\"step\":1,\"loss\":0.5,\"run\":\"b\\\"16\",\"skipped\":false,\"counts\":[3,0,4]}\n"
            "{\"step\":2,\"loss\":null,\"norm\":null,\"non_finite\":{\"loss\":\"nan\",\"norm\":\"-"
            "inf\"}}\n");
  const std::vector<MetricLine> lines = read_metrics(path).lines;
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(std::get<std::string>(lines[0].fields[2].second), "b\"16");
  EXPECT_EQ(std::get<std::vector<std::int64_t>>(lines[0].fields[4].second),
            (std::vector<std::int64_t>{3, 0, 4}));
  EXPECT_TRUE(std::isnan(std::get<double>(lines[1].fields[1].second)));
  EXPECT_EQ(std::get<double>(lines[1].fields[2].second), -inf);
}

TEST_F(MetricsLogTest, ALineCutOffByACrashIsRemovedBeforeTheNext) {
  const fs::path path = folder / "metrics.jsonl";
  put(path, "{\"step\":1}\n{\"st");
  EXPECT_EQ(read_metrics(path).lines.size(), 1U);
  MetricsLog(path).write({{"step", std::int64_t{2}}});
  EXPECT_EQ(content(path), "{\"step\":1}\n{\"step\":2}\n");
}

TEST_F(MetricsLogTest, AFullDiskLeavesWholeLinesAndLosesNothing) {
  const fs::path path = folder / "metrics.jsonl";
  MetricsLog log(path, std::chrono::hours(1));
  log.write({{"step", std::int64_t{1}}});
  log.flush();
  log.write({{"text", std::string(5000, 'x')}});
  {
    FileSizeLimit limit(4096);
    EXPECT_THROW(log.flush(), TrainingError);
  }
  EXPECT_EQ(content(path), "{\"step\":1}\n");
  log.flush();
  EXPECT_EQ(read_metrics(path).lines.size(), 2U);
}

TEST_F(MetricsLogTest, ALineThatCannotBeWrittenNowWaitsForTheNextInterval) {
  const fs::path path = folder / "metrics.jsonl";
  MetricsLog log(path, std::chrono::milliseconds(0));
  {
    FileSizeLimit limit(1);
    EXPECT_NO_THROW(log.write({{"step", std::int64_t{1}}}));
    EXPECT_EQ(content(path), "");
  }
  log.write({{"step", std::int64_t{2}}});
  EXPECT_EQ(content(path), "{\"step\":1}\n{\"step\":2}\n");
}

// Of a comparison whose runs take turns, one continues from an earlier step.
TEST_F(MetricsLogTest, LinesOfOneRunCanBeRemovedFromAmongThoseOfOthers) {
  const fs::path path = folder / "metrics.jsonl";
  put(path,
      "{\"run\":\"fp32\",\"step\":1}\n{\"run\":\"bf16\",\"step\":1}\n"
      "{\"run\":\"fp32\",\"step\":2,\"loss\":0.30}\n{\"run\":\"bf16\",\"step\":2}\nnot json\n"
      "{\"run\":\"fp32\",\"st");
  const auto keep = [](const MetricFields& line) {
    return std::get<std::string>(line[0].second) != "bf16" ||
           std::get<std::int64_t>(line[1].second) < 2;
  };
  keep_metrics(path, keep);
  EXPECT_EQ(content(path),
            "{\"run\":\"fp32\",\"step\":1}\n{\"run\":\"bf16\",\"step\":1}\n"
            "{\"run\":\"fp32\",\"step\":2,\"loss\":0.30}\nnot json\n")
      << "the lines that stay keep their bytes";
  keep_metrics(folder / "none", keep);
  EXPECT_FALSE(fs::exists(folder / "none"));
}

TEST_F(MetricsLogTest, AFullDiskLeavesTheMetricsAsTheyWere) {
  const fs::path path = folder / "metrics.jsonl";
  put(path, "{\"text\":\"" + std::string(5000, 'x') + "\"}\n{\"step\":1}\n");
  const std::string before = content(path);
  {
    FileSizeLimit limit(4096);
    EXPECT_THROW(
        keep_metrics(path, [](const MetricFields& line) { return line[0].first != "step"; }),
        TrainingError);
  }
  EXPECT_EQ(content(path), before);
  EXPECT_EQ(entries(folder), 1U);
}

// A read that fails is not the end of the file: a resumed run would write the rest over.
TEST_F(MetricsLogTest, AReadThatFailsIsNotTheEnd) {
  EXPECT_THROW(read_metrics("/proc/self/mem"), std::exception);
  EXPECT_THROW(for_each_metric("/proc/self/mem", [](const std::string&, const MetricFields&) {}),
               std::exception);
}

// RFC 8259 has no NaN; the bytes of the third line are no UTF-8.
TEST_F(MetricsLogTest, OfADamagedFileTheSoundPartIsRead) {
  const fs::path path = folder / "metrics.jsonl";
  put(path, std::string("{\"step\":1}\nnot json\n\0\xff\xfe{\"\n{\"loss\":NaN}\n[1]\n\n", 44) +
                "{\"step\":2}\n{\"st");
  const Metrics metrics = read_metrics(path);
  ASSERT_EQ(metrics.lines.size(), 2U);
  EXPECT_EQ(metrics.lines[0].number, 1);
  EXPECT_EQ(metrics.lines[1].number, 7);
  ASSERT_NE(find_metric<std::int64_t>(metrics.lines[1].fields, "step"), nullptr);
  EXPECT_EQ(*find_metric<std::int64_t>(metrics.lines[1].fields, "step"), 2);
  EXPECT_EQ(find_metric<double>(metrics.lines[1].fields, "step"), nullptr);
  EXPECT_EQ(metrics.left_out,
            (std::vector<std::string>{"line 2 is no JSON object", "line 3 is no JSON object",
                                      "line 4 is no JSON object", "line 5 is no JSON object",
                                      "line 6 is no JSON object", "line 8, the last, is cut off"}));
}

TEST_F(MetricsLogTest, AnEmptyFileHasNoLinesAndAMissingOneIsAnError) {
  put(folder / "metrics.jsonl", "");
  const Metrics none = read_metrics(folder / "metrics.jsonl");
  EXPECT_TRUE(none.lines.empty());
  EXPECT_TRUE(none.left_out.empty());
  EXPECT_THROW(read_metrics(folder / "none"), DataError);
  EXPECT_THROW(read_metrics(folder), DataError);
}

}  // namespace
}  // namespace demi::report
