#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "demi/data/loader.h"
#include "demi/train/network.h"
#include "lab/data/kind.h"
#include "lab/data/vocabulary.h"
#include "lab/report/table.h"
#include "lab/settings/config.h"
#include "lab/settings/resolved.h"
#include "lab/tokens/tokenizer.h"

namespace demi::workload {

/// Sizes of the network that its data decide; what a model does not have is ignored.
struct DataShape {
  /// Channels, height and width of pictures, classes of the answer, known words or tokens of texts.
  int64_t channels = 1, size = 28, classes = 10, vocabulary = 1;
};

/// The rule by which examples become the network's input.
struct InputRule {
  data::Kind kind = data::Kind::rows;  // what an example is
  // Pictures become (x / 255 - mean) / std of each channel; empty: 0 and 1.
  /// One for each channel.
  std::vector<double> mean = {}, std = {};
  bool from_photographs = false;  // scaled and cut (middle_of); else of the network's size already
  // Texts are split by BasicEnglish, and cut to the first that many tokens; 0: all.
  int64_t max_length = 0;  // tokens of a text
};

/// The data of a model, in its file. They replace those in the data's files: texts get the numbers
/// of its vocabulary, pictures its normalisation.
struct ModelData {
  std::string file;                                    // for messages
  DataShape shape;                                     // sizes of its network
  std::vector<std::string> classes;                    // by number; empty of a regression
  InputRule input;                                     // how examples became its input
  std::shared_ptr<const data::Vocabulary> vocabulary;  // null without texts
  tokens::TokenizerTexts tokenizer = {};               // of a running text
  bool may_have_more_tokens = false;                   // than the tokenizer: padded
  std::string identity = {};  // of its network from Python (ModelDescription::identity)
};

/// A config's data, ready to be trained on, and how its network is made.
struct Workload {
  std::shared_ptr<const data::Loader> train;  // what is trained on
  std::shared_ptr<const data::Loader> test;   // none for synthetic data
  std::vector<std::string> classes;           // empty for a regression
  std::string items = "examples";             // for people: images, reviews, rows
  int64_t items_of_example = 1;               // tokens of a window
  double flop_of_item = 0;                    // of the network in training; 0: not known
  std::string note;                           // for people; mostly empty
  std::string note_on_data;                   // the part of it that is about the examples
  std::vector<report::Table> about;           // likewise, to be shown before training
  DataShape shape;                            // sizes of the network
  InputRule input;                            // how examples become its input
  /// The words by number, of which the network knows the first shape.vocabulary; null without
  /// texts.
  std::shared_ptr<const data::Vocabulary> vocabulary;
  tokens::TokenizerTexts tokenizer = {};  // of a running text; without a name: of token files
  /// CRC-32C of the labels of all training examples in the files' order; none of made data.
  std::optional<std::uint32_t> labels;
  /// The share of <unk> among the words of the training and of the test texts; nothing if the
  /// vocabulary was made of the training texts, or without texts.
  std::optional<double> unknown_train, unknown_test;
  /// A new network on the device; 4-dimensional weights are channels_last. Its initial weights
  /// depend on config, data and seed alone, not on the device.
  std::function<train::Network(uint64_t seed)> make_network;
};

/// The number of likeliest classes among which the right one must be, from `asked` as --top-k has
/// it (train::top_k_of). For a language model the classes are tokens, and 0 stays 0: none.
DEMI_API int64_t top_k_of(const Workload& workload, int64_t asked);

/// The process, of those that train together, whose part of the data is read.
struct RankPart {
  /// This process's number, from 0, and how many processes there are.
  int64_t rank = 0, ranks = 1;
};

/// Makes a workload of batches of that size, which may differ from the config's.
using WorkloadMaker = std::function<Workload(int64_t batch_size)>;

/// Reads both splits once. The maker holds them; synthetic data depend on the batch size and are
/// made for each workload. Throws UsageError if model and data do not fit each other, DataError if
/// a file is missing or damaged; the maker throws UsageError if the loss does not fit the data, or
/// if the batch size is still to be found. The loaders give `part` of each batch; the ranks leave
/// out no test example. With a `model` throws DataError, with both, if the data have other classes
/// than that, or pictures of another size.
DEMI_API WorkloadMaker read_data(const settings::Resolved& run, RankPart part = {},
                                 std::shared_ptr<const ModelData> model = nullptr);

/// The test set of a saved model, without training data, which may be missing.
DEMI_API Workload load_test_data(const settings::Resolved& run,
                                 std::shared_ptr<const ModelData> model);

/// The data of a run's pictures by its settings alone, without the classes. For model files without
/// ModelData.
DEMI_API ModelData data_of_settings(const settings::Config& config);

/// read_data of the config, and one call of its maker.
DEMI_API Workload load_workload(const settings::Config& config, c10::Device device);

/// The sizes of the config's network.
DEMI_API models::ModelOptions model_options(const settings::Config& config, const DataShape& shape);

/// The network of a config over data of those sizes.
DEMI_API train::Network make_network(const settings::Config& config, const DataShape& shape,
                                     uint64_t seed, c10::Device device);

}  // namespace demi::workload
