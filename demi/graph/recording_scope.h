#pragma once

#include <functional>
#include <vector>

#include "demi/core/export.h"

namespace demi::graph {

/// What the host does for a part of recorded work around each replay: the part took its rates and
/// pointers from the host when it was recorded.
struct HostPart {
  /// Brings to the device what the host has changed. false: done now, the work would differ from
  /// what was recorded, so that it has to be recorded anew.
  std::function<bool()> prepare;
  /// Notes on the host that the work was done.
  std::function<void()> note;
};

/// A recording under way in this thread. Those whose work is recorded add their part.
class DEMI_API RecordingScope {
 public:
  RecordingScope();
  ~RecordingScope();
  RecordingScope(const RecordingScope&) = delete;
  RecordingScope& operator=(const RecordingScope&) = delete;

  /// Null: nothing is recorded in this thread, or not by demi.
  static RecordingScope* current();

  void add(HostPart part) { parts_.push_back(std::move(part)); }
  std::vector<HostPart> take_parts() { return std::move(parts_); }

 private:
  RecordingScope* outer_;
  std::vector<HostPart> parts_;
};

}  // namespace demi::graph
