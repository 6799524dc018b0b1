#pragma once

// Whether two runs are the same bit for bit: everything that they leave but times, and what is
// measured of the machine.
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>

#include "demi/checkpoint/checkpoint.h"

namespace same_run {

namespace fs = std::filesystem;

inline std::string content(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

// Names and words of what the clock and the machine decide.
inline bool is_measured(const std::string& name) {
  static const std::set<std::string> kMeasured{
      "speedup",          "cores_share", "involuntary_switches",   "peak_resident_bytes",
      "checkpoint_bytes", "measured",    "model_flop_utilization", "disturbed",
      "slow_causes"};
  return name.find("second") != std::string::npos || kMeasured.contains(name);
}

// Memory that was in use before a run is apart from its peak. It is more if an earlier run was of
// the same process: the sum is the run's own. Of the one run of `demi train`, whose checkpoints a
// thread writes, the peak is measured too.
inline void join_memory(nlohmann::ordered_json& run, bool is_alone) {
  if (!run.is_object() || !run.contains("peak_bytes")) return;
  if (is_alone)
    run.erase("peak_bytes");
  else
    run["peak_bytes"] = run["peak_bytes"].get<int64_t>() + run["data_bytes"].get<int64_t>();
  run.erase("data_bytes");
}

inline void drop_measured(nlohmann::ordered_json& json) {
  if (!json.is_structured()) return;
  if (json.is_object() && json.contains("runs"))
    for (auto& run : json["runs"]) join_memory(run, json["runs"].size() == 1);
  for (auto item = json.begin(); item != json.end();) {
    if (json.is_object() && is_measured(item.key())) {
      item = json.erase(item);
    } else {
      drop_measured(*item);
      ++item;
    }
  }
  // The causes of a minor speedup are measured, also that there are none; a slow dtype is named
  // only if it was not faster.
  if (json.is_object() && json.contains("notes"))
    std::erase_if(json["notes"].get_ref<nlohmann::ordered_json::array_t&>(), [](const auto& note) {
      const std::string text = note.is_string() ? note.template get<std::string>() : "";
      return text.find("speedup") != text.npos || text.find("gain no time") != text.npos;
    });
}

inline std::string without_times(const std::string& text) {
  auto json = nlohmann::ordered_json::parse(text);
  drop_measured(json);
  return json.dump();
}

/// Lines of metrics.jsonl by run.
inline std::map<std::string, std::string> metrics_by_run(const fs::path& folder) {
  std::map<std::string, std::string> all;
  std::istringstream lines(content(folder / "metrics.jsonl"));
  for (std::string line; std::getline(lines, line);)
    all[nlohmann::json::parse(line)["run"].get<std::string>()] += without_times(line) + "\n";
  return all;
}

inline void expect_same_tensors(const demi::checkpoint::NamedTensors& a,
                                const demi::checkpoint::NamedTensors& b) {
  for (const auto& [name, tensor] : a) {
    if (is_measured(name)) continue;
    const auto other = b.find(name);
    ASSERT_NE(other, b.end()) << name;
    ASSERT_EQ(tensor.scalar_type(), other->second.scalar_type()) << name;
    ASSERT_EQ(tensor.sizes(), other->second.sizes()) << name;
    const at::Tensor x = tensor.contiguous(), y = other->second.contiguous();
    EXPECT_EQ(std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()), 0) << name;
  }
  for (const auto& [name, tensor] : b) EXPECT_TRUE(a.contains(name)) << name;
}

inline void expect_same_numbers(const std::map<std::string, demi::StateDict>& a,
                                const std::map<std::string, demi::StateDict>& b) {
  for (const auto& [part, numbers] : a) {
    if (is_measured(part)) continue;
    ASSERT_TRUE(b.contains(part)) << part;
    for (const auto& [name, value] : numbers) {
      if (is_measured(name)) continue;
      ASSERT_TRUE(b.at(part).contains(name)) << part << " " << name;
      EXPECT_EQ(std::bit_cast<uint64_t>(value), std::bit_cast<uint64_t>(b.at(part).at(name)))
          << part << " " << name << ": " << value << " and " << b.at(part).at(name);
    }
    EXPECT_EQ(numbers.size(), b.at(part).size()) << part;
  }
  EXPECT_EQ(a.size(), b.size());
}

/// Compares the last checkpoints of two folders.
inline void expect_same_checkpoint(const fs::path& a, const fs::path& b) {
  const demi::checkpoint::Checkpoint x = demi::checkpoint::load(a), y = demi::checkpoint::load(b);
  expect_same_tensors(x.model, y.model);
  expect_same_tensors(x.state, y.state);
  expect_same_numbers(x.numbers, y.numbers);
  EXPECT_EQ(x.text, y.text);
}

/// Compares two run folders. `runs`: the folders of a comparison's checkpoints; {""} for one run.
inline void expect_same_run(const fs::path& a, const fs::path& b,
                            const std::set<std::string>& runs = {""}) {
  EXPECT_EQ(metrics_by_run(a), metrics_by_run(b));
  EXPECT_EQ(without_times(content(a / "result.json")), without_times(content(b / "result.json")));
  for (const std::string& run : runs) {
    SCOPED_TRACE(run);
    const std::string model = (run.empty() ? "" : run + "-") + "model.safetensors";
    EXPECT_TRUE(content(a / model) == content(b / model)) << model;
    expect_same_checkpoint(a / "checkpoints" / run, b / "checkpoints" / run);
  }
}

}  // namespace same_run
