#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "lab/data/data_sets.h"
#include "lab/data/text_set.h"
#include "lab/workload/model_file.h"
#include "lab/workload/workload.h"

namespace demi::workload {

/// The data of a file's model; null for an older file and for a model of rows.
DEMI_API std::shared_ptr<const ModelData> data_of_model(const ModelTexts& texts,
                                                        const std::filesystem::path& file);

/// The data_of_model() of the newest checkpoint of a folder of checkpoints, or of one checkpoint;
/// null also if there is none yet. A damaged one is passed over. Throws DataError, as
/// read_model_texts.
DEMI_API std::shared_ptr<const ModelData> data_of_checkpoint(const std::filesystem::path& path);

// Refusals: DataError with the value in the model's file and that of the data.

/// Pictures, texts, tokens or rows.
void require_same_kind(const ModelData& model, const data::DataSet& data);

/// Classes by number, and of pictures their channels and size. `data` is for the message.
void require_same_data(const ModelData& model, const std::vector<std::string>& classes,
                       const std::string& data, const DataShape& shape);

/// The number of words that the run's settings allow.
void require_same_words(const ModelData& model, int64_t words);

/// The tokenizer of a running text, and how many tokens there are.
void require_same_tokens(const ModelData& model, const tokens::TokenizerTexts& tokenizer,
                         int64_t tokens);

/// The tokenizer in a model's file; null if it has none. Throws DataError if it is damaged or not
/// of the model's size.
DEMI_API std::shared_ptr<const tokens::Tokenizer> tokenizer_of_model(const ModelData& model);

/// Gives the texts of a corpus the numbers of the model's vocabulary. `read_test` reads the test
/// texts again, by that vocabulary: it is called if words of the model are lost in the corpus,
/// since its own training texts lack them.
void number_anew(const ModelData& model, data::TextCorpus& corpus, const std::string& data,
                 const std::function<data::TextSet()>& read_test);

/// "1.2 % of the words are not among the 100,682 of FILE: they count as <unk>".
DEMI_API std::string say_unknown(double share, const ModelData& model);

}  // namespace demi::workload
