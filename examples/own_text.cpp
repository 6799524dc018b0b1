// A text pipeline of one's own: a tokenizer, a vocabulary made from the training texts, a loader
// that pads each batch to its longest text, and an LSTM that demi::Trainer trains in mixed
// precision. In a program of yours the texts come from a file.
#include <torch/torch.h>

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "demi/data/order.h"
#include "demi/demi.h"
#include "examples/arguments.h"

namespace {

struct Review {
  std::string text;
  int64_t label;  // 1: it praises
};

// "Honestly, the plot was not bad": what a review says depends on two words.
std::vector<Review> make_reviews(std::size_t count, unsigned seed) {
  const std::vector<std::string> subjects{"The film", "Honestly, the plot", "Its music"};
  const std::vector<std::string> adverbs{" was ", " was really ", " was not ", " was never "};
  const std::vector<std::string> verdicts{"good", "moving", "funny", "bad", "dull", "weak"};
  std::mt19937 random(seed);
  std::vector<Review> reviews;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t subject = random() % 3, adverb = random() % 4, verdict = random() % 6;
    reviews.push_back({subjects[subject] + adverbs[adverb] + verdicts[verdict] + "!",
                       (verdict < 3) != (adverb >= 2)});
  }
  return reviews;
}

// Runs of letters, in lower case.
std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  bool in_word = false;
  for (const unsigned char c : text) {
    const bool is_letter = std::isalpha(c) != 0;
    if (is_letter && !in_word) words.emplace_back();
    if (is_letter) words.back() += static_cast<char>(std::tolower(c));
    in_word = is_letter;
  }
  return words;
}

// Words and their numbers. 0 is the padding, 1 every word that the training texts do not have.
class Vocabulary {
 public:
  explicit Vocabulary(const std::vector<Review>& reviews) {
    for (const Review& review : reviews)
      for (const std::string& word : words_of(review.text)) ids_.try_emplace(word, size());
  }
  int64_t size() const { return 2 + static_cast<int64_t>(ids_.size()); }
  torch::Tensor encode(const std::string& text) const {
    std::vector<int64_t> ids;
    for (const std::string& word : words_of(text))
      ids.push_back(ids_.contains(word) ? ids_.at(word) : 1);
    return torch::tensor(ids);
  }

 private:
  std::map<std::string, int64_t> ids_;
};

// Batches of padded texts: tokens (N, T), classes (N), lengths (N).
class Texts : public demi::data::Loader {
 public:
  Texts(const std::vector<Review>& reviews, const Vocabulary& vocabulary, bool shuffle)
      : order_(static_cast<int64_t>(reviews.size()), {.batch_size = 64, .shuffle = shuffle}) {
    for (const Review& review : reviews) {
      tokens_.push_back(vocabulary.encode(review.text));
      labels_.push_back(torch::tensor(review.label));
    }
  }
  int64_t examples() const override { return order_.examples(); }
  int64_t batches() const override { return order_.batches(); }
  demi::data::Batch batch(int64_t epoch, int64_t position) const override {
    const torch::Tensor chosen = order_.indices(epoch, position), lengths = chosen.clone();
    std::vector<torch::Tensor> tokens, labels;
    for (int64_t row = 0; row < chosen.size(0); ++row) {
      const auto i = chosen[row].item<int64_t>();
      tokens.push_back(tokens_[i]);
      labels.push_back(labels_[i]);
      lengths[row] = tokens_[i].size(0);
    }
    return {torch::nn::utils::rnn::pad_sequence(tokens, /*batch_first=*/true), torch::stack(labels),
            lengths};
  }

 private:
  demi::data::Order order_;
  std::vector<torch::Tensor> tokens_, labels_;
};

struct ClassifierImpl : torch::nn::Module {
  torch::nn::Embedding embedding;
  torch::nn::LSTM lstm{torch::nn::LSTMOptions(16, 32).batch_first(true)};
  torch::nn::Linear classes{32, 2};
  explicit ClassifierImpl(int64_t vocabulary) : embedding(vocabulary, 16) {
    register_module("embedding", embedding);
    register_module("lstm", lstm);
    register_module("classes", classes);
  }
  // The output at each text's last word.
  torch::Tensor forward(const torch::Tensor& tokens, const torch::Tensor& lengths) {
    const torch::Tensor outputs = std::get<0>(lstm(embedding(tokens)));
    const torch::Tensor last = (lengths.to(outputs.device()) - 1).view({-1, 1, 1});
    return classes(outputs.gather(1, last.expand({-1, 1, outputs.size(2)})).squeeze(1));
  }
};
TORCH_MODULE(Classifier);

}  // namespace

int main(int argc, char** argv) {
  const auto [device, dtype] = read_arguments(argc, argv, torch::kBFloat16);
  const std::vector<Review> reviews = make_reviews(1024, 1);
  const Vocabulary vocabulary(reviews);
  const Texts training(reviews, vocabulary, /*shuffle=*/true);
  const Texts validation(make_reviews(256, 2), vocabulary, /*shuffle=*/false);

  torch::manual_seed(0);
  Classifier model(vocabulary.size());
  model->to(device);
  demi::TrainerOptions options{.epochs = 4, .device = device};
  options.precision = demi::parse_precision(dtype == torch::kHalf ? "fp16" : "bf16");
  options.optimizers = {
      std::make_shared<demi::optim::AdamW>(model->parameters(), demi::optim::AdamWOptions(1e-2))};
  const demi::train::History history = demi::Trainer(model, options).fit(training, &validation);
  for (const auto& epoch : history.epochs)
    std::printf("epoch %lld  loss %.4f  val_accuracy %.3f\n", static_cast<long long>(epoch.epoch),
                epoch.loss, *epoch.validation->accuracy);

  // "soundtrack" is a word that no training text has.
  const std::vector<Review> unseen{{"The soundtrack was never dull.", 1}, {"Really weak!", 0}};
  const demi::data::Batch batch = Texts(unseen, vocabulary, false).batch(0, 0);
  model->eval();
  const torch::NoGradGuard no_grad;
  const demi::Autocast region(device.type(), dtype);
  const torch::Tensor praise =
      model->forward(batch.input.to(device), batch.lengths).argmax(1).cpu();
  for (std::size_t i = 0; i < unseen.size(); ++i)
    std::printf("%s %s\n", praise[static_cast<int64_t>(i)].item<int64_t>() ? "praise:" : "blame: ",
                unseen[i].text.c_str());
  const bool right =
      praise.equal(batch.target) && *history.epochs.back().validation->accuracy > 0.95;
  return right ? EXIT_SUCCESS : EXIT_FAILURE;
}
