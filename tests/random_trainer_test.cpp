// Random small trainings, each once by a Trainer and once by the loop that one would write by hand:
// the same weights, averages and figures. DEMI_RANDOM_PROGRAMS: how many a seed.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "demi/demi.h"

namespace demi {
namespace {

namespace F = torch::nn::functional;

enum class Body { plain, shared, tied, two_names, frozen, line, square };
enum class Targets { classes, ignored, soft, labels, pairs, column, rows };
enum class Rule { sgd, momentum, adam, demi_sgd };

constexpr const char* kBodies[] = {"plain",  "shared", "tied",   "two names",
                                   "frozen", "(N,T)",  "(N,H,W)"};
constexpr const char* kTargets[] = {"classes", "ignored", "soft",    "multi-label",
                                    "(N)",     "(N,1)",   "mse rows"};
constexpr const char* kRules[] = {"sgd", "momentum", "adam", "demi sgd"};
constexpr const char* kPrecisions[] = {"fp32", "fp64", "bf16", "fp16", "bf16-true", "fp16-true"};

/// One training.
struct Program {
  uint64_t seed = 0;
  Body body = Body::plain;
  Targets targets = Targets::classes;
  Rule rule = Rule::sgd;
  std::string precision = "fp32";
  int64_t rows = 8, batch = 3, epochs = 1, fits = 1, accumulate = 1;
  double clip = 0, ema = 0, penalty = 0;
  bool schedule = false, validation = false, own_loss = false;

  bool is_number() const { return targets >= Targets::pairs; }
  bool is_mixed() const { return precision == "bf16" || precision == "fp16"; }
  bool is_true_16() const { return precision.ends_with("-true"); }
  c10::ScalarType weights() const {
    return precision == "fp64"        ? torch::kDouble
           : precision == "bf16-true" ? torch::kBFloat16
           : precision == "fp16-true" ? torch::kHalf
                                      : torch::kFloat;
  }
  int64_t outputs() const {
    return targets == Targets::pairs || targets == Targets::column ? 1 : 3;
  }
  std::string text() const {
    std::ostringstream out;
    out << "seed " << seed << ", body " << kBodies[static_cast<int>(body)] << ", targets "
        << kTargets[static_cast<int>(targets)] << ", " << kRules[static_cast<int>(rule)] << ", "
        << precision << ", rows " << rows << ", batch " << batch << ", epochs " << epochs
        << ", fits " << fits << ", accumulate " << accumulate << ", clip " << clip << ", ema "
        << ema << ", penalty " << penalty << ", schedule " << schedule << ", validation "
        << validation << ", own loss " << own_loss;
    return out.str();
  }
};

Program drawn(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto of = [&](int64_t count) { return static_cast<int64_t>(random() % count); };
  Program p;
  p.seed = seed;
  p.body = static_cast<Body>(of(7));
  p.targets = static_cast<Targets>(of(7));
  const bool is_dense = p.body == Body::line || p.body == Body::square;
  if (is_dense && p.is_number()) p.targets = Targets::rows;
  p.rule = static_cast<Rule>(of(4));
  p.precision = kPrecisions[of(6)];
  // Adam's eps of 1e-8 is 0 in fp16, and a quotient of two underflowed moments is no update.
  if (p.precision == "fp16-true" && p.rule == Rule::adam) p.rule = Rule::momentum;
  p.rows = 1 + of(11);
  p.batch = 1 + of(5);
  p.epochs = 1 + of(2);
  p.fits = 1 + of(2);
  p.accumulate = 1 + of(3);
  p.clip = of(3) == 0 && !p.is_true_16() ? 0.1 : 0;
  p.ema = of(3) == 0 ? 0.5 : 0;
  p.penalty = of(4) == 0 && (p.precision == "fp32" || p.precision == "fp64") ? 0.1 : 0;
  p.schedule = of(2) == 0;
  p.validation = of(2) == 0;
  p.own_loss = of(5) == 0;
  return p;
}

struct NetImpl : torch::nn::Module {
  explicit NetImpl(const Program& program) : body(program.body) {
    const int64_t out = program.outputs();
    if (body == Body::line) {
      line = register_module("line", torch::nn::Conv1d(torch::nn::Conv1dOptions(4, out, 1)));
    } else if (body == Body::square) {
      square = register_module("square", torch::nn::Conv2d(torch::nn::Conv2dOptions(4, out, 1)));
    } else {
      if (body != Body::plain) first = register_module("first", torch::nn::Linear(6, 6));
      if (body == Body::shared) register_module("second", first);
      if (body == Body::frozen)
        for (at::Tensor& parameter : first->parameters()) parameter.set_requires_grad(false);
      head = register_module("head", torch::nn::Linear(6, out));
      if (body == Body::two_names) register_parameter("again", head->weight);
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    if (body == Body::line) return line(x);
    if (body == Body::square) return square(x);
    if (body == Body::plain) return head(x);
    const at::Tensor hidden = torch::tanh(first(x));
    if (body == Body::shared) return head(torch::tanh(first(hidden)));
    if (body == Body::tied) return head(F::linear(hidden, first->weight));
    return head(hidden);
  }
  Body body;
  torch::nn::Linear first{nullptr}, head{nullptr};
  torch::nn::Conv1d line{nullptr};
  torch::nn::Conv2d square{nullptr};
};
TORCH_MODULE(Net);

// Each once, as Python's parameters() has them.
std::vector<at::Tensor> parameters_of(const Net& net) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& one : net->parameters()) {
    bool known = false;
    for (const at::Tensor& other : all) known |= other.is_same(one);
    if (!known) all.push_back(one);
  }
  return all;
}

std::vector<at::Tensor> trained_of(const Net& net) {
  std::vector<at::Tensor> trained;
  for (const at::Tensor& one : parameters_of(net))
    if (one.requires_grad()) trained.push_back(one);
  return trained;
}

struct Rows {
  at::Tensor input, target;
};

Rows rows_of(const Program& p, uint64_t salt) {
  torch::manual_seed(p.seed * 7 + salt);
  std::vector<int64_t> shape{p.rows};
  std::vector<int64_t> answers{p.rows};
  if (p.body == Body::line || p.body == Body::square) {
    shape.push_back(4);
    for (int i = 0; i < (p.body == Body::line ? 1 : 2); ++i) {
      shape.push_back(2 + i);
      answers.push_back(2 + i);
    }
  } else {
    shape.push_back(6);
  }
  const int64_t out = p.outputs();
  std::vector<int64_t> of_output = answers;
  of_output.insert(of_output.begin() + 1, out);
  Rows rows{.input = torch::randn(shape), .target = {}};
  switch (p.targets) {
    case Targets::classes:
      rows.target = torch::randint(0, out, answers);
      break;
    case Targets::ignored:
      rows.target = torch::randint(0, out, answers);
      rows.target.masked_fill_(torch::rand(answers) < 0.4, -100);
      break;
    case Targets::soft:
      rows.target = torch::randn(of_output).softmax(1);
      break;
    case Targets::labels:
      rows.target = torch::randint(0, 2, of_output).to(torch::kFloat);
      break;
    case Targets::pairs:
      rows.target = torch::randn(answers);
      break;
    case Targets::column:
      rows.target = torch::randn({p.rows, 1});
      break;
    case Targets::rows:
      rows.target = torch::randn(of_output);
      break;
  }
  return rows;
}

train::Loss loss_name(const Program& p) {
  return p.is_number()                  ? train::Loss::mse
         : p.targets == Targets::labels ? train::Loss::bce_with_logits
                                        : train::Loss::cross_entropy;
}

// The mean loss, in FP32 at least, by LibTorch's functions alone.
at::Tensor loss_by_hand(const Program& p, const at::Tensor& output, const at::Tensor& target) {
  const at::Tensor out = output.scalar_type() == torch::kDouble ? output : output.to(torch::kFloat);
  const auto as_out = [&] { return target.to(out.scalar_type()).reshape(out.sizes()); };
  if (p.is_number()) return F::mse_loss(out, as_out());
  if (p.targets == Targets::labels) return F::binary_cross_entropy_with_logits(out, as_out());
  return F::cross_entropy(out, p.targets == Targets::soft ? target.to(out.scalar_type()) : target);
}

std::unique_ptr<torch::optim::Optimizer> optimizer_of(const Program& p, const Net& net,
                                                      bool by_hand) {
  const auto parameters = trained_of(net);
  if (p.rule == Rule::adam)
    return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(0.02));
  if (p.rule == Rule::demi_sgd && !by_hand)
    return std::make_unique<optim::SGD>(parameters, optim::SGDOptions(0.1));
  return std::make_unique<torch::optim::SGD>(
      parameters, torch::optim::SGDOptions(0.1).momentum(p.rule == Rule::momentum ? 0.9 : 0));
}

double rate_at(int64_t step, double base) { return base / static_cast<double>(1 + step); }

/// Right answers and those that count.
struct Score {
  double loss_sum = 0, right = 0, answers = 0;

  void add(const Program& p, double mean, const at::Tensor& output, const at::Tensor& target) {
    double count = static_cast<double>(target.size(0));
    if (p.targets == Targets::labels) {
      right += output.gt(0).eq(target.gt(0.5)).sum().item<double>();
      count = static_cast<double>(target.numel());
    } else if (!p.is_number()) {
      const at::Tensor classes = p.targets == Targets::soft ? target.argmax(1) : target;
      right += output.argmax(1).eq(classes).sum().item<double>();
      count = classes.ne(-100).sum().item<double>();
    }
    if (p.own_loss) count = static_cast<double>(target.size(0));
    if (count == 0) return;
    loss_sum += mean * count;
    answers += count;
  }
  double loss() const { return answers > 0 ? loss_sum / answers : NAN; }
};

struct Outcome {
  std::vector<at::Tensor> weights, averages;
  std::vector<double> figures;  // of each epoch: loss, accuracy, of the validation the same
  double rate = 0;
};

double accuracy_of(const Program& p, const Score& score) {
  return p.is_number() || p.own_loss || score.answers == 0 ? -1 : score.right / score.answers;
}

std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& one : tensors) result.push_back(one.detach().clone());
  return result;
}

Net net_of(const Program& p) {
  torch::manual_seed(p.seed);
  return Net(p);
}

class ByHand {
 public:
  explicit ByHand(const Program& program) : p_(program), net_(net_of(program)) {
    for (at::Tensor& one : parameters_) one.set_data(one.detach().to(p_.weights()));
    optimizer_ = optimizer_of(p_, net_, /*by_hand=*/true);
    if (p_.ema > 0)
      for (const at::Tensor& one : parameters_)
        averages_.push_back(one.detach().to(
            p_.weights() == torch::kDouble ? torch::kDouble : torch::kFloat, false, true));
  }

  Outcome run() {
    for (int64_t fit = 0; fit < p_.fits; ++fit) fit_once();
    result_.weights = copies(parameters_);
    result_.averages = averages_;
    result_.rate = optimizer_->param_groups()[0].options().get_lr();
    return result_;
  }

 private:
  at::Tensor forward(const at::Tensor& input) {
    if (p_.is_mixed()) {
      const Autocast region(torch::kCPU, p_.precision == "bf16" ? torch::kBFloat16 : torch::kHalf);
      return net_->forward(input);
    }
    return net_->forward(input.to(p_.weights()));
  }

  void set_rate(double rate) {
    if (p_.schedule) optimizer_->param_groups()[0].options().set_lr(rate);
  }

  void fit_once() {
    const double base = p_.rule == Rule::adam ? 0.02 : 0.1;
    const Rows rows = rows_of(p_, 1);
    const int64_t batches = (p_.rows + p_.batch - 1) / p_.batch;
    int64_t step = 0;
    set_rate(base);
    for (int64_t epoch = 0; epoch < p_.epochs; ++epoch) {
      Score score;
      for (int64_t b = 0; b < batches; ++b) {
        add_batch(rows, b, score);
        if ((b + 1) % p_.accumulate != 0 && b + 1 != batches) continue;
        take_step();
        set_rate(rate_at(++step, base));
      }
      result_.figures.insert(result_.figures.end(), {score.loss(), accuracy_of(p_, score)});
      if (p_.validation) validate();
    }
  }

  void add_batch(const Rows& rows, int64_t b, Score& score) {
    const int64_t start = b * p_.batch, end = std::min(start + p_.batch, p_.rows);
    const at::Tensor target = rows.target.slice(0, start, end);
    const at::Tensor output = forward(rows.input.slice(0, start, end));
    at::Tensor loss = loss_by_hand(p_, output, target);
    if (p_.penalty > 0) {
      at::Tensor squares;
      for (const at::Tensor& g :
           torch::autograd::grad({loss}, trained_of(net_), {}, true, true, true))
        if (g.defined())
          squares = squares.defined() ? squares + g.square().sum() : g.square().sum();
      loss = loss + p_.penalty * squares.sqrt();
    }
    const double mean = loss.item<double>();
    if (p_.accumulate > 1) loss = loss / static_cast<double>(p_.accumulate);
    if (p_.precision == "fp16") loss = loss * scale_;
    loss.backward();
    score.add(p_, mean, output.detach(), target);
  }

  void take_step() {
    bool finite = true;
    for (const at::Tensor& one : trained_of(net_)) {
      if (!one.grad().defined()) continue;
      if (p_.precision == "fp16") one.mutable_grad().mul_(1 / scale_);
      finite &= one.grad().isfinite().all().item<bool>();
    }
    // demi's optimizers skip a step whose gradients are no numbers, LibTorch's do with a scaler.
    const bool skips = !finite && (p_.precision == "fp16" || p_.rule == Rule::demi_sgd);
    if (!skips) {
      if (p_.clip > 0) torch::nn::utils::clip_grad_norm_(trained_of(net_), p_.clip);
      optimizer_->step();
      for (std::size_t i = 0; i < averages_.size(); ++i)
        averages_[i] += (1 - p_.ema) * (parameters_[i].detach() - averages_[i]);
    }
    if (!finite && p_.precision == "fp16") scale_ /= 2;
    optimizer_->zero_grad();
  }

  void validate() {
    const torch::NoGradGuard no_grad;
    const auto weights = copies(parameters_);
    for (std::size_t i = 0; i < averages_.size(); ++i) parameters_[i].copy_(averages_[i]);
    const Rows rows = rows_of(p_, 2);
    Score score;
    for (int64_t start = 0; start < p_.rows; start += p_.batch) {
      const int64_t end = std::min(start + p_.batch, p_.rows);
      const at::Tensor output = forward(rows.input.slice(0, start, end));
      const at::Tensor target = rows.target.slice(0, start, end);
      score.add(p_, loss_by_hand(p_, output, target).item<double>(), output, target);
    }
    for (std::size_t i = 0; i < averages_.size(); ++i) parameters_[i].copy_(weights[i]);
    result_.figures.insert(result_.figures.end(), {score.loss(), accuracy_of(p_, score)});
  }

  const Program p_;
  Net net_;
  std::vector<at::Tensor> parameters_ = parameters_of(net_), averages_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  double scale_ = 65536;
  Outcome result_;
};

Outcome by_trainer(const Program& p) {
  Net net = net_of(p);
  const auto parameters = parameters_of(net);
  TrainerOptions options{.epochs = p.epochs, .precision = parse_precision(p.precision)};
  options.accumulate = p.accumulate;
  options.clip_norm = p.clip;
  options.ema_decay = p.ema;
  options.gradient_penalty = p.penalty;
  options.give_up_after = 0;
  options.flush_subnormals = false;
  options.scaler.warn_after_skips = 0;
  options.loss = loss_name(p);
  if (p.own_loss)
    options.loss = [p](const at::Tensor& output, const at::Tensor& target) {
      return loss_by_hand(p, output, target);
    };
  if (p.schedule) options.schedule = rate_at;
  options.optimizers = {optimizer_of(p, net, /*by_hand=*/false)};
  const auto optimizer = options.optimizers[0];
  Trainer trainer(net, options);
  const Rows train = rows_of(p, 1), test = rows_of(p, 2);
  const data::TensorLoader training(train.input, train.target, {.batch_size = p.batch});
  const data::TensorLoader validation(test.input, test.target, {.batch_size = p.batch});
  Outcome result;
  for (int64_t fit = 0; fit < p.fits; ++fit)
    for (const train::EpochRecord& epoch :
         trainer.fit(training, p.validation ? &validation : nullptr).epochs) {
      result.figures.insert(result.figures.end(), {epoch.loss, epoch.accuracy.value_or(-1)});
      if (epoch.validation)
        result.figures.insert(result.figures.end(),
                              {epoch.validation->loss, epoch.validation->accuracy.value_or(-1)});
    }
  result.weights = copies(parameters);
  if (p.ema > 0) {
    trainer.swap_average();
    result.averages = copies(parameters);
    trainer.swap_average();
    for (std::size_t i = 0; i < parameters.size(); ++i)
      EXPECT_TRUE(
          torch::allclose(parameters[i].detach(), result.weights[i], 0, 0, /*equal_nan=*/true))
          << "swapped back";
  }
  result.rate = optimizer->param_groups()[0].options().get_lr();
  return result;
}

// Ours clips and steps by other instructions than LibTorch: FP32's last bits differ, and where
// 16-bit formats round the weights, now and then one of theirs.
double tolerance_of(const Program& p) {
  const bool same_ops = p.clip == 0 && p.rule != Rule::demi_sgd && p.penalty == 0;
  if (same_ops) return 0;
  return p.is_true_16() || p.is_mixed() ? 0.02 : 1e-5;
}

void expect_close(const std::vector<at::Tensor>& ours, const std::vector<at::Tensor>& by_hand,
                  double tolerance, const char* what) {
  ASSERT_EQ(ours.size(), by_hand.size());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const at::Tensor a = ours[i].to(torch::kDouble), b = by_hand[i].to(torch::kDouble);
    EXPECT_TRUE(torch::allclose(a, b, tolerance, tolerance, /*equal_nan=*/true))
        << what << " " << i << " off by " << (a - b).abs().max().item<double>();
  }
}

void expect_same(const Program& p) {
  SCOPED_TRACE(p.text());
  const Outcome hand = ByHand(p).run(), ours = by_trainer(p);
  const double tolerance = tolerance_of(p);
  expect_close(ours.weights, hand.weights, tolerance, "weight");
  // By hand, the average is a sum in another order, and the copy in place is of the weights' dtype.
  const double rounding = p.is_true_16() ? 0.01 : 1e-5;
  expect_close(ours.averages, hand.averages, std::max(tolerance, rounding), "average");
  EXPECT_EQ(ours.rate, hand.rate);
  ASSERT_EQ(ours.figures.size(), hand.figures.size());
  for (std::size_t i = 0; i < ours.figures.size(); ++i) {
    const double a = ours.figures[i], b = hand.figures[i];
    const bool is_accuracy = i % 2 == 1;
    if (is_accuracy) {
      EXPECT_LE(a, 1) << "figure " << i;
    }
    if (is_accuracy && tolerance > 0)
      continue;  // a logit that is nearly another may be the greater
    if (std::isfinite(a) || std::isfinite(b)) {
      EXPECT_NEAR(a, b, std::max(tolerance * 10, 1e-5) * std::max(1.0, std::abs(b)))
          << "figure " << i;
    }
  }
}

int64_t programs() {
  const char* given = std::getenv("DEMI_RANDOM_PROGRAMS");
  return given ? std::stoll(given) : 100;
}

class RandomTrainer : public ::testing::TestWithParam<int> {};

TEST_P(RandomTrainer, TrainsAsTheLoopByHand) {
  std::map<std::string, int> drawn_of;
  for (int64_t i = 0; i < programs(); ++i) {
    const Program p = drawn(static_cast<uint64_t>(GetParam()) * 1'000'000 + i);
    ++drawn_of[kBodies[static_cast<int>(p.body)]];
    ++drawn_of[kTargets[static_cast<int>(p.targets)]];
    ++drawn_of[kRules[static_cast<int>(p.rule)]];
    ++drawn_of[p.precision];
    drawn_of["second fit"] += p.fits > 1;
    drawn_of["accumulate"] += p.accumulate > 1;
    drawn_of["clip"] += p.clip > 0;
    drawn_of["ema"] += p.ema > 0;
    drawn_of["penalty"] += p.penalty > 0;
    drawn_of["schedule"] += p.schedule;
    drawn_of["own loss"] += p.own_loss;
    expect_same(p);
    if (HasFailure()) break;
  }
  for (const auto& [kind, count] : drawn_of) RecordProperty(kind, count);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomTrainer, ::testing::Values(1, 2, 3));

// demi/demi.h is all that a program needs: this file includes nothing else of demi.
TEST(RandomTrainerHeader, IsAllThatACallbackNeeds) {
  class Device : public train::Callback {
   public:
    void before_forward(const train::StepView& view) override {
      seen = view.input("input").device();
    }
    std::optional<c10::Device> seen;
  };
  const auto device = std::make_shared<Device>();
  Trainer trainer(torch::nn::Linear(2, 2), {.device = pick_device("cpu")});
  trainer.add(device);
  const auto inner = std::make_shared<data::TensorLoader>(
      torch::ones({2, 2}), torch::zeros({2}, torch::kLong), data::OrderOptions{.batch_size = 2});
  trainer.fit(data::PrefetchLoader(inner));
  EXPECT_EQ(device->seen, pick_device("cpu"));
}

}  // namespace
}  // namespace demi
