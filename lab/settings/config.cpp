#include "lab/settings/config.h"

#include <algorithm>

#include "lab/data/data_sets.h"
#include "lab/models/registry.h"

namespace demi::settings {

std::vector<std::string> words_of(std::string_view list) {
  std::vector<std::string> words;
  for (std::size_t start = 0; start <= list.size();) {
    const std::size_t end = std::min(list.find(',', start), list.size());
    words.emplace_back(list.substr(start, end - start));
    start = end + 1;
  }
  return words;
}

int64_t scheduled_epochs(const Config& config) {
  return config.schedule_epochs > 0 ? config.schedule_epochs : config.epochs;
}

bool reads_tokens(const Config& config) {
  const models::ModelInfo* const model = models::model_named(config.model);
  return model && model->reads == data::Kind::tokens;
}

bool counts_tokens(const Config& config) {
  return config.tokens_per_step > 0 && reads_tokens(config);
}

int64_t tokens_of_batch(const Config& config) {
  return config.batch_size * config.context * config.ranks;
}

int64_t batches_of_step(const Config& config) {
  if (!counts_tokens(config)) return config.accumulate;
  return std::max<int64_t>(config.tokens_per_step / std::max<int64_t>(tokens_of_batch(config), 1),
                           1);
}

int64_t last_step(const Config& config) {
  constexpr int64_t kDryRunSteps = 2;
  return config.dry_run ? kDryRunSteps : config.steps;
}

int64_t synthetic_bytes(const Config& c) {
  if (c.data.empty()) return 0;
  const data::DataSet& set = data::data_set(c.data);
  if (set.layout != data::Layout::synthetic) return 0;
  return set.kind == data::Kind::rows ? 4 * (c.in + c.out) : 3 * c.image_size * c.image_size + 8;
}

}  // namespace demi::settings
