#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "demi/checkpoint/checkpoint.h"
#include "demi/checkpoint/contents.h"
#include "demi/checkpoint/folder.h"
#include "demi/checkpoint/input_file.h"
#include "demi/checkpoint/manifest.h"
#include "demi/checkpoint/safetensors_read.h"
#include "demi/core/error.h"
#include "demi/core/libtorch.h"

namespace demi::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kLoadCheckpoint = "checkpoint.load";

enum class Memory { own, mapped };

constexpr std::string_view kNameOne = "name a run's folder, such as runs/train-mlp-001";
constexpr std::string_view kLetIn = "let this user read it, and enter the folders above it (chmod)";

[[noreturn]] void no_checkpoint(const fs::path& path, std::string_view seen,
                                std::string_view advice = kNameOne) {
  throw DataError({.where = "checkpoint.find",
                   .what = path.string() + " is no checkpoint",
                   .seen = seen,
                   .accepted = "a checkpoint's folder, a folder of checkpoints, or a run's folder",
                   .advice = advice});
}

/// `code`: the system's error; none if there is nothing of that name.
[[noreturn]] void nothing_there(const fs::path& path, std::error_code code) {
  const bool is_locked = code == std::errc::permission_denied;
  throw DataError({.where = "checkpoint.find",
                   .what = path.string() + " is no checkpoint",
                   .seen = code ? code.message() : "nothing of that name",
                   .accepted = "a safetensors file, a checkpoint's folder, a folder of "
                               "checkpoints, or a run's folder",
                   .advice = is_locked ? kLetIn : "look for its name in the folder"});
}

/// Whether something is there. Throws DataError if the system does not know.
bool stands(const fs::path& path) {
  std::error_code code;
  const fs::file_status status = fs::status(path, code);
  if (status.type() == fs::file_type::none) no_checkpoint(path, code.message(), kLetIn);
  return fs::exists(status);
}

bool is_checkpoint(const fs::path& folder) {
  return stands(folder / kManifestFile) && has_manifest(folder);
}

/// The checkpoint that FOLDER/last or FOLDER/best names; nothing if there is no such file.
std::optional<fs::path> named_in(const fs::path& file) {
  std::vector<std::string> names = read_names(file);
  while (!names.empty()) {
    fs::path named = file.parent_path() / names.front();
    if (stands(named)) return named;
    // The run that saves here has replaced the file and removed what it named, or another program
    // has.
    const std::string gone = names.front();
    names = read_names(file);
    if (!names.empty() && names.front() == gone)
      no_checkpoint(file, fmt::format("it names {}, which is not there", gone),
                    "name another checkpoint's folder");
  }
  return std::nullopt;
}

/// The last of a folder of checkpoints; nothing if it holds none.
std::optional<fs::path> last_in(const fs::path& folder) {
  if (auto named = named_in(folder / "last")) return named;
  std::error_code code;
  const std::vector<std::string> names = checkpoints_in(folder, code);
  if (code) no_checkpoint(folder, code.message());
  if (names.empty()) return std::nullopt;
  return folder / names.back();
}

/// The last checkpoint of CHECKPOINTS, the folder of a run, or of the only run that has a folder in
/// it.
fs::path last_of_run(const fs::path& run, const fs::path& checkpoints) {
  if (auto last = last_in(checkpoints)) return *last;
  std::vector<fs::path> found;
  std::error_code code;
  for (const fs::path& entry : entries_of(checkpoints, code))
    if (std::error_code ignored; fs::is_directory(entry, ignored))
      if (auto last = last_in(entry)) found.push_back(*last);
  if (code) no_checkpoint(run, code.message());
  if (found.empty()) no_checkpoint(run, "a run's folder without checkpoints");
  if (found.size() == 1) return found.front();
  std::vector<std::string> names;
  for (const fs::path& path : found) names.push_back(path.parent_path().string());
  std::ranges::sort(names);
  no_checkpoint(run, "the folder of several runs",
                fmt::format("name one of {}", fmt::join(names, ", ")));
}

/// Reads one of the checkpoint's two files, or verifies and maps it.
NamedTensors tensors_of(const SafetensorsInput& input, const FileRecord& record, Memory memory) {
  input.expect(record);
  if (memory == Memory::own) return input.load(&record);
  input.verify(&record);
  return input.map();
}

const FileRecord& record_of(const Manifest& manifest, const fs::path& folder, const char* name) {
  const auto found = manifest.files.find(name);
  if (found == manifest.files.end())
    throw DataError({.where = kLoadCheckpoint,
                     .what = (folder / kManifestFile).string() + " does not name a file",
                     .seen = fmt::format("{} files", manifest.files.size()),
                     .accepted = name});
  return found->second;
}

Checkpoint read_checkpoint(const fs::path& folder, Memory memory) {
  Manifest manifest = read_manifest(folder);
  const FileRecord& model = record_of(manifest, folder, kModelFile);
  const FileRecord& state = record_of(manifest, folder, kStateFile);
  // Reads headers and sizes of both first: a truncated file is refused before values are read.
  const SafetensorsInput model_file(folder / kModelFile, kLoadCheckpoint);
  const SafetensorsInput state_file(folder / kStateFile, kLoadCheckpoint);
  return {.model = tensors_of(model_file, model, memory),
          .state = tensors_of(state_file, state, memory),
          .numbers = std::move(manifest.numbers),
          .text = std::move(manifest.text),
          .model_text = texts_of(model_file.header(), model),
          .run = std::move(manifest.run),
          .parameters = std::move(manifest.parameters),
          .step = manifest.step};
}

/// A safetensors file alone; with its manifest, if that is in the same folder.
Checkpoint read_file(const fs::path& path, Memory memory) {
  const SafetensorsInput input(path, kLoadCheckpoint);
  Checkpoint result{.model = {}, .state = {}, .numbers = {}, .text = input.header().metadata};
  const fs::path folder = path.parent_path();
  if (is_checkpoint(folder)) {
    const Manifest manifest = read_manifest(folder);
    if (const auto record = manifest.files.find(path.filename()); record != manifest.files.end()) {
      result.model = tensors_of(input, record->second, memory);
      return result;
    }
  }
  if (memory == Memory::own) {
    result.model = input.load(nullptr);
  } else {
    input.verify_content();
    result.model = input.map();
  }
  return result;
}

Checkpoint read(const fs::path& path, Memory memory) {
  require_libtorch();
  Checkpoint result;
  read_current(path, [&](const fs::path& one) {
    result = is_single_file(one) ? read_file(one, memory) : read_checkpoint(one, memory);
  });
  return result;
}

/// The run of a checkpoint, if its manifest can be read.
std::optional<std::string> run_of(const fs::path& checkpoint) {
  try {
    return read_manifest(checkpoint).run;
  } catch (const DataError&) {
    return std::nullopt;
  }
}

/// The checkpoints from which a run may resume, the newest first: the names in `last`, then the
/// others of its run. A damaged `last` names none.
std::vector<std::string> newest_first(const fs::path& folder,
                                      const std::vector<std::string>& standing) {
  std::vector<std::string> names;
  try {
    names = read_names(folder / "last");
  } catch (const UnreadableError&) {
    throw;
  } catch (const DataError&) {  // NOLINT(bugprone-empty-catch)
  }
  const auto has = [](const std::vector<std::string>& all, const std::string& name) {
    return std::ranges::find(all, name) != all.end();
  };
  std::erase_if(names, [&](const std::string& name) { return !has(standing, name); });
  std::optional<std::string> run;
  for (const std::string& name : names)
    if (!run) run = run_of(folder / name);
  std::vector<std::string> others;
  std::copy_if(standing.rbegin(), standing.rend(), std::back_inserter(others),
               [&](const std::string& name) {
                 if (has(names, name)) return false;
                 const auto own = run_of(folder / name);
                 return own && run.value_or(*own) == *own;
               });
  names.insert(names.end(), others.begin(), others.end());
  return names;
}

}  // namespace

fs::path find(const fs::path& path) {
  std::error_code code;
  const fs::file_status status = fs::status(path, code);
  if (!fs::exists(status)) nothing_there(path, code);
  if (fs::is_regular_file(status) && (path.filename() == "last" || path.filename() == "best"))
    if (auto named = named_in(path)) return *named;
  if (!fs::is_directory(status)) no_checkpoint(path, "a file");
  if (is_checkpoint(path)) return path;
  if (auto last = last_in(path)) return *last;
  if (const fs::path inside = path / "checkpoints"; fs::is_directory(inside, code))
    return last_of_run(path, inside);
  no_checkpoint(path, "a folder without checkpoints");
}

void read_current(const fs::path& path, const std::function<void(const fs::path&)>& read) {
  if (is_single_file(path)) return read(path);
  for (fs::path found = find(path);;) {
    try {
      return read(found);
    } catch (const DataError&) {
      const fs::path now = find(path);
      if (now == found) throw;
      found = now;
    }
  }
}

std::optional<fs::path> newest_whole(
    const fs::path& folder,
    const std::function<void(const fs::path&, const std::string&)>& damaged) {
  std::error_code code;
  const std::vector<std::string> standing = checkpoints_in(folder, code);
  if (code) no_checkpoint(folder, code.message());
  if (standing.empty()) return named_in(folder / "last");  // throws if it names one
  std::string wrong = "no manifest.json that can be read";
  for (const std::string& name : newest_first(folder, standing)) {
    try {
      verify(contents(folder / name));
      return folder / name;
    } catch (const UnreadableError&) {
      throw;
    } catch (const DataError& error) {
      wrong = error.what();
      damaged(folder / name, wrong);
    }
  }
  throw DataError({.where = "checkpoint.newest_whole",
                   .what = "none of the checkpoints in " + folder.string() + " is whole",
                   .seen = wrong,
                   .advice = "take them from another copy, or begin a new run"});
}

Checkpoint load(const fs::path& path) { return read(path, Memory::own); }

Checkpoint map(const fs::path& path) { return read(path, Memory::mapped); }

}  // namespace demi::checkpoint
