#include "lab/doctor/dimensions.h"

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "demi/imported/summary.h"
#include "lab/data/data_sets.h"
#include "lab/doctor/shape_time.h"
#include "lab/models/imported.h"
#include "lab/settings/recipe.h"
#include "lab/workload/workload.h"

namespace demi::doctor {
namespace {

constexpr int64_t kMultiple = 8;  // of 16-bit elements: tensor cores read 16 bytes at once
constexpr int64_t kGates = 4;     // of an LSTM

int64_t next_multiple(int64_t value) { return (value + kMultiple - 1) / kMultiple * kMultiple; }

/// A product and the names of its dimensions.
struct Product {
  std::string module;
  int64_t m, k, n;
  std::string k_name, n_name;
  int64_t n_per_unit;  // columns for each unit of n_name
  int64_t times = 1;
};

void check_product(const Product& p, ModelCheck& check) {
  ++check.products;
  Dimension one{.module = p.module, .m = p.m, .k = p.k, .n = p.n, .times = p.times};
  one.next_m = p.m;
  one.next_k = p.k;
  one.next_n = p.n;
  if (p.k % kMultiple != 0) {
    Dimension k = one;
    k.name = p.k_name;
    k.value = p.k;
    k.next = k.next_k = next_multiple(p.k);
    check.dimensions.push_back(k);
  }
  const int64_t units = p.n / p.n_per_unit;
  if (units % kMultiple != 0 && p.n_name != p.k_name) {
    Dimension n = one;
    n.name = p.n_name;
    n.value = units;
    n.next = next_multiple(units);
    n.next_n = n.next * p.n_per_unit;
    check.dimensions.push_back(n);
  }
}

// The next batch size whose rows are a multiple.
void check_batch(const Product& p, int64_t examples, ModelCheck& check) {
  if (p.m % kMultiple == 0) return;
  const int64_t rows_of_example = p.m / examples;
  int64_t next = examples;
  while (next * rows_of_example % kMultiple != 0) ++next;
  check.dimensions.push_back({.module = p.module,
                              .name = "batch_size",
                              .value = examples,
                              .next = next,
                              .m = p.m,
                              .k = p.k,
                              .n = p.n,
                              .next_m = next * rows_of_example,
                              .next_k = p.k,
                              .next_n = p.n,
                              .times = p.times});
}

bool is_convolution(const torch::nn::Module& module) {
  return module.as<torch::nn::Conv1dImpl>() || module.as<torch::nn::Conv2dImpl>() ||
         module.as<torch::nn::Conv3dImpl>() || module.as<torch::nn::ConvTranspose2dImpl>();
}

int64_t rows_of(const Batch& batch) { return batch.examples * batch.tokens; }

// A linear layer's rows are all tokens at once, an LSTM's those of a step.
std::vector<Product> products_of(const torch::nn::Module& module, const std::string& name,
                                 const Batch& batch) {
  if (const auto* linear = module.as<torch::nn::LinearImpl>())
    return {{name, rows_of(batch), linear->options.in_features(), linear->options.out_features(),
             "in_features", "out_features", 1}};
  if (const auto* lstm = module.as<torch::nn::LSTMImpl>()) {
    const int64_t hidden = lstm->options.hidden_size(), steps = batch.tokens * batch.words;
    return {{name, batch.examples, lstm->options.input_size(), kGates * hidden, "input_size",
             "hidden_size", kGates, steps},
            {name, batch.examples, hidden, kGates * hidden, "hidden_size", "hidden_size", kGates,
             steps}};
  }
  return {};
}

ModelCheck check_products(const std::vector<Product>& all, int64_t convolutions,
                          const Batch& batch) {
  ModelCheck check{.batch_size = batch.examples, .convolutions = convolutions};
  const Product* largest = nullptr;
  for (const Product& product : all) {
    // The task decides the last product's few outputs; they are no width to choose.
    if (&product == &all.back() && product.n / product.n_per_unit < kMultiple) {
      Product outputs = product;
      outputs.n = kMultiple * product.n_per_unit;
      check_product(outputs, check);
    } else {
      check_product(product, check);
    }
    if (!largest || product.k * product.n > largest->k * largest->n) largest = &product;
  }
  if (largest) check_batch(*largest, batch.examples, check);
  return check;
}

// The products of operations that read a weight of their own: a matrix of (out, in), or, for an
// LSTM, (4 * hidden, in) and (4 * hidden, hidden).
class FileProducts {
 public:
  explicit FileProducts(const imported::FileSummary& file) {
    for (const imported::TensorSummary& tensor : file.tensors) tensors_[tensor.name] = &tensor;
  }

  std::vector<Product> of(const imported::OperationSummary& operation, const Batch& batch) const {
    std::vector<Product> products;
    const bool is_lstm = operation.op == "aten::lstm";
    if (!is_lstm && operation.op != "aten::linear") return products;
    for (const std::string& name : operation.tensors) {
      const auto found = tensors_.find(name);
      if (found == tensors_.end() || found->second->sizes.size() != 2) continue;
      const int64_t rows = found->second->sizes[0], columns = found->second->sizes[1];
      const bool is_hidden = is_lstm && rows == kGates * columns;
      const std::string_view k_name = !is_lstm    ? "in_features"
                                      : is_hidden ? "hidden_size"
                                                  : "input_size";
      products.push_back({operation.module, is_lstm ? batch.examples : rows_of(batch), columns,
                          rows, std::string(k_name), is_lstm ? "hidden_size" : "out_features",
                          is_lstm ? kGates : 1, is_lstm ? batch.tokens * batch.words : 1});
    }
    return products;
  }

 private:
  std::map<std::string, const imported::TensorSummary*> tensors_;
};

ModelCheck check_file(const imported::FileSummary& file, const Batch& batch) {
  const FileProducts products(file);
  std::vector<Product> all;
  int64_t convolutions = 0;
  for (const imported::OperationSummary& operation : file.graphs.front().operations) {
    if (operation.op.starts_with("aten::conv")) ++convolutions;
    for (Product& product : products.of(operation, batch)) all.push_back(std::move(product));
  }
  return check_products(all, convolutions, batch);
}

workload::DataShape shape_of(const settings::Config& config) {
  const data::DataSet& set = data::data_set(config.data);
  workload::DataShape shape{.channels = 3, .size = config.image_size, .classes = config.classes};
  if (set.layout == data::Layout::mnist) shape.size = 28;
  if (set.layout == data::Layout::cifar10 || set.layout == data::Layout::cifar100) shape.size = 32;
  if (!set.mean.empty()) shape.channels = static_cast<int64_t>(set.mean.size());
  if (!set.classes.empty()) shape.classes = static_cast<int64_t>(set.classes.size());
  if (set.kind == data::Kind::texts && set.classes.empty()) shape.classes = 2;
  if (set.kind == data::Kind::tokens) shape.vocabulary = 65;
  return shape;
}

}  // namespace

double Dimension::flops() const {
  return 3 * 2.0 * static_cast<double>(times) * static_cast<double>(m) * static_cast<double>(k) *
         static_cast<double>(n);
}

Batch batch_of(const settings::Config& config, int64_t batch_size) {
  Batch batch{.examples = batch_size};
  if (config.data.empty()) return batch;  // a file's alone
  const data::Kind kind = data::data_set(config.data).kind;
  if (kind == data::Kind::tokens) batch.tokens = config.context;
  if (kind == data::Kind::texts) batch.words = std::max<int64_t>(config.max_length, 1);
  return batch;
}

ModelCheck check_dimensions(const torch::nn::Module& module, const Batch& batch) {
  int64_t convolutions = 0;
  std::vector<Product> all;
  for (const auto& item : module.named_modules("", /*include_self=*/true)) {
    if (is_convolution(*item.value())) ++convolutions;
    for (const Product& product : products_of(*item.value(), item.key(), batch))
      all.push_back(product);
  }
  return check_products(all, convolutions, batch);
}

ModelCheck check_recipe(const std::string& recipe) {
  const settings::Config& config = settings::find_recipe(recipe).config;
  const Batch batch = batch_of(config, config.batch_size);
  ModelCheck check;
  if (models::is_network_file(config.model)) {
    check = check_file(models::imported_file(config.model).summary, batch);
  } else {
    const train::Network network =
        workload::make_network(config, shape_of(config), /*seed=*/0, c10::kCPU);
    check = check_dimensions(*network.module, batch);
  }
  check.recipe = recipe;
  check.model = config.model;
  return check;
}

void measure(ModelCheck& check, const std::string& dtype, c10::Device device) {
  // More rows change no rate, and the logits of 16,384 tokens over 50,257 words are 3 GB.
  constexpr int64_t kMostRows = 1024;
  for (Dimension& one : check.dimensions) {
    const int64_t less = one.m > kMostRows ? one.m / kMultiple * kMultiple - kMostRows : 0;
    const double now = product_ms(dtype, one.m - less, one.k, one.n, device);
    const double then =
        product_ms(dtype, one.next_m == one.m ? one.m - less : next_multiple(one.m - less),
                   one.next_k, one.next_n, device);
    one.speedup = now / then;
  }
}

}  // namespace demi::doctor
