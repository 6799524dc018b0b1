#pragma once

#include "lab/workload/reading.h"

namespace demi::workload {

/// Texts with labels. `config` names the files that they were read from.
Loaders text_loaders(data::TextCorpus corpus, const settings::Config& config,
                     const Reading& reading);

/// The test texts alone, by the words of a saved model.
Loaders test_texts(const settings::Config& config, const Reading& reading);

}  // namespace demi::workload
