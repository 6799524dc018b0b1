#include "lab/generate/generate.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "demi/core/error.h"
#include "demi/core/flush_subnormals.h"
#include "demi/loop/region.h"

namespace demi::generate {
namespace {

void check_options(const Options& options) {
  check(options.sampling);
  const auto require_least = [](std::string_view option, int64_t value, int64_t least) {
    if (value < least)
      refuse({.where = option,
              .what = "out of range",
              .seen = fmt::to_string(value),
              .accepted = fmt::format("{} or more", least)});
  };
  require_least("--length", options.length, 1);
  require_least("sample", options.sample, 0);
}

/// The network's logits for the token after a text that grows.
class Reader {
 public:
  Reader(const Model& model, bool keeps)
      : model_(model), network_(model.network), keeps_(keeps), cache_(network_->new_cache()) {}

  std::vector<float> logits_after(std::span<const int32_t> text) {
    const auto context = static_cast<std::size_t>(model_.context());
    const bool is_beyond = text.size() > context;
    if (is_beyond) text = text.last(context);
    if (is_beyond || !keeps_)
      for (nn::KeyValueCache& layer : cache_) layer.clear();
    const auto kept = static_cast<std::size_t>(cache_.front().tokens());
    const at::Tensor logits =
        network_->next(tensor_of(text.subspan(kept)), cache_).to(at::kCPU, at::kFloat).contiguous();
    const auto* first = logits.const_data_ptr<float>();
    return {first, first + model_.vocabulary()};
  }

 private:
  at::Tensor tensor_of(std::span<const int32_t> tokens) const {
    at::Tensor row = at::empty({1, std::ssize(tokens)}, at::kLong);
    std::ranges::copy(tokens, row.mutable_data_ptr<int64_t>());
    return row.to(model_.run.device);
  }

  const Model& model_;
  models::GPT network_;
  bool keeps_;
  models::GPTImpl::Cache cache_;
};

}  // namespace

void write(const Model& model, std::span<const int32_t> prompt, const Options& options,
           const TokenDone& done) {
  check_options(options);
  if (prompt.empty())
    refuse({.where = "generate.write",
            .what = "the prompt has no tokens",
            .seen = "none",
            .accepted = "1 or more: a token is drawn from those before it"});
  const settings::Resolved& run = model.run;
  const at::NoGradGuard no_grad;
  const BackendsGuard backends(loop::backends_in(run.spec.precision, run.backends));
  const FlushSubnormals flush(run.config.flush_subnormals && run.device.is_cpu());
  const Autocast region = loop::region_of(run.spec.precision, run.device, run.op_policy);
  Reader reader(model, options.cache);
  std::vector<int32_t> text(prompt.begin(), prompt.end());
  for (int64_t i = 0; i < options.length; ++i) {
    const std::vector<float> logits = reader.logits_after(text);
    text.push_back(draw(logits, options.sampling, options.sample, std::ssize(text)));
    if (!done(text.back())) return;
  }
}

}  // namespace demi::generate
