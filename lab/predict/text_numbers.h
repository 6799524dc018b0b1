#pragma once

#include <span>
#include <vector>

#include "lab/data/text_set.h"
#include "lab/data/vocabulary.h"
#include "lab/predict/predict.h"

namespace demi::predict {

/// The texts by the numbers of their words; labels are places in `inputs`. Texts that are not UTF-8
/// are left out, and have an error in `predictions`, whose places are set.
data::TextSet number_texts(std::span<const Input> inputs, const data::Vocabulary& vocabulary,
                           std::vector<Prediction>& predictions);

}  // namespace demi::predict
