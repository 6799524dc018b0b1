#include "demi/checkpoint/layouts.h"

#include <fmt/format.h>

#include <string>

#include "demi/checkpoint/manifest.h"
#include "demi/core/error.h"

namespace demi::checkpoint {
namespace {

constexpr std::string_view kSaveCheckpoint = "checkpoint.save";
/// Longer texts stand in the manifest alone.
constexpr std::size_t kLongestMetadataText = std::size_t{64} << 10;

/// "format" as in the files of Python, where readers ask for it.
Metadata model_metadata(const Metadata& text) {
  Metadata metadata{{"format", "pt"}};
  for (const auto& [name, value] : text)
    if (value.size() <= kLongestMetadataText) metadata.insert_or_assign(name, value);
  return metadata;
}

void require_not_negative(std::string_view what, int64_t seen) {
  if (seen < 0)
    throw UsageError({.where = kSaveCheckpoint,
                      .what = what,
                      .seen = fmt::to_string(seen),
                      .accepted = "0 or more"});
}

}  // namespace

Layouts::Layouts(const Checkpoint& checkpoint)
    : model(checkpoint.model, model_metadata(checkpoint.text), kSaveCheckpoint),
      state(checkpoint.state, {}, kSaveCheckpoint) {
  to_text({.numbers = checkpoint.numbers, .text = checkpoint.text});  // throws if it cannot be
}

void check_options(int64_t step, const SaveOptions& options) {
  require_not_negative("step is negative", step);
  require_not_negative("keep_last is negative", options.keep_last);
}

}  // namespace demi::checkpoint
