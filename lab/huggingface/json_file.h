#pragma once

#include <filesystem>
#include <utility>

#include "lab/json_file.h"

namespace demi::huggingface {

/// Throws errors about one file or folder.
struct Wrong : lab::WrongFile {
  explicit Wrong(std::filesystem::path path)
      : WrongFile{std::move(path), "huggingface.read_model"} {}
};

/// A JSON object. Throws DataError: no such file, or something else.
inline nlohmann::json read_object(const std::filesystem::path& file) {
  return lab::object_of(Wrong{file}, file.filename().string());
}

}  // namespace demi::huggingface
