#include "lab/predict/predict.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "demi/core/error.h"
#include "demi/data/prefetch_loader.h"
#include "demi/train/evaluate.h"
#include "lab/data/picture.h"
#include "lab/data/text_loader.h"
#include "lab/data/text_set.h"
#include "lab/models/imported.h"
#include "lab/models/registry.h"
#include "lab/predict/older_file.h"
#include "lab/predict/picture_loader.h"
#include "lab/predict/text_numbers.h"
#include "lab/workload/model_data.h"
#include "lab/workload/network_place.h"
#include "lab/workload/saved_network.h"

namespace demi::predict {
namespace {

namespace fs = std::filesystem;

void require_range(const char* option, int64_t value, int64_t least, int64_t most,
                   const std::string& accepted) {
  if (value >= least && value <= most) return;
  throw UsageError({.where = option,
                    .what = "out of range",
                    .seen = std::to_string(value),
                    .accepted = accepted});
}

int64_t top_k_of(int64_t asked, int64_t classes) {
  constexpr int64_t kUsual = 3;
  if (asked == 0) return std::min(kUsual, classes);
  require_range("--top-k", asked, 1, classes, fmt::format("1 to {}, the model's classes", classes));
  return asked;
}

// (N, C) FP32; of one logit for two classes both.
at::Tensor probabilities(const at::Tensor& output, std::size_t classes) {
  const at::Tensor logits = output.to(at::kFloat).view({output.size(0), -1});
  if (logits.size(1) == 1 && classes == 2) {
    const at::Tensor second = logits.sigmoid();
    return at::cat({1 - second, second}, 1).cpu();
  }
  return logits.softmax(1).cpu();
}

std::vector<Likely> likeliest_of(std::span<const float> row, int64_t top_k) {
  std::vector<int64_t> order(row.size());
  std::iota(order.begin(), order.end(), 0);
  const auto value = [&](int64_t number) { return row[static_cast<std::size_t>(number)]; };
  std::partial_sort(order.begin(), order.begin() + top_k, order.end(), [&](int64_t a, int64_t b) {
    return value(a) != value(b) ? value(a) > value(b) : a < b;
  });
  std::vector<Likely> all;
  for (int64_t i = 0; i < top_k; ++i) {
    const int64_t number = order[static_cast<std::size_t>(i)];
    all.push_back({number, double{value(number)}});
  }
  return all;
}

Prediction prediction_of(std::size_t input, std::span<const float> row, int64_t top_k,
                         Counts& counts) {
  if (std::ranges::all_of(row, [](float p) { return std::isfinite(p); }))
    return {.input = input, .likeliest = likeliest_of(row, top_k)};
  ++counts.not_finite;
  return {.input = input, .error = "the model's output is NaN or Inf"};
}

void count(Counts& counts, const Prediction& one) {
  ++counts.inputs;
  if (!one.error.empty()) ++counts.errors;
}

// Each row of what evaluation computes, with the place of its input.
using RowDone = std::function<void(std::size_t input, std::span<const float> row)>;

train::Metric rows_of(std::size_t classes, RowDone done) {
  return {
      .name = "rows",
      .sum = [classes, done = std::move(done)](const at::Tensor& output, const at::Tensor& target) {
        const at::Tensor all = probabilities(output, classes).contiguous();
        const at::Tensor places = target.cpu();
        const auto width = static_cast<std::size_t>(all.size(1));
        const float* row = all.const_data_ptr<float>();
        for (int64_t i = 0; i < all.size(0); ++i, row += width)
          done(static_cast<std::size_t>(places.const_data_ptr<int64_t>()[i]), {row, width});
        return at::zeros({});
      }};
}

// The network is asked by evaluation itself, whose loss is of no interest.
void ask(const Model& model, const data::Loader& loader, RowDone done) {
  const settings::Resolved& run = model.run;
  train::evaluate(model.network, loader,
                  {.precision = run.spec.precision,
                   .device = run.device,
                   .op_policy = run.op_policy,
                   .loss = [](const at::Tensor&, const at::Tensor&) { return at::zeros({}); },
                   .metrics = {rows_of(model.data->classes.size(), std::move(done))},
                   .flush_subnormals = run.config.flush_subnormals,
                   .backends = run.backends});
}

void say_what_was_changed(const PictureInputs& pictures, const workload::DataShape& shape,
                          const std::function<void(const std::string&)>& say) {
  if (pictures.scaled() > 0)
    say(fmt::format(
        "{} of {} pictures had another size: the shorter side was scaled to {}, and the "
        "middle cut",
        pictures.scaled(), pictures.examples(), shape.size));
  if (pictures.made_grey() > 0)
    say(
        fmt::format("{} of {} pictures had colours, and the model reads grey: 0.299 R + 0.587 G + "
                    "0.114 B",
                    pictures.made_grey(), pictures.examples()));
}

}  // namespace

bool lacks_words(const workload::ModelTexts& texts) {
  return !texts.description && models::find_model(texts.config.model).reads == data::Kind::texts;
}

namespace {

[[noreturn]] void refuse_kind(const fs::path& file, data::Kind kind) {
  const std::string name(name_of(kind));
  throw UsageError(
      {.where = "predict",
       .what = "the model of " + file.string() + " reads " + name + ", which have no classes here",
       .seen = name,
       .accepted = "models of pictures and of texts",
       .advice = "load its weights in a program of yours (docs/reference/models.md)"});
}

std::shared_ptr<const workload::ModelData> data_of(const workload::ModelFile& file,
                                                   const fs::path& path) {
  const workload::ModelTexts& texts = file.texts;
  const data::Kind kind = texts.description ? texts.description->input.kind
                                            : models::find_model(texts.config.model).reads;
  if (kind == data::Kind::rows || kind == data::Kind::tokens) refuse_kind(path, kind);
  if (texts.description) return workload::data_of_model(texts, path);
  if (kind == data::Kind::pictures) return data_of_older_file(texts.config, file.weights);
  throw DataError({.where = "predict",
                   .what = path.string() + " is of an older demi and has no words",
                   .seen = "no demi.vocabulary",
                   .accepted = "a file that has its words",
                   .advice = "train again: that writes a new file"});
}

void require_decoders(const Model& model) {
  if (model.data->input.kind == data::Kind::pictures && data::picture_formats().empty())
    throw UsageError({.where = "predict",
                      .what = "this build of demi cannot decode pictures",
                      .seen = "no decoder at all",
                      .accepted = "a build with libjpeg and libpng",
                      .advice = "install libjpeg-dev and libpng-dev, configure and build again"});
}

Counts predict_pictures(const Model& model, std::span<const Input> inputs,
                        const std::function<void(const Prediction&)>& done,
                        const std::function<void(const std::string&)>& say) {
  require_decoders(model);
  const auto pictures =
      std::make_shared<PictureInputs>(inputs, *model.data, model.batch_size, model.run.device);
  std::shared_ptr<const data::Loader> loader = pictures;
  if (model.workers > 0)
    loader = std::make_shared<data::PrefetchLoader>(
        pictures,
        data::PrefetchOptions{
            .workers = model.workers, .depth = 2 * model.workers, .device = model.run.device});
  Counts counts;
  ask(model, *loader, [&](std::size_t input, std::span<const float> row) {
    Prediction one{.input = input, .error = pictures->error(input)};
    if (one.error.empty()) one = prediction_of(input, row, model.top_k, counts);
    count(counts, one);
    done(one);
  });
  say_what_was_changed(*pictures, model.data->shape, say);
  return counts;
}

Counts predict_texts(const Model& model, std::span<const Input> inputs,
                     const std::function<void(const Prediction&)>& done) {
  std::vector<Prediction> all(inputs.size());
  const data::TextSet texts = number_texts(inputs, *model.data->vocabulary, all);
  Counts counts;
  if (texts.size() > 0) {
    const data::TextLoader loader(
        texts, std::max<int64_t>(std::ssize(inputs), 3),
        {.order = {.batch_size = model.batch_size}, .max_length = model.data->input.max_length});
    ask(model, loader, [&](std::size_t input, std::span<const float> row) {
      all[input] = prediction_of(input, row, model.top_k, counts);
    });
  }
  for (const Prediction& one : all) {
    count(counts, one);
    done(one);
  }
  return counts;
}

void fuse(settings::Config& config, const std::string& asked, const fs::path& path) {
  if (!models::is_network_file(config.model))
    throw UsageError({.where = "--fuse",
                      .what = "the model of " + path.string() + " is not of a .pt2 file",
                      .seen = asked,
                      .advice = "leave it out"});
  settings::set(config, "fuse", asked, "--fuse");
}

}  // namespace

Model load_model(const fs::path& path, const Options& options) {
  require_range("--batch-size", options.batch_size, 0, 1 << 20, "1 to 1048576");
  require_range("--workers", options.workers, 0, 1024, "0 to 1024");
  workload::ModelFile file = workload::read_model_file(path);
  std::string note = workload::find_network(file.texts, path, options.graph);
  if (!options.fuse.empty()) fuse(file.texts.config, options.fuse, path);
  Model model{.run = workload::resolve_saved(file.texts.config, options.precision, options.device),
              .data = data_of(file, path),
              .is_older = !file.texts.description,
              .note = std::move(note),
              .workers = options.workers};
  model.batch_size = options.batch_size > 0 ? options.batch_size : model.run.config.test_batch_size;
  model.top_k = top_k_of(options.top_k, std::ssize(model.data->classes));
  model.network = workload::saved_network(
      model.run, workload::make_network(model.run.config, model.data->shape, 0, model.run.device),
      file.weights, file.texts.steps);
  return model;
}

Counts predict(const Model& model, std::span<const Input> inputs,
               const std::function<void(const Prediction&)>& done,
               const std::function<void(const std::string&)>& say) {
  if (model.data->input.kind == data::Kind::pictures)
    return predict_pictures(model, inputs, done, say);
  // Texts at once: enough that sorting by length pays, and few enough for a long stream.
  constexpr std::size_t kTexts = 4096;
  Counts counts;
  for (std::size_t start = 0; start < inputs.size(); start += kTexts) {
    const auto part = inputs.subspan(start, std::min(kTexts, inputs.size() - start));
    const Counts more = predict_texts(model, part, [&](Prediction one) {
      one.input += start;
      done(one);
    });
    counts.inputs += more.inputs;
    counts.errors += more.errors;
    counts.not_finite += more.not_finite;
  }
  return counts;
}

}  // namespace demi::predict
