#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "demi/checkpoint/safetensors.h"
#include "demi/core/export.h"
#include "demi/core/state_dict.h"

namespace demi::checkpoint {

/// Names of an optimizer's parameters by parameter group.
using ParameterGroups = std::vector<std::vector<std::string>>;

/// The state from which a training run resumes, as plain data. On disk it is a folder of three
/// files:
///   model.safetensors   `model`; `model_text` and short texts are its metadata. Python's
///                       safetensors reads it
///   state.safetensors   `state`
///   manifest.json       `numbers`, `text`, `parameters`, versions, checksums (manifest.h)
struct Checkpoint {
  NamedTensors model;  // parameters and buffers under their modules' names
  NamedTensors state;  // every other tensor: "optimizer/0.exp_avg", "random/cpu", ...
  std::map<std::string, StateDict> numbers;  // by part: "scaler", "schedule", ...; kept bit by bit
  Metadata text;                             // UTF-8: "demi.precision", "demi.config", ...
  /// UTF-8, of any length: what the model's file says of the model. It is metadata of
  /// model.safetensors alone; the manifest has checksums. Where it is not empty, that file gets the
  /// entry demi.crc32c, too: the checksum of its values and its texts (save_safetensors).
  Metadata model_text;
  /// The run that it belongs to: an id that loading sets. Empty: save() finds it.
  std::string run;
  /// Names of an optimizer's parameters, by optimizer ("optimizer", "optimizer.1"): `state` holds
  /// their state under 0, 1, ..., counted through all groups. Empty: the checkpoint was written
  /// before there were names; its state is matched by number.
  std::map<std::string, ParameterGroups> parameters = {};
  /// The step that it was saved as, which loading sets; save() is given it.
  int64_t step = 0;
};

/// Keeps the best checkpoints of a run, by one of SaveOptions::scores. If two have the same score,
/// the earlier is better.
struct KeepBest {
  int64_t count = 0;         // how many of the run's stay; 0: none for this reason
  std::string by = "";       // the score's name
  bool lowest_best = false;  // as of a loss
};

/// The rules by which checkpoints are kept. A checkpoint stays if any of them keeps it.
struct SaveOptions {
  int64_t keep_last = 1;  // how many of the run's stay, counted in the order of saving; 0: all
  bool is_best = false;   // FOLDER/best names this one, which stays until another is best
  bool keep = false;      // this one is not removed by later saves either
  std::map<std::string, double> scores = {};  // of this one; its manifest has them
  KeepBest keep_best = {};                    // the best of the run, which stay, too
};

/// Saves FOLDER/step-00000400 and returns its path. Makes the folder if there is none.
///
/// What holds if the process is killed, the machine stops or any system call fails:
///   - FOLDER holds the checkpoints that it held before, and perhaps the new one, each of them
///   whole;
///   - FOLDER/last names the old one or the new one. It names the new one once this returns;
///   - the process lives: a failure is a TrainingError that names the file and the system's cause.
///     The checkpoint may be there in spite of it, for example if only an old one cannot be removed.
/// How: the files are written to a temporary folder in the same place (step-00000400.NUMBER.tmp),
/// files and folder are synchronised with the disk (fsync), one rename publishes it, and FOLDER is
/// synchronised. Then FOLDER/last is replaced in the same way, and FOLDER/best if `is_best`. Only
/// then are old ones removed. Leftovers of a killed save are removed by the next one. A step that
/// is there already is not overwritten: the new one is called step-00000400-2, and the old one is
/// an old one.
///
/// Only checkpoints of the same run are counted and removed. A process is one run; with restore(),
/// load(path, objects) or Trainer::resume it continues the run of that checkpoint. Checkpoints of
/// other runs, and folders of another content, stay, with one warning (TORCH_WARN).
///
/// Tensors of any device; those of devices are copied one by one, so memory grows by at most one
/// tensor. Synchronises with the tensors' devices. A thread that writes to the tensors meanwhile
/// gives a checkpoint of mixed values, which loads. Threads of one process take turns; another
/// process that saves to this folder, or holds its FolderLock, is refused with UsageError. Throws
/// UsageError for tensors, names and texts that the files cannot hold and for options out of range,
/// before anything is written.
DEMI_API std::filesystem::path save(const std::filesystem::path& folder, int64_t step,
                                    const Checkpoint& checkpoint, const SaveOptions& options = {});

/// The folder of the checkpoint that a path means:
///   - the folder of a checkpoint: itself;
///   - a folder of checkpoints: the one that its file `last` names; without that file, the one of
///     the highest step;
///   - the file `last` or `best` of such a folder: the one that it names;
///   - the folder of a run: as its folder checkpoints/. If that holds a folder for each of several
///     runs, DataError lists them.
/// Throws DataError if there is none, if `last` is damaged or if it names one that is gone.
DEMI_API std::filesystem::path find(const std::filesystem::path& path);

/// Calls read(folder) with the checkpoint that a path means (find). Where the path is a folder, a
/// run or a file `last`, and the run that saves there removes the checkpoint while it is being read
/// (`read` throws DataError), calls it again with the one that took its place.
DEMI_API void read_current(const std::filesystem::path& path,
                           const std::function<void(const std::filesystem::path&)>& read);

/// The newest checkpoint of a folder of checkpoints whose every byte agrees with its checksums:
/// that which `last` names, else the one saved before it, and so on. Calls damaged(checkpoint, what
/// is wrong) for each one that is skipped. nullopt if there is no checkpoint. Throws DataError if
/// none is whole, or if the system does not let one be read: its bytes may be sound.
DEMI_API std::optional<std::filesystem::path> newest_whole(
    const std::filesystem::path& folder,
    const std::function<void(const std::filesystem::path&, const std::string&)>& damaged);

/// Renames a damaged checkpoint to step-00000400.damaged, so that it neither counts as a checkpoint
/// nor is ever removed. Returns the new name. Call it only while this process holds the folder.
/// Throws TrainingError.
DEMI_API std::filesystem::path set_aside(const std::filesystem::path& checkpoint);

/// Reads the checkpoint that `path` means (find), or a single safetensors file, whose tensors are
/// `model` and whose metadata is `text`. Verifies everything before it returns: checksums of the
/// manifest, both files and every tensor, all names, the format's version. A file with its
/// manifest.json in the same folder is verified with it; another program's manifest.json counts for
/// nothing.
///
/// Tensors are contiguous, on the CPU, and own their memory: no tensor aliases the file. The values
/// are read into their memory at once, so memory grows by the checkpoint's size and no more. Throws
/// DataError, which names file and place, for what is missing, damaged, of another kind or of a
/// newer format.
DEMI_API Checkpoint load(const std::filesystem::path& path);

/// Reads the checkpoint as load() does, but the tensors' memory is the mapped files (copy on write:
/// writing to a tensor changes no file). It is for copying into objects that have memory already,
/// which then needs no second copy of the values. A tensor's pages are given back once the tensor
/// is gone, so erase each one after its copy to hold at most one in memory. Everything is read and
/// verified before the files are mapped. Nobody may shorten the files while tensors live: the
/// system would end the process.
DEMI_API Checkpoint map(const std::filesystem::path& path);

}  // namespace demi::checkpoint
