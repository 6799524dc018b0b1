// Twenty steps of an MLP and of a GPT beside torchao's emulated training, whose losses and weights
// tests/fixtures/quantized/train.py has written. It says why sums are FP64 here.
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "demi/core/source_dir_testing.h"
#include "demi/quantization/layers.h"

namespace demi::quantization {
namespace {

constexpr std::int64_t kRows = 64, kBatches = 4, kSketches = 4;
constexpr std::int64_t kBlocks = 4, kWidth = 64, kHeads = 2, kTokens = 32, kSequences = 4,
                       kVocabulary = 64;
constexpr std::uint32_t kData = 1000, kSigns = 2000;
constexpr double kTolerance = 1e-5;

// The numbers of train.py.

std::uint32_t mixed(std::uint32_t word) {
  word = (word ^ (word >> 16)) * 0x85EBCA6Bu;
  word = (word ^ (word >> 13)) * 0xC2B2AE35u;
  return word ^ (word >> 16);
}

std::uint32_t word_of(std::uint32_t number, std::int64_t i) {
  return mixed(static_cast<std::uint32_t>(i) + mixed(number + 1));
}

at::Tensor uniform(std::uint32_t number, std::vector<std::int64_t> sizes, double bound) {
  at::Tensor all = at::empty(sizes);
  auto* data = all.data_ptr<float>();
  for (std::int64_t i = 0; i < all.numel(); ++i) {
    const float grid = static_cast<float>(word_of(number, i) >> 8) * 0x1p-23F - 1.0F;
    data[i] = grid * static_cast<float>(bound);
  }
  return all;
}

/// The sum of all elements with signs of which each sketch has its own.
double sketched(const at::Tensor& tensor, std::int64_t sketch) {
  const at::Tensor flat = tensor.to(at::kDouble).contiguous();
  const double* data = flat.data_ptr<double>();
  double sum = 0;
  for (std::int64_t i = 0; i < flat.numel(); ++i)
    sum += (word_of(kSigns + static_cast<std::uint32_t>(sketch), i) & 1) ? data[i] : -data[i];
  return sum;
}

class Unheard : public c10::WarningHandler {
  void process(const c10::Warning& /*warning*/) override {}
};

/// While it lives, FP32 products of matrices are summed in FP64 and rounded once.
class ExactProducts {
 public:
  ExactProducts() : library_(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, 0) {
    Unheard unheard;  // that LibTorch's own product is replaced
    const c10::WarningUtils::WarningHandlerGuard guard(&unheard);
    library_.impl("mm", [](const at::Tensor& a, const at::Tensor& b) {
      const auto wide = [](const at::Tensor& t) { return t.to(at::kDouble).unsqueeze(0); };
      return at::bmm(wide(a), wide(b)).squeeze(0).to(a.scalar_type());
    });
  }

 private:
  torch::Library library_;
};

struct Batch {
  at::Tensor input, labels;
};

/// A network of FP64 whose converted layers are linear().
class Network {
 public:
  explicit Network(std::string_view recipe) : recipe_(parse_recipe(recipe)) {}
  virtual ~Network() = default;
  virtual at::Tensor operator()(const at::Tensor& input) const = 0;

  std::vector<std::pair<std::string, at::Tensor>> parameters;  // in train.py's order

 protected:
  at::Tensor add(const std::string& name, const at::Tensor& fp32) {
    const at::Tensor parameter = fp32.to(at::kDouble).requires_grad_();
    parameters.emplace_back(name, parameter);
    return parameter;
  }
  at::Tensor add_matrix(const std::string& name, std::int64_t rows, std::int64_t columns,
                        double bound = 0) {
    if (bound == 0) bound = std::pow(static_cast<double>(columns), -0.5);
    return add(name,
               uniform(static_cast<std::uint32_t>(parameters.size()), {rows, columns}, bound));
  }
  std::function<at::Tensor(const at::Tensor&)> add_linear(const std::string& name, std::int64_t in,
                                                          std::int64_t out, bool has_bias) {
    const at::Tensor weight = add_matrix(name + ".weight", out, in);
    const at::Tensor bias = has_bias ? add(name + ".bias", at::zeros({out})) : at::Tensor();
    const auto how = std::make_shared<QuantizedWeight>(
        recipe_, 0, std::numeric_limits<std::int64_t>::max(), std::make_shared<RecipeRun>());
    return [=](const at::Tensor& x) {
      const at::Tensor narrow_bias = bias.defined() ? bias.to(at::kFloat) : bias;
      return linear(x.to(at::kFloat), weight.to(at::kFloat), narrow_bias, how, at::kFloat)
          .to(at::kDouble);
    };
  }
  std::function<at::Tensor(const at::Tensor&)> add_norm(const std::string& name) {
    const at::Tensor weight = add(name + ".weight", at::ones({kWidth})),
                     bias = add(name + ".bias", at::zeros({kWidth}));
    return [=](const at::Tensor& x) { return at::layer_norm(x, {kWidth}, weight, bias); };
  }

 private:
  const Recipe& recipe_;
};

class Mlp : public Network {
 public:
  explicit Mlp(std::string_view recipe) : Network(recipe) {
    first_ = add_linear("first", 64, 128, /*has_bias=*/true);
    second_ = add_linear("second", 128, 64, /*has_bias=*/true);
    head_ = add_matrix("head.weight", 10, 64);
    head_bias_ = add("head.bias", at::zeros({10}));
  }
  at::Tensor operator()(const at::Tensor& x) const override {
    return at::linear(at::relu(second_(at::relu(first_(x)))), head_, head_bias_);
  }
  static Batch batch(std::int64_t step) {
    const auto number = kData + 2 * static_cast<std::uint32_t>(step % kBatches);
    const at::Tensor labels = at::empty({kRows}, at::kLong);
    for (std::int64_t i = 0; i < kRows; ++i) labels[i] = word_of(number + 1, i) % 10;
    const at::Tensor powers = at::exp2((at::arange(kRows).remainder(5) - 2).unsqueeze(1) +
                                       (at::arange(64).remainder(7) - 3).unsqueeze(0));
    return {uniform(number, {kRows, 64}, 1) * powers.to(at::kFloat), labels};
  }

 private:
  std::function<at::Tensor(const at::Tensor&)> first_, second_;
  at::Tensor head_, head_bias_;
};

class Gpt : public Network {
 public:
  explicit Gpt(std::string_view recipe) : Network(recipe) {
    tokens_ = add_matrix("tokens.weight", kVocabulary, kWidth, 0.125);
    positions_ = add_matrix("positions.weight", kTokens, kWidth, 0.125);
    for (std::int64_t i = 0; i < kBlocks; ++i) {
      const std::string name = "blocks." + std::to_string(i) + ".";
      Block& block = blocks_.emplace_back();
      block.norm1 = add_norm(name + "norm1");
      block.qkv = add_linear(name + "qkv", kWidth, 3 * kWidth, false);
      block.projection = add_linear(name + "projection", kWidth, kWidth, false);
      block.norm2 = add_norm(name + "norm2");
      block.wide = add_linear(name + "wide", kWidth, 4 * kWidth, false);
      block.narrow = add_linear(name + "narrow", 4 * kWidth, kWidth, false);
    }
    norm_ = add_norm("norm");
    head_ = add_matrix("head.weight", kVocabulary, kWidth);
  }
  at::Tensor operator()(const at::Tensor& input) const override {
    at::Tensor x = at::embedding(tokens_, input) + positions_;
    for (const Block& block : blocks_) {
      x = x + block.projection(attention(block.qkv(block.norm1(x))));
      x = x + block.narrow(at::gelu(block.wide(block.norm2(x))));
    }
    return at::linear(norm_(x), head_).flatten(0, 1);
  }
  static Batch batch(std::int64_t step) {
    const at::Tensor sequence = at::empty({kSequences, kTokens + 1}, at::kLong);
    for (std::int64_t n = 0; n < kSequences; ++n) {
      const auto drawn = [&](std::int64_t i) -> std::int64_t {
        return word_of(kData + static_cast<std::uint32_t>(step % kBatches), n * (kTokens + 3) + i);
      };
      for (std::int64_t t = 0; t <= kTokens; ++t) {
        const std::int64_t noise = drawn(2 + t), next = drawn(0) + (1 + drawn(1) % 7) * t;
        sequence[n][t] = (noise % 8 == 0 ? noise / 8 : next) % kVocabulary;
      }
    }
    return {sequence.narrow(1, 0, kTokens), sequence.narrow(1, 1, kTokens).flatten()};
  }

 private:
  struct Block {
    std::function<at::Tensor(const at::Tensor&)> norm1, qkv, projection, norm2, wide, narrow;
  };

  static at::Tensor attention(const at::Tensor& qkv) {  // (N, T, 3 C)
    std::vector<at::Tensor> parts = qkv.chunk(3, 2);
    for (at::Tensor& part : parts)
      part = part.reshape({kSequences, kTokens, kHeads, kWidth / kHeads}).transpose(1, 2);
    const at::Tensor later = at::ones({kTokens, kTokens}, at::kBool).triu(1);
    const at::Tensor scores =
        (parts[0].matmul(parts[1].transpose(2, 3)) * std::pow(kWidth / kHeads, -0.5))
            .masked_fill(later, -std::numeric_limits<double>::infinity());
    return scores.softmax(3).matmul(parts[2]).transpose(1, 2).reshape(
        {kSequences, kTokens, kWidth});
  }

  at::Tensor tokens_, positions_, head_;
  std::vector<Block> blocks_;
  std::function<at::Tensor(const at::Tensor&)> norm_;
};

Batch outlier(std::int64_t step) {
  Batch batch = Mlp::batch(step);
  batch.input[5][7] = 3000;
  return batch;
}

Batch zero_rows(std::int64_t step) {
  Batch batch = Mlp::batch(step);
  batch.input[3].zero_();
  batch.input.select(1, 9).zero_();
  return batch;
}

/// A line's numbers by its first three words.
using Lines = std::map<std::array<std::string, 3>, std::vector<double>>;

Lines fixture() {
  std::ifstream file(source_dir() / "tests/fixtures/quantized/training.txt");
  Lines lines;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::array<std::string, 3> key;
    words >> key[0] >> key[1] >> key[2];
    std::vector<double>& numbers = lines[key];
    for (double number = 0; words >> number;) numbers.push_back(number);
  }
  return lines;
}

/// What train.py would have written.
Lines trained(const std::string& recipe, const std::string& name, std::int64_t steps) {
  const ExactProducts exact_products;
  std::unique_ptr<Network> network;
  std::function<Batch(std::int64_t)> batch = &Mlp::batch;
  if (name == "gpt") {
    network = std::make_unique<Gpt>(recipe);
    batch = &Gpt::batch;
  } else {
    network = std::make_unique<Mlp>(recipe);
    if (name == "outlier") batch = &outlier;
    if (name == "zero-rows") batch = &zero_rows;
  }
  std::vector<at::Tensor> parameters, before;
  for (const auto& [_, parameter] : network->parameters) {
    parameters.push_back(parameter);
    before.push_back(parameter.detach().clone());
  }
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (steps == 1)
    optimizer = std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(1));
  else
    optimizer = std::make_unique<torch::optim::AdamW>(
        parameters,
        torch::optim::AdamWOptions(1e-3).betas({0.9, 0.95}).eps(1e-5).weight_decay(0.1));
  Lines lines;
  std::vector<double>& losses = lines[{recipe, name, "loss"}];
  for (std::int64_t step = 0; step < steps; ++step) {
    const auto [input, labels] = batch(step);
    const at::Tensor x = input.is_floating_point() ? input.to(at::kDouble) : input;
    const at::Tensor loss = at::cross_entropy_loss((*network)(x), labels);
    optimizer->zero_grad();
    loss.backward();
    optimizer->step();
    losses.push_back(loss.item<double>());
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor change = parameters[i].detach() - before[i];
    std::vector<double>& numbers = lines[{recipe, name, network->parameters[i].first}];
    for (std::int64_t sketch = 0; sketch < kSketches; ++sketch)
      numbers.push_back(sketched(change, sketch));
  }
  return lines;
}

double norm(const std::vector<double>& numbers) {
  return std::sqrt(std::inner_product(numbers.begin(), numbers.end(), numbers.begin(), 0.0));
}

/// Of two lines, relative to the first's norm.
double difference(const std::vector<double>& truth, const std::vector<double>& other) {
  if (truth.size() != other.size()) return INFINITY;
  std::vector<double> less(truth.size());
  for (std::size_t i = 0; i < less.size(); ++i) less[i] = truth[i] - other[i];
  return norm(less) / (norm(truth) + 1e-30);
}

class TrainingPeers : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { at::set_num_threads(1); }  // matrices too small to share
  void TearDown() override { at::set_num_threads(threads_); }

 private:
  const int threads_ = at::get_num_threads();
};

INSTANTIATE_TEST_SUITE_P(Recipes, TrainingPeers, ::testing::Values("fp8", "fp8:rowwise", "mxfp8"),
                         [](const auto& one) {
                           std::string name = one.param;
                           for (char& c : name)
                             if (c == ':') c = '_';
                           return name;
                         });

void expect_torchaos(const std::string& recipe, const std::string& network, std::int64_t steps) {
  const Lines theirs = fixture(), ours = trained(recipe, network, steps);
  std::size_t seen = 0;
  for (const auto& [key, numbers] : theirs) {
    if (key[0] != recipe || key[1] != network) continue;
    ++seen;
    ASSERT_TRUE(ours.contains(key)) << key[2];
    const std::vector<double>& own = ours.at(key);
    EXPECT_LT(difference(numbers, own), kTolerance) << network << ' ' << key[2];
    if (key[2] != "loss") continue;
    ASSERT_EQ(own.size(), static_cast<std::size_t>(steps));
    for (std::size_t step = 0; step < own.size(); ++step)
      EXPECT_NEAR(own[step], numbers[step], kTolerance * numbers[step]) << network << ' ' << step;
  }
  EXPECT_EQ(seen, ours.size());
}

TEST_P(TrainingPeers, TwentyStepsOfAnMlpAreTorchaos) { expect_torchaos(GetParam(), "mlp", 20); }

TEST_P(TrainingPeers, TwentyStepsOfAGptAreTorchaos) { expect_torchaos(GetParam(), "gpt", 20); }

TEST_P(TrainingPeers, GradientsOfAnOutlierAreTorchaos) {
  expect_torchaos(GetParam(), "outlier", 1);
}

TEST_P(TrainingPeers, GradientsOfRowsOfZerosAreTorchaos) {
  expect_torchaos(GetParam(), "zero-rows", 1);
}

// Else agreement within 1e-5 would say nothing. In the MLP no row has numbers so far apart that a
// power of two for 32 neighbours differs from one for the row.
TEST(TrainingPeersOfOtherRecipes, DifferByMoreThanTheTolerance) {
  const Lines lines = fixture();
  const auto losses = [&](const std::string& recipe, const std::string& network) {
    return lines.at({recipe, network, "loss"});
  };
  EXPECT_GT(difference(losses("fp8", "mlp"), losses("mxfp8", "mlp")), 10 * kTolerance);
  EXPECT_GT(difference(losses("fp8", "gpt"), losses("mxfp8", "gpt")), 10 * kTolerance);
  EXPECT_GT(difference(losses("fp8:rowwise", "gpt"), losses("mxfp8", "gpt")), 10 * kTolerance);
}

}  // namespace
}  // namespace demi::quantization
