#pragma once

#include <map>
#include <string>
#include <vector>

#include "demi/checkpoint/checkpoint.h"
#include "demi/core/export.h"

namespace demi::checkpoint {

/// The part of a manifest that names the checkpoint's run and says how long the checkpoint stays.
struct Marks {
  std::string run;    // empty: the manifest cannot be read
  bool keep = false;  // SaveOptions::keep
  std::map<std::string, double> scores = {};
};

/// Names of the checkpoints that stay by their marks: those that are to be kept, and the best by
/// `rule`. `standing`: those of one run, by step and copy. Of several copies of a step the newest
/// that has the mark counts.
DEMI_API std::vector<std::string> kept_by_marks(const std::vector<std::string>& standing,
                                                const std::map<std::string, Marks>& marks,
                                                const KeepBest& rule);

}  // namespace demi::checkpoint
