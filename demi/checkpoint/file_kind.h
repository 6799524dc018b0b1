#pragma once

#include <string_view>

#include "demi/core/export.h"

namespace demi::checkpoint {

/// What a file is by its first bytes, and what becomes of one that should have been a safetensors
/// file. `name` is empty if the bytes tell nothing.
struct FileKind {
  std::string_view name;    // "a PNG picture"
  std::string_view advice;  // for the error's end
};

/// Of a file that begins with `first`: 8 bytes, or all of a shorter one.
DEMI_API FileKind file_kind(std::string_view first);

}  // namespace demi::checkpoint
