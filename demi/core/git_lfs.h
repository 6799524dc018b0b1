#pragma once

#include <string_view>

namespace demi {

/// Whether the content is a pointer of git-lfs, which takes a large file's place until it is
/// fetched: a text of a few lines (https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md).
inline bool is_git_lfs_pointer(std::string_view content) {
  return content.starts_with("version https://git-lfs.github.com/spec/");
}

constexpr auto kGitLfsPointer = "git-lfs's pointer to the file";
constexpr auto kGitLfsAdvice = "fetch it: git lfs pull, in the folder of the repository";

}  // namespace demi
