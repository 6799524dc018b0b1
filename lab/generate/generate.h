#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "demi/core/export.h"
#include "lab/generate/sampling.h"
#include "lab/models/gpt.h"
#include "lab/settings/resolved.h"
#include "lab/tokens/tokenizer.h"

namespace demi::generate {

/// A saved language model, ready to write.
struct Model {
  settings::Resolved run;                              // its settings, as the file has them
  models::GPT network{nullptr};                        // on the device, in evaluation mode
  std::shared_ptr<const tokens::Tokenizer> tokenizer;  // null: its file has none
  std::string no_tokenizer = {};                       // why; empty: there is none

  /// Tokens that are read and drawn: a padded model has more than its tokenizer.
  int64_t vocabulary() const {
    return tokenizer ? tokenizer->size() : network->options().vocabulary;
  }
  /// Tokens that the network sees at most.
  int64_t context() const { return network->options().context; }
};

/// Reads a model file, a checkpoint, what names one or a folder of Hugging Face's, to be computed
/// in a precision as `demi eval` has it. Throws DataError for a damaged file, UsageError for a
/// model that is no language model, DeviceError.
DEMI_API Model load_model(const std::filesystem::path& file, std::string_view precision,
                          std::string_view device);

/// The tokens of a text; an empty one is a line's end, as nanoGPT's. Throws DataError for what the
/// tokenizer does not know, UsageError if the file has none.
DEMI_API std::vector<int32_t> tokens_of(const Model& model, std::string_view text);

/// Numbers with commas, blanks or line ends between them. Throws UsageError, with index and value:
/// no number, beyond the vocabulary, none at all.
DEMI_API std::vector<int32_t> parse_tokens(const Model& model, std::string_view numbers);

/// Options of writing a text.
struct Options {
  Sampling sampling;     // temperature, top-k, seed
  int64_t length = 500;  // tokens to write, 1 or more
  int64_t sample = 0;    // number of the text, 0 or more: each has its own random numbers
  bool cache = true;     // false: each token from the whole window again
};

/// Called with each token as soon as it is known; false ends the text.
using TokenDone = std::function<bool(int32_t token)>;

/// Writes tokens after those of the prompt, which must not be empty. Each is drawn from the logits
/// that the network gives for the last `context` tokens: up to the context their keys and values
/// are kept; beyond it all are computed again for each token, since then all positions have moved
/// (nanoGPT's sample.py does the same). Throws UsageError for options out of range, TrainingError
/// for logits that are NaN or infinite.
DEMI_API void write(const Model& model, std::span<const int32_t> prompt, const Options& options,
                    const TokenDone& done);

}  // namespace demi::generate
