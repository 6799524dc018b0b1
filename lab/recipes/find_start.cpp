#include "lab/recipes/find_start.h"

#include <array>
#include <fstream>
#include <string_view>
#include <system_error>

#include "demi/checkpoint/checkpoint.h"
#include "demi/checkpoint/manifest.h"
#include "demi/core/error.h"
#include "lab/huggingface/folder.h"
#include "lab/recipes/run_record.h"

namespace demi::recipes {
namespace {

namespace fs = std::filesystem;

/// torch.save writes a zip archive, and wrote a pickle before PyTorch 1.6.
bool is_of_torch_save(const fs::path& file) {
  std::array<char, 4> begin{};
  std::ifstream(file, std::ios::binary).read(begin.data(), begin.size());
  const std::string_view bytes(begin.data(), begin.size());
  return bytes == "PK\x03\x04" || (bytes[0] == '\x80' && bytes[1] >= 2 && bytes[1] <= 5);
}

[[noreturn]] void refuse_torch_save(const fs::path& file) {
  const std::string safetensors = fs::path(file).replace_extension(".safetensors").string();
  throw DataError({.where = "--from",
                   .what = "Python's torch.save wrote the file, and it may hold any program",
                   .seen = file.string(),
                   .accepted = "a safetensors file",
                   .advice = "two lines of Python make one: import torch, safetensors.torch\n"
                             "  safetensors.torch.save_file(torch.load(\"" +
                             file.string() + "\", weights_only=True), \"" + safetensors + "\")"});
}

}  // namespace

fs::path find_start(const fs::path& from,
                    const std::function<void(const fs::path&, const std::string&)>& passed_over) {
  if (const auto folder = huggingface::folder_of(from)) return *folder;
  std::error_code unreadable;
  const fs::file_status status = fs::status(from, unreadable);
  const bool names_one = from.filename() == "last" || from.filename() == "best";
  if (fs::is_regular_file(status) && !names_one) {
    if (is_of_torch_save(from)) refuse_torch_save(from);
    return from;
  }
  if (fs::is_directory(status) && !checkpoint::has_manifest(from)) {
    const fs::path inside = from / kCheckpoints;
    const bool is_run = fs::is_directory(inside, unreadable);
    if (const auto found = checkpoint::newest_whole(is_run ? inside : from, passed_over))
      return *found;
  }
  return checkpoint::find(from);
}

}  // namespace demi::recipes
