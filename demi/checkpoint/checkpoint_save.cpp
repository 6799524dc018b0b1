#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "demi/checkpoint/checkpoint.h"
#include "demi/checkpoint/content_checksum.h"
#include "demi/checkpoint/folder.h"
#include "demi/checkpoint/manifest.h"
#include "demi/checkpoint/retention.h"
#include "demi/checkpoint/run_id.h"
#include "demi/checkpoint/safetensors_write.h"
#include "demi/core/atomic_file.h"
#include "demi/core/crc32c.h"
#include "demi/core/error.h"
#include "demi/core/libtorch.h"
#include "demi/core/version.h"

namespace demi::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSave = "checkpoint.save";

/// A folder that is removed again unless it is published.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(fs::path path) : path_(std::move(path)) {
    if (::mkdir(path_.c_str(), 0777) != 0) throw_file_error(kSave, path_, "cannot be made", errno);
  }
  ~TemporaryFolder() {
    std::error_code code;
    if (!published_) fs::remove_all(path_, code);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const fs::path& path() const { return path_; }
  void publish(const fs::path& name) {
    if (std::rename(path_.c_str(), name.c_str()) != 0)
      throw_file_error(kSave, name, "cannot be made", errno);
    published_ = true;
  }

 private:
  fs::path path_;
  bool published_ = false;
};

/// Longer texts are in the manifest alone.
constexpr std::size_t kLongestMetadataText = std::size_t{64} << 10;

/// "format" as in the files of Python, where readers ask for it.
Metadata model_metadata(const Checkpoint& checkpoint) {
  Metadata metadata{{"format", "pt"}};
  for (const auto& [name, value] : checkpoint.text)
    if (value.size() <= kLongestMetadataText) metadata.insert_or_assign(name, value);
  for (const auto& [name, value] : checkpoint.model_text) metadata.insert_or_assign(name, value);
  if (!checkpoint.model_text.empty()) metadata.try_emplace(std::string(kContentChecksum));
  return metadata;
}

void require_not_negative(std::string_view what, int64_t seen) {
  if (seen < 0)
    refuse({.where = kSave, .what = what, .seen = fmt::to_string(seen), .accepted = "0 or more"});
}

void check_options(int64_t step, const SaveOptions& options) {
  require_not_negative("step is negative", step);
  require_not_negative("keep_last is negative", options.keep_last);
  require_not_negative("keep_best.count is negative", options.keep_best.count);
  if (options.keep_best.count > 0 && options.keep_best.by.empty())
    refuse({.where = kSave,
            .what = "keep_best names no score",
            .seen = fmt::format("count {}", options.keep_best.count),
            .accepted = "by = the name of one of the scores",
            .advice = "give each checkpoint its score in SaveOptions::scores"});
}

/// Both safetensors files of a checkpoint, which has to outlive them.
struct Layouts {
  /// Throws UsageError for what the files and the manifest cannot hold.
  explicit Layouts(const Checkpoint& checkpoint)
      : model(checkpoint.model, model_metadata(checkpoint), kSave),
        state(checkpoint.state, {}, kSave) {
    to_text({.numbers = checkpoint.numbers,  // throws if it cannot be
             .text = checkpoint.text,
             .parameters = checkpoint.parameters});
  }

  SafetensorsLayout model, state;
};

template <class Write>
void write_synced(const fs::path& path, const Write& write) {
  Descriptor file(path, O_WRONLY | O_CREAT | O_TRUNC);
  write(file);
  file.sync();
  file.close();
}

void write_files(const fs::path& folder, int64_t step, const Checkpoint& checkpoint,
                 const std::string& run, const Layouts& layouts, const SaveOptions& options) {
  Manifest manifest{.step = step,
                    .demi = std::string(version()),
                    .libtorch = TORCH_VERSION,
                    .numbers = checkpoint.numbers,
                    .text = checkpoint.text,
                    .files = {},
                    .run = run,
                    .parameters = checkpoint.parameters,
                    .keep = options.keep,
                    .scores = options.scores};
  write_synced(folder / kModelFile, [&](const Descriptor& file) {
    FileRecord& record = manifest.files[kModelFile] = layouts.model.write(file);
    for (const auto& [name, value] : checkpoint.model_text)
      record.texts.emplace(name, crc32c(value));
  });
  write_synced(folder / kStateFile, [&](const Descriptor& file) {
    manifest.files[kStateFile] = layouts.state.write(file);
  });
  write_synced(folder / kManifestFile,
               [&](const Descriptor& file) { file.write_all(to_text(manifest)); });
  sync_folder(folder);
}

std::vector<std::string> standing_in(const fs::path& folder) {
  std::error_code code;
  std::vector<std::string> names = checkpoints_in(folder, code);
  if (code) throw_file_error(kSave, folder, "cannot be read", code.value());
  return names;
}

/// The first name of the step that is free.
std::string free_name(const std::vector<std::string>& standing, int64_t step) {
  for (int64_t copy = 1;; ++copy)
    if (std::string name = checkpoint_name(step, copy);
        std::ranges::find(standing, name) == standing.end())
      return name;
}

void require_removed(const std::optional<RemovalFailure>& failure) {
  if (failure)
    throw_file_error(kSave, failure->path, "cannot be removed (the new checkpoint is saved)",
                     failure->error, "remove it by hand");
}

/// The names in `best`. If they cannot be read, nothing may be removed: it might be the best.
std::vector<std::string> best_in(const fs::path& folder) {
  try {
    return read_names(folder / "best");
  } catch (const DataError& error) {
    throw TrainingError(
        {.where = kSave,
         .what = "the new checkpoint is saved, but no old one could be removed",
         .seen = error.what(),
         .advice = fmt::format("remove {} or replace it by a copy of {}",
                               (folder / "best").string(), (folder / "last").string())});
  }
}

/// Removes those of the run's checkpoints that neither are kept nor the best.
void prune(const fs::path& folder, const std::vector<std::string>& own,
           const std::vector<std::string>& kept, const std::vector<std::string>& marked) {
  const std::vector<std::string> best = best_in(folder);
  const auto stays = [&](const std::string& name) {
    return std::ranges::any_of(std::array{&kept, &marked, &best}, [&](const auto* names) {
      return std::ranges::find(*names, name) != names->end();
    });
  };
  for (const std::string& name : own)
    if (!stays(name)) require_removed(remove_checkpoint(folder / name));
}

}  // namespace

void check_save(int64_t step, const Checkpoint& checkpoint, const SaveOptions& options) {
  check_options(step, options);
  const Layouts refuses(checkpoint);
}

fs::path save(const fs::path& folder, int64_t step, const Checkpoint& checkpoint,
              const SaveOptions& options) {
  require_libtorch();
  check_options(step, options);
  const Layouts layouts(checkpoint);
  const std::shared_ptr<HeldFolder> held = hold_folder(folder, /*for_a_run=*/false);
  const std::lock_guard saving(held->saving);
  if (held->locked) remove_leftovers(folder);  // first, for the sake of their space on the disk

  take_over_run(checkpoint.run);
  const std::vector<std::string> standing = standing_in(folder);
  OwnCheckpoints own = own_checkpoints(folder, *held, standing, checkpoint.run);
  warn_of_other_runs(folder, own);
  const std::string name = free_name(standing, step);
  TemporaryFolder temporary(temporary_name(folder / checkpoint_name(step, 1)));
  write_files(temporary.path(), step, checkpoint, own.run, layouts, options);
  temporary.publish(folder / name);
  held->marks[name] = {own.run, options.keep, options.scores};
  sync_folder(folder);

  const std::vector<std::string> kept =
      kept_names(name, own.named, own.standing, options.keep_last);
  write_atomically(folder / "last", names_to_text(kept));
  if (options.is_best) write_atomically(folder / "best", names_to_text({name}));
  own.standing.push_back(name);
  std::ranges::sort(own.standing, {},
                    [](const std::string& one) { return *parse_checkpoint_name(one); });
  prune(folder, own.standing, kept, kept_by_marks(own.standing, held->marks, options.keep_best));
  if (held->locked) require_removed(remove_leftovers(folder));
  return folder / name;
}

void warn_of_other_runs(const fs::path& folder, const std::string& run) {
  const std::shared_ptr<HeldFolder> held = hold_folder(folder, /*for_a_run=*/false);
  const std::lock_guard saving(held->saving);
  take_over_run(run);
  warn_of_other_runs(folder, own_checkpoints(folder, *held, standing_in(folder), run));
}

fs::path set_aside(const fs::path& checkpoint) {
  for (int64_t copy = 1;; ++copy) {
    fs::path aside = checkpoint.string() + ".damaged" + (copy == 1 ? "" : fmt::format("-{}", copy));
    std::error_code code;
    if (fs::exists(fs::symlink_status(aside, code))) continue;
    if (std::rename(checkpoint.c_str(), aside.c_str()) != 0)
      throw_file_error("checkpoint.set_aside", checkpoint, "cannot be renamed", errno);
    sync_folder(aside.parent_path());
    return aside;
  }
}

}  // namespace demi::checkpoint
