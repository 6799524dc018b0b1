// Labelled texts out of CSV files: their words and numbers, batches of about the same length, an
// LSTM that demi::Trainer trains in mixed precision, and the class of a text of one's own.
#include <torch/torch.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "demi/demi.h"
#include "examples/arguments.h"
#include "lab/data/registry.h"
#include "lab/data/text_loader.h"
#include "lab/models/lstm_classifier.h"

namespace {

namespace fs = std::filesystem;

// Reviews whose label depends on two words: "positive","The plot, honestly, was not bad".
void write_reviews(const fs::path& file, int count, unsigned seed) {
  const char *adverbs[] = {"was", "was really", "was not", "was never"},
             *verdicts[] = {"good", "moving", "funny", "bad", "dull", "weak"};
  std::mt19937 random(seed);
  std::ofstream out(file);
  out << "label,text\n";
  for (int i = 0; i < count; ++i) {
    const unsigned adverb = random() % 4, verdict = random() % 6;
    out << ((verdict < 3) == (adverb < 2) ? "positive" : "negative") << ",\"The plot, honestly, "
        << adverbs[adverb] << ' ' << verdicts[verdict] << "\"\n";
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto [device, dtype] = read_arguments(argc, argv, torch::kBFloat16);
  const fs::path folder = fs::temp_directory_path() / ("demi-reviews-" + std::to_string(getpid()));
  fs::create_directories(folder);
  write_reviews(folder / "train.csv", 1024, 1);
  write_reviews(folder / "test.csv", 256, 2);
  const demi::data::TextCorpus corpus =
      demi::data::load_text_files(folder / "train.csv", folder / "test.csv");
  fs::remove_all(folder);
  std::printf("%lld words; classes %s, %s\n", static_cast<long long>(corpus.vocabulary->size()),
              corpus.classes[0].c_str(), corpus.classes[1].c_str());
  const demi::data::TextLoader training(corpus.train, 2,
                                        {.order = {.batch_size = 64, .shuffle = true}});
  const demi::data::TextLoader validation(corpus.test, 2, {.order = {.batch_size = 64}});

  torch::manual_seed(0);
  demi::models::LSTMClassifier model(demi::models::LSTMClassifierOptions{
      .vocabulary = corpus.vocabulary->size(), .embedding = 16, .hidden = 32});
  model->to(device);
  demi::TrainerOptions options{.epochs = 5, .device = device};
  options.precision = demi::parse_precision(dtype == torch::kHalf ? "fp16" : "bf16");
  options.loss = demi::train::Loss::bce_with_logits;  // one logit for two classes
  options.optimizers = {
      std::make_shared<demi::optim::AdamW>(model->parameters(), demi::optim::AdamWOptions(1e-2))};
  const demi::train::History history = demi::Trainer(model, options).fit(training, &validation);
  for (const auto& epoch : history.epochs)
    std::printf("epoch %lld  loss %.4f  val_accuracy %.3f\n", static_cast<long long>(epoch.epoch),
                epoch.loss, *epoch.validation->accuracy);

  // By the words of training: others are <unk>.
  const demi::data::TextSet own =
      demi::data::tokenize({{.read = [] { return "The music was never dull"; }, .place = "here"}},
                           *corpus.vocabulary, "my own");
  const demi::data::Batch batch = demi::data::TextLoader(own, 2, {}).batch(0, 0);
  model->eval();
  const torch::NoGradGuard no_grad;
  const demi::Autocast region(device.type(), dtype);
  const bool positive = model->forward(batch.input.to(device), batch.lengths).item<double>() > 0;
  std::printf("The music was never dull: %s\n", corpus.classes[positive].c_str());
  return positive && *history.epochs.back().validation->accuracy > 0.95 ? EXIT_SUCCESS
                                                                        : EXIT_FAILURE;
}
