#include "lab/models/gpt_model.h"

#include <ATen/ATen.h>

#include <optional>
#include <utility>

#include "lab/models/entries.h"
#include "lab/models/own_settings.h"

namespace demi::models {
namespace {

using values::kMostFeatures;

const OwnSettings<GPTOptions>& settings_of_gpt() {
  using O = GPTOptions;
  static const OwnSettings<O> all(
      {.width = 100, .layers = 3, .heads = 4},
      {{.setting = values::whole("depth", &O::layers, 1, "number of blocks", 10'000),
        .key = "layers"},
       {.setting = values::whole("embedding", &O::width, 1, "width", kMostFeatures)},
       {.setting = values::whole("heads", &O::heads, 1, "heads of attention", kMostFeatures),
        .decides = Decides::result},
       {.setting = values::whole(
            "key-heads", &O::key_heads, 0,
            "heads of keys and values, which heads share (a divisor of --heads); 0: as many",
            kMostFeatures)},
       {.setting = values::whole("feed-forward", &O::hidden, 0,
                                 "width within the feed-forward part; 0: 4 times the width, in "
                                 "llama 8/3 of it",
                                 kMostFeatures)},
       {.setting = values::one_of<O, GPTForm>(
            "block", &O::form,
            {{"gpt2", GPTForm::gpt2}, {"llama", GPTForm::llama}, {"nanochat", GPTForm::nanochat}},
            "gpt2 (learned positions, LayerNorm, GELU, tied head), llama (rotary positions, "
            "RMSNorm, SwiGLU) or nanochat (llama's with squared ReLU, QK-norm, capped logits)"),
        .decides = Decides::result},
       {.setting =
            values::flag("bias", &O::bias, "biases of linear layers and norms, of --block gpt2"),
        .counts = [](const O& o) { return o.form == GPTForm::gpt2; },
        .counts_if = "with --block gpt2"},
       {.setting = values::real("dropout", &O::dropout, 0, 0.999,
                                "share of embeddings, attention weights and what each part adds "
                                "that is zeroed"),
        .decides = Decides::training},
       {.setting = values::one_of<O, std::optional<bool>>(
            "tied-head", &O::tied_head, {{"auto", std::nullopt}, {"on", true}, {"off", false}},
            "the head is the embedding: on, off, or auto (in --block gpt2)")},
       {.setting = values::real("norm-eps", &O::eps, 0, 1, "what norms add to the variance"),
        .decides = Decides::result},
       {.setting = values::real("rope-theta", &O::rope_theta, 1, 1e12,
                                "base of rotary positions, of --block llama and nanochat"),
        .decides = Decides::result,
        .counts = [](const O& o) { return o.form != GPTForm::gpt2; },
        .counts_if = "with --block llama or nanochat"}});
  return all;
}

// Logits as losses and metrics take them: the classes are the second dimension.
train::Network make_gpt(const ModelOptions& given) {
  GPT model(gpt_options(given));
  train::Network network;
  network.module = model.ptr();
  network.forward = [model](const data::Batch& batch) mutable {
    return model->forward(batch.input).transpose(1, 2);
  };
  network.loss = [model](const data::Batch& batch, double label_smoothing) mutable {
    auto [loss, right] = model->loss_and_right(batch.input, batch.target, label_smoothing);
    return train::OwnLoss{std::move(loss), std::move(right)};
  };
  return network;
}

}  // namespace

GPTOptions gpt_options(const ModelOptions& given) {
  GPTOptions options = settings_of_gpt().read(given.settings);
  options.vocabulary = given.vocabulary.value_or(options.vocabulary);
  options.context = given.context.value_or(options.context);
  options.recompute = given.recompute;
  return options;
}

values::Texts gpt_settings(GPTOptions options) {
  if (options.key_heads == options.heads) options.key_heads = 0;
  GPTOptions usual = options;
  usual.hidden = 0;
  if (options.hidden == hidden_width(usual)) options.hidden = 0;
  if (options.tied_head == (options.form == GPTForm::gpt2)) options.tied_head.reset();
  return settings_of_gpt().write(options);
}

ModelInfo gpt_model() {
  return {.name = "gpt",
          .title = "a transformer that predicts the next token",
          .reads = data::Kind::tokens,
          .make = make_gpt,
          .settings = settings_of_gpt().over_texts(),
          .pictures = std::nullopt,
          .head = "",
          .recomputes = true,
          .has_second_derivative = false,
          .training_flop = [](const ModelOptions& given) {
            const GPTOptions options = gpt_options(given);
            return training_flop(options, options.context);
          }};
}

}  // namespace demi::models
