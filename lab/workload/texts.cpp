#include "lab/workload/texts.h"

#include <algorithm>
#include <utility>

#include "lab/data/text_loader.h"
#include "lab/workload/model_data.h"

namespace demi::workload {
namespace {

// The workload of a run on the texts of a corpus, without their loaders.
Workload text_workload(const data::TextCorpus& corpus, const settings::Config& config,
                       DataShape& shape) {
  shape.classes = static_cast<int64_t>(corpus.classes.size());
  shape.vocabulary = corpus.vocabulary->size();
  if (config.vocabulary_size > 0)
    shape.vocabulary = std::min(shape.vocabulary, config.vocabulary_size);
  Workload result;
  result.items = "texts";
  result.classes = corpus.classes;
  result.note = corpus.note;
  result.vocabulary = corpus.vocabulary;
  result.input.max_length = config.max_length;
  return result;
}

// The test texts alone, by the words of a saved model.
data::TextSet read_test_texts(const settings::Config& config, const Reading& reading,
                              const std::vector<std::string>& classes) {
  const data::Vocabulary& words = *reading.model->vocabulary;
  return reading.data->layout == data::Layout::csv
             ? data::load_test_text_file(config.test_file, classes, words)
             : data::load_test_texts(config.data, config.data_dir, words);
}

}  // namespace

Loaders text_loaders(data::TextCorpus read, const settings::Config& from, const Reading& reading) {
  if (reading.model)
    number_anew(*reading.model, read, reading.data->name,
                [&] { return read_test_texts(from, reading, read.classes); });
  return [reading, corpus = std::move(read)](settings::Config config, DataShape& shape) {
    if (reading.model) config.max_length = reading.model->input.max_length;
    Workload result = text_workload(corpus, config, shape);
    if (reading.model) {
      require_same_words(*reading.model, shape.vocabulary);
      result.unknown_train = data::unknown_share(corpus.train);
      result.unknown_test = data::unknown_share(corpus.test);
    }
    result.labels = checksum_of(corpus.train.labels);
    add_note(result.note, note_on_lost_classes(&corpus.train.labels, &corpus.test.labels,
                                               corpus.classes, config, reading));
    data::TextLoaderOptions options{.max_length = config.max_length,
                                    .vocabulary_size = config.vocabulary_size};
    const bool overfit = config.overfit_batches > 0;
    options.order = overfit ? overfit_order(config, reading) : test_order(config, reading);
    result.test = std::make_shared<data::TextLoader>(overfit ? corpus.train : corpus.test,
                                                     shape.classes, options);
    options.order = training_order(config, reading);
    result.train =
        with_workers(std::make_shared<data::TextLoader>(corpus.train, shape.classes, options),
                     config, reading.device);
    return result;
  };
}

Loaders test_texts(const settings::Config& read, const Reading& reading) {
  const ModelData& model = *reading.model;
  data::TextCorpus corpus{.classes = model.classes, .vocabulary = model.vocabulary};
  corpus.test = read_test_texts(read, reading, model.classes);
  return [reading, corpus = std::move(corpus)](settings::Config config, DataShape& shape) {
    config.max_length = reading.model->input.max_length;
    Workload result = text_workload(corpus, config, shape);
    require_same_words(*reading.model, shape.vocabulary);
    result.unknown_test = data::unknown_share(corpus.test);
    add_note(result.note,
             note_on_lost_classes(nullptr, &corpus.test.labels, corpus.classes, config, reading));
    result.test = std::make_shared<data::TextLoader>(
        corpus.test, shape.classes,
        data::TextLoaderOptions{.order = test_order(config, reading),
                                .max_length = config.max_length});
    return result;
  };
}

}  // namespace demi::workload
