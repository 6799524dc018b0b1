#include "lab/models/lstm_classifier.h"

#include <ATen/ATen.h>

#include <limits>

#include "lab/models/check.h"
#include "lab/models/entries.h"
#include "lab/models/own_settings.h"

namespace demi::models {
namespace {

torch::nn::LSTM lstm(const LSTMClassifierOptions& options) {
  return torch::nn::LSTM(
      torch::nn::LSTMOptions(options.embedding, options.hidden).batch_first(true));
}

/// (N, T, F) with the first lengths[n] steps of row n in reverse and the padding left where it is.
/// Its own inverse.
at::Tensor reversed(const at::Tensor& steps, const at::Tensor& lengths) {
  const at::Tensor step = at::arange(steps.size(1), lengths.options()).unsqueeze(0);
  const at::Tensor mirrored = lengths.unsqueeze(1) - 1 - step;
  const at::Tensor source = at::where(mirrored >= 0, mirrored, step);
  return steps.gather(1, source.unsqueeze(2).expand_as(steps));
}

}  // namespace

LSTMClassifierImpl::LSTMClassifierImpl(const LSTMClassifierOptions& options) : options_(options) {
  constexpr std::string_view kWhere = "models.LSTMClassifier";
  require_positive(kWhere, "vocabulary", options.vocabulary);
  require_positive(kWhere, "embedding", options.embedding);
  require_positive(kWhere, "hidden", options.hidden);
  require_positive(kWhere, "outputs", options.outputs);
  LSTMClassifierImpl::reset();
}

void LSTMClassifierImpl::reset() {
  const LSTMClassifierOptions& options = options_;
  embedding_ =
      register_module("embedding", torch::nn::Embedding(options.vocabulary, options.embedding));
  forward_lstm_ = register_module("lstm", lstm(options));
  if (options.bidirectional) backward_lstm_ = register_module("backward_lstm", lstm(options));
  const int64_t directions = options.bidirectional ? 2 : 1;
  classifier_ = register_module("classifier",
                                torch::nn::Linear(directions * options.hidden, options.outputs));
}

at::Tensor LSTMClassifierImpl::pooled(const at::Tensor& outputs, const at::Tensor& lengths) const {
  if (options_.pool == Pool::last) {
    const at::Tensor last = (lengths - 1).view({-1, 1, 1}).expand({-1, 1, outputs.size(2)});
    return outputs.gather(1, last).squeeze(1);
  }
  const at::Tensor step = at::arange(outputs.size(1), lengths.options()).unsqueeze(0);
  const at::Tensor padding = (step >= lengths.unsqueeze(1)).unsqueeze(2);
  if (options_.pool == Pool::max)
    return outputs.masked_fill(padding, -std::numeric_limits<double>::infinity()).amax(1);
  const at::ScalarType dtype = outputs.scalar_type();
  const at::Tensor sum =
      outputs.masked_fill(padding, 0)
          .sum(1, /*keepdim=*/false,
               at::promote_types(dtype, at::kFloat));  // hundreds of 16-bit numbers
  return (sum / lengths.unsqueeze(1)).to(dtype);
}

at::Tensor LSTMClassifierImpl::forward(const at::Tensor& tokens, const at::Tensor& lengths) {
  const at::Tensor valid =
      lengths.defined() ? lengths.to(tokens.device(), at::kLong, /*non_blocking=*/true).clamp_min(1)
                        : at::full({tokens.size(0)}, tokens.size(1), tokens.options());
  const at::Tensor embedded = embedding_->forward(tokens);
  at::Tensor result = pooled(std::get<0>(forward_lstm_->forward(embedded)), valid);
  if (backward_lstm_) {
    // Read backwards, the last output is at the first token; over its own direction that is again
    // the last step.
    const at::Tensor outputs = std::get<0>(backward_lstm_->forward(reversed(embedded, valid)));
    result = at::cat({result, pooled(outputs, valid)}, 1);
  }
  return classifier_->forward(result);
}

ModelInfo lstm_model() {
  using Options = LSTMClassifierOptions;
  static const OwnSettings<Options> own(
      {}, {{.setting = values::one_of<Options, Pool>(
                "pool", &Options::pool,
                {{"last", Pool::last}, {"mean", Pool::mean}, {"max", Pool::max}},
                "pooling of the outputs over a text: last, mean or max"),
            .decides = Decides::result},
           {.setting = values::flag("bidirectional", &Options::bidirectional,
                                    "a second LSTM reads the text backwards")},
           {.setting = values::whole("embedding", &Options::embedding, 1,
                                     "width of the word embedding", values::kMostFeatures)},
           {.setting = values::whole("hidden", &Options::hidden, 1, "width of the hidden state",
                                     values::kMostFeatures)}});
  return {.name = "lstm",
          .title = "embedding, one LSTM layer, pooling, one linear layer",
          .reads = data::Kind::texts,
          .make =
              [](const ModelOptions& given) {
                Options options = own.read(given.settings);
                options.vocabulary = given.vocabulary.value_or(options.vocabulary);
                const int64_t classes = given.classes.value_or(2);
                require_positive("models.LSTMClassifier", "classes", classes);
                options.outputs = classes > 2 ? classes : 1;
                return train::network(LSTMClassifier(options));
              },
          .settings = own.over_texts(),
          .pictures = std::nullopt,
          .one_logit_for_two_classes = true};
}

}  // namespace demi::models
