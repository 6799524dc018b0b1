#include "lab/workload/running_texts.h"

#include <fmt/format.h>

#include <utility>

#include "demi/core/error.h"
#include "lab/data/token_windows.h"
#include "lab/workload/model_data.h"

namespace demi::workload {
namespace {

data::RandomWindowsOptions training_windows(const settings::Config& config,
                                            const Reading& reading) {
  return {.context = config.context,
          .batch_size = config.batch_size,
          .batches = config.dry_run ? dry_run_batches(config)
                                    : config.eval_every * settings::batches_of_step(config),
          .limit = config.limit,
          .seed = static_cast<uint64_t>(config.seed),
          .rank = reading.part.rank,
          .world_size = reading.part.ranks};
}

void require_windows(const data::TokenSet& tokens, const settings::Config& config) {
  if (tokens.train.size > config.context) return;
  throw DataError(
      {.where = "workload.read_data",
       .what = "too few tokens to train on for one window",
       .seen = fmt::format("{} tokens, --context {}", tokens.train.size, config.context),
       .accepted = fmt::format("{} or more", config.context + 1),
       .advice = "name a longer text, or a smaller --context"});
}

tokens::TokenizerTexts tokenizer_texts(const data::TokenSet& tokens) {
  return tokens.tokenizer ? tokens.tokenizer->texts() : tokens::TokenizerTexts();
}

}  // namespace

Loaders token_loaders(const data::TokenSet& tokens, const Reading& reading) {
  return [reading, tokens](const settings::Config& config, DataShape& shape) {
    require_windows(tokens, config);
    Workload result;
    result.tokenizer = tokenizer_texts(tokens);
    if (reading.model) require_same_tokens(*reading.model, result.tokenizer, tokens.vocabulary);
    shape.vocabulary = tokens.vocabulary;
    result.items = "tokens";
    result.items_of_example = config.context;
    const bool overfit = config.overfit_batches > 0;
    result.test = std::make_shared<data::ConsecutiveWindows>(
        overfit ? tokens.train : tokens.test, config.context,
        overfit ? overfit_order(config, reading) : test_order(config, reading));
    std::shared_ptr<const data::Loader> train;
    if (overfit)
      train = std::make_shared<data::ConsecutiveWindows>(tokens.train, config.context,
                                                         training_order(config, reading));
    else
      train =
          std::make_shared<data::RandomWindows>(tokens.train, training_windows(config, reading));
    result.train = with_workers(std::move(train), config, reading.device);
    return result;
  };
}

Loaders test_tokens(const settings::Config& read, const Reading& reading,
                    const std::shared_ptr<const tokens::Tokenizer>& tokenizer) {
  const data::TokenSpan test = data::read_test_tokens(read.test_file, *tokenizer);
  return [reading, test](const settings::Config& config, DataShape& shape) {
    shape.vocabulary = reading.model->shape.vocabulary;
    Workload result;
    result.items = "tokens";
    result.items_of_example = config.context;
    result.tokenizer = reading.model->tokenizer;
    result.test = std::make_shared<data::ConsecutiveWindows>(test, config.context,
                                                             test_order(config, reading));
    return result;
  };
}

}  // namespace demi::workload
