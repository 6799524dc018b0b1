#pragma once

#include <memory>

#include "lab/data/token_set.h"
#include "lab/tokens/tokenizer.h"
#include "lab/workload/reading.h"

namespace demi::workload {

/// Windows of running texts and token files.
Loaders token_loaders(const data::TokenSet& tokens, const Reading& reading);

/// The test text alone, by the tokenizer of a saved model.
Loaders test_tokens(const settings::Config& config, const Reading& reading,
                    const std::shared_ptr<const tokens::Tokenizer>& tokenizer);

}  // namespace demi::workload
