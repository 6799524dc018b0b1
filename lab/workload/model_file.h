#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "demi/checkpoint/safetensors.h"
#include "demi/core/export.h"
#include "demi/train/names.h"
#include "lab/data/vocabulary.h"
#include "lab/settings/config.h"
#include "lab/workload/workload.h"

namespace demi::workload {

/// The version of the texts below that is written, and the newest that can be read.
inline constexpr int64_t kModelFileVersion = 1;

/// The description of a model and of its use, without the data that it was trained on.
struct ModelDescription {
  settings::Config network;          // of it, what make_network reads: model, hidden, pool, ...
  DataShape shape;                   // what the data decided
  std::vector<std::string> classes;  // by number; empty of a regression
  InputRule input;                   // how examples become its input
  /// Config::loss and Config::precision of its run.
  std::string loss = {}, precision = {};
  bool is_average = false;                // the file's weights are the moving average
  tokens::TokenizerTexts tokenizer = {};  // of a running text
  /// The identity of a network from Python: imported::FileSummary::identity of its .pt2 file;
  /// empty: not known.
  std::string identity = {};
};

/// The content of a model file, without its tensors.
struct ModelTexts {
  settings::Config config;                             // of the run
  Precision precision;                                 // of its run
  std::optional<std::int64_t> steps = {};              // WeightsInfo::steps
  std::optional<ModelDescription> description;         // none of an older file
  std::shared_ptr<const data::Vocabulary> vocabulary;  // null: an older file, or no texts
  /// Whether it is a folder of Hugging Face's, which describes no run: `config` is the network
  /// alone. The model may have more tokens than the tokenizer.
  bool is_huggingface = false;
  std::string no_tokenizer = {};  // of such a folder: why
};

/// The metadata of a model file, in each once:
///   demi.file        the version of these texts: 1
///   demi.model       ModelDescription as JSON; numbers in the digits that give the same bits
///   demi.vocabulary  the words by number, the first "<unk>", with one space between two: no word
///                    of BasicEnglish holds a space, and a line break would be two bytes of JSON.
///                    A model of characters has these, by number, with nothing between; one of
///                    byte pairs a JSON array of the symbols; other models have no entry
///   demi.merges      JSON with the merges and added tokens of byte pairs
/// beside demi.precision, demi.config, demi.step (how many it was trained) and, from the library,
/// demi.crc32c.
/// Throws DataError for a class or a word that is not UTF-8.
DEMI_API checkpoint::Metadata model_texts(const ModelDescription& description,
                                          const data::Vocabulary* vocabulary);
/// The texts of a run and its data, as above.
DEMI_API checkpoint::Metadata model_texts(const settings::Resolved& run, const Workload& workload,
                                          bool is_average);

/// The texts of a weights file, of a checkpoint, of what names one (checkpoint::find), or of a
/// folder of Hugging Face's. Reads no tensor. Throws DataError for a file of a newer version, with
/// both numbers, for texts that are damaged or contradict each other, and for a file without
/// demi.config.
DEMI_API ModelTexts read_model_texts(const std::filesystem::path& path);

/// A model file, read whole.
struct ModelFile {
  ModelTexts texts;                  // what it says besides tensors
  checkpoint::NamedTensors weights;  // as read_weights: those that training would ship
};

/// A whole model file. Throws as read_model_texts, before a tensor is read, and as
/// checkpoint::load: values or texts that are not those of the file's checksum are refused.
DEMI_API ModelFile read_model_file(const std::filesystem::path& path);

}  // namespace demi::workload
