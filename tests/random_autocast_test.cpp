// Random autocast calls against the same casts written by hand: every weight stands in two worlds,
// one is used in regions, the other through .to(dtype). Between the calls regions open and close,
// weights are written to in every way, and graphs run backward or are thrown away.
//
//   DEMI_RANDOM_CALLS=3000 DEMI_RANDOM_SEED=7 training_tests --gtest_filter=RandomAutocast.*
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <sstream>

#include "demi/autocast/autocast.h"
#include "demi/optim/sgd.h"
#include "demi/weights/weights.h"

namespace demi {
namespace {

using at::Tensor;
using Shape = std::vector<std::int64_t>;
using Tensors = std::vector<Tensor>;

std::int64_t number_from(const char* variable, std::int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text && *text ? std::stoll(text) : otherwise;
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  int below(int n) { return static_cast<int>(engine_() % static_cast<std::uint64_t>(n)); }
  bool chance(int percent) { return below(100) < percent; }
  template <class T>
  const T& of(const std::vector<T>& all) {
    return all[below(static_cast<int>(all.size()))];
  }

 private:
  std::mt19937_64 engine_;
};

// inner: the op itself is in no list, and is made of others that are cast to the low dtype.
enum class Casts { low, fp32, promote, none, inner };

struct Op {
  const char* name;
  Casts casts;
  std::vector<Shape> shapes;
  std::function<Tensor(const Tensors&)> call;
};

// In an episode's own sizes, so that tensors of one shape meet again and again.
std::vector<Op> ops_of(Random& random) {
  const auto size = [&] { return 1 + random.below(5); };
  const std::int64_t b = size(), m = size(), k = size(), n = size(), c = size();
  const auto two = [](std::int64_t s) { return std::max<std::int64_t>(s, 2); };  // 1 is no product
  const Tensor ones = torch::ones({m, k});
  return {
      {"mm", Casts::low, {{m, k}, {k, n}}, [](auto& t) { return at::mm(t[0], t[1]); }},
      {"matmul", Casts::low, {{b, m, k}, {k, n}}, [](auto& t) { return at::matmul(t[0], t[1]); }},
      {"linear",
       Casts::low,
       {{m, k}, {n, k}, {n}},
       [](auto& t) { return at::linear(t[0], t[1], t[2]); }},
      {"linear without bias",
       Casts::low,
       {{b, m, k}, {n, k}},
       [](auto& t) { return at::linear(t[0], t[1]); }},
      {"addmm",
       Casts::low,
       {{n}, {m, k}, {k, n}},
       [](auto& t) { return at::addmm(t[0], t[1], t[2]); }},
      {"bmm", Casts::low, {{b, m, k}, {b, k, n}}, [](auto& t) { return at::bmm(t[0], t[1]); }},
      {"baddbmm",
       Casts::low,
       {{b, m, n}, {b, m, k}, {b, k, n}},
       [](auto& t) { return at::baddbmm(t[0], t[1], t[2]); }},
      {"square", Casts::low, {{k, k}}, [](auto& t) { return at::mm(t[0], t[0]); }},
      {"square of a view", Casts::low, {{m, k}}, [](auto& t) { return at::mm(t[0], t[0].t()); }},
      {"conv1d",
       Casts::low,
       {{b, c, 6}, {n, c, 3}, {n}},
       [](auto& t) { return at::conv1d(t[0], t[1], t[2]); }},
      {"conv2d",
       Casts::low,
       {{b, c, 4, 4}, {n, c, 3, 3}, {n}},
       [](auto& t) { return at::conv2d(t[0], t[1], t[2], 1, 1); }},
      {"conv_transpose2d",
       Casts::low,
       {{b, c, 4, 4}, {c, n, 2, 2}},
       [](auto& t) { return at::conv_transpose2d(t[0], t[1]); }},
      {"prelu", Casts::low, {{b, k}, {k}}, [](auto& t) { return at::prelu(t[0], t[1]); }},
      {"attention",
       Casts::low,
       {{b, 2, m, 8}, {b, 2, n, 8}, {b, 2, n, 8}},
       [](auto& t) { return at::scaled_dot_product_attention(t[0], t[1], t[2]); }},
      {"einsum",
       Casts::inner,
       {{two(b), two(m), two(k)}, {two(k), two(n)}},
       [](auto& t) {
         return at::einsum("bij,jk->bik", {t[0], t[1]});
       }},
      {"multi_dot",
       Casts::inner,
       {{two(m), two(k)}, {two(k), two(n)}, {two(n), two(c)}},
       [](auto& t) {
         return at::linalg_multi_dot({t[0], t[1], t[2]});
       }},
      {"chain_matmul",
       Casts::inner,
       {{two(m), two(k)}, {two(k), two(n)}},
       [](auto& t) {
         return at::chain_matmul({t[0], t[1]});
       }},
      {"mse_loss", Casts::fp32, {{m, k}, {m, k}}, [](auto& t) { return at::mse_loss(t[0], t[1]); }},
      {"smooth_l1_loss",
       Casts::fp32,
       {{m, k}, {m, k}},
       [](auto& t) { return at::smooth_l1_loss(t[0], t[1]); }},
      {"trace", Casts::fp32, {{m, k}}, [](auto& t) { return at::trace(t[0]); }},
      {"cat",
       Casts::promote,
       {{m, k}, {n, k}},
       [](auto& t) {
         return at::cat({t[0], t[1]});
       }},
      {"stack",
       Casts::promote,
       {{m, k}, {m, k}},
       [](auto& t) {
         return at::stack({t[0], t[1]});
       }},
      {"relu", Casts::none, {{m, k}}, [](auto& t) { return at::relu(t[0]); }},
      {"mul", Casts::none, {{m, k}}, [ones](auto& t) { return t[0] * ones; }},
  };
}

/// A tensor of some shape as a view of another one; the same in both worlds.
struct View {
  Shape base;
  std::function<Tensor(const Tensor&)> of;
  bool one_of_several = false;  // LibTorch refuses such a one after a write to its base
};

Shape reversed(Shape shape) { return {shape.rbegin(), shape.rend()}; }

View random_view(const Shape& shape, Random& random) {
  const auto with_first = [&](std::int64_t first) {
    Shape result = shape;
    result[0] = first;
    return result;
  };
  Shape stacked{3};
  stacked.insert(stacked.end(), shape.begin(), shape.end());
  const std::int64_t place = random.below(3);
  switch (random.below(9)) {
    case 0: {
      std::vector<std::int64_t> order;
      for (std::size_t i = shape.size(); i-- > 0;) order.push_back(static_cast<std::int64_t>(i));
      return {reversed(shape), [order](auto& t) { return t.permute(order); }};
    }
    case 1:
      return {with_first(shape[0] + 2),
              [place, n = shape[0]](auto& t) { return t.narrow(0, place, n); }};
    case 2:
      return {stacked, [place](auto& t) { return t.select(0, place); }};
    case 3:
      return {{c10::multiply_integers(shape)}, [shape](auto& t) { return t.view(shape); }};
    case 4:
      return {with_first(1), [shape](auto& t) { return t.expand(shape); }};
    case 5:
      return {stacked, [](auto& t) { return t.chunk(3)[1].squeeze(0); }, true};
    default:
      return {shape, nullptr};
  }
}

enum class Kind { trained, owned, opened, frozen, batch, activation, low, other_low };

/// One tensor in both worlds. Held twice, as a module holds a parameter, where it is a weight.
class Source {
 public:
  Source(Shape shape, Random& random) : view_(random_view(shape, random)) {
    kind_ = static_cast<Kind>(random.below(8));
    const bool four = view_.base.size() == 4 && random.chance(50);
    value_ = fresh();
    if (four) value_ = value_.contiguous(at::MemoryFormat::ChannelsLast);
    for (Tensor& t : worlds_) t = value_.clone().set_requires_grad(is_trained());
    if (kind_ != Kind::batch) also_ = worlds_[0];
    if (kind_ == Kind::owned || kind_ == Kind::opened) weights::own(worlds_[0]);
    if (kind_ == Kind::opened) worlds_[0].set_grad_dtype(std::nullopt);
    caches_view_ = random.chance(20) && !view_.one_of_several;
  }
  ~Source() {
    if (kind_ == Kind::owned || kind_ == Kind::opened) weights::disown(worlds_[0]);
  }
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  bool is_trained() const {
    return kind_ != Kind::frozen && kind_ != Kind::batch && kind_ != Kind::low &&
           kind_ != Kind::other_low;
  }
  Tensor& leaf(int world) { return worlds_[world]; }

  /// As a call gets it.
  Tensor in(int world) {
    if (caches_view_ && view_.of && at::GradMode::is_enabled()) {
      Tensor& cached = cached_[world];
      if (!cached.defined()) cached = view_.of(worlds_[world]);
      return shaped(cached);
    }
    return shaped(view_.of ? view_.of(worlds_[world]) : worlds_[world]);
  }

  /// New numbers in both worlds, in one of the ways in which programs write.
  void write(Random& random) {
    const Tensor value = fresh();
    const int way = random.below(8);
    for (Tensor& t : worlds_) write(t, value, way);
    if (way == 2 || way == 3) forget_view();
    if (random.chance(30)) forget_view();
  }
  void forget_view() {
    for (Tensor& view : cached_) view = Tensor();
  }

 private:
  Tensor fresh() const { return torch::randn(view_.base); }

  Tensor shaped(const Tensor& t) const {
    switch (kind_) {
      case Kind::activation:
        return t * 2;
      case Kind::low:
        return t.to(torch::kBFloat16);
      case Kind::other_low:
        return t.to(torch::kHalf);
      default:
        return t;
    }
  }

  static void write(Tensor& t, const Tensor& value, int way) {
    const torch::NoGradGuard no_grad;
    switch (way) {
      case 0:
        t.data().copy_(value);
        break;
      case 1:
        t.copy_(value);
        break;
      case 2:
        t.set_data(value.clone());
        break;
      case 3: {
        std::stringstream file;
        torch::serialize::OutputArchive out;
        out.write("value", value);
        out.save_to(file);
        torch::serialize::InputArchive in;
        in.load_from(file);
        in.read("value", t);
        break;
      }
      case 4:
        t.detach().copy_(value);
        break;
      case 5:
        t.mul_(0).add_(value);
        break;
      case 6: {
        const Tensor dense = value.contiguous();
        Tensor flat = t.contiguous();
        std::copy_n(dense.const_data_ptr<float>(), dense.numel(), flat.mutable_data_ptr<float>());
        if (!flat.is_same(t)) t.copy_(flat);
        break;
      }
      default:
        t.view_as(t).copy_(value);
    }
  }

  View view_;
  Kind kind_;
  bool caches_view_;
  Tensor value_, worlds_[2], cached_[2], also_;
};

struct Setting {
  bool enabled = false;
  c10::ScalarType dtype = torch::kBFloat16;
};

Tensors cast_by_hand(const Op& op, Tensors tensors, const Setting& region) {
  if (!region.enabled || op.casts == Casts::none) return tensors;
  const bool low = op.casts == Casts::low || op.casts == Casts::inner;
  c10::ScalarType to = low ? region.dtype : torch::kFloat;
  if (op.casts == Casts::promote) {
    to = tensors[0].scalar_type();
    for (const Tensor& t : tensors)
      if (t.scalar_type() != to) to = torch::kFloat;
  }
  for (Tensor& t : tensors) t = t.to(to);
  return tensors;
}

/// Within a few roundings of the dtype: LibTorch's kernels add up in another order from one
/// processor to the next. What a stale copy gives is as far away as the numbers are large.
bool is_near(const Tensor& ours, const Tensor& theirs, double roundings) {
  if (ours.sizes() != theirs.sizes()) return false;
  if (ours.numel() == 0) return true;
  const auto a = ours.detach().to(torch::kDouble), b = theirs.detach().to(torch::kDouble);
  return (a - b).abs().max().item<double>() <=
         roundings * 0x1p-8 * (b.abs().max().item<double>() + 1e-3);
}

/// Some weights, and calls on them in regions that open and close.
class Episode {
 public:
  Episode(std::uint64_t seed, int& wrong) : random_(seed), wrong_(wrong) {
    torch::manual_seed(seed);
    ops_ = ops_of(random_);
    name_ = "DEMI_RANDOM_SEED=" + std::to_string(seed);
  }
  ~Episode() {
    while (!regions_.empty()) regions_.pop_back();
  }

  void run(int calls) {
    for (int i = 0; i < calls; ++i) {
      if (random_.chance(25)) change_region();
      if (random_.chance(30)) write();
      if (random_.chance(5)) weights::drop();
      call(name_ + " call " + std::to_string(i));
      if (random_.chance(25)) backward();
      if (random_.chance(5)) step();
    }
    backward();
  }

 private:
  struct Region {
    Setting before;
    std::unique_ptr<Autocast> holds;
  };

  void change_region() {
    if (!regions_.empty() && random_.chance(50)) {
      setting_ = regions_.back().before;
      regions_.pop_back();
      return;
    }
    AutocastOptions options;
    options.enabled = random_.chance(85);
    options.dtype = random_.chance(70) ? torch::kBFloat16 : torch::kHalf;
    if (random_.chance(15)) options.cache_enabled = false;
    const Setting next{options.enabled, *options.dtype};
    regions_.push_back({setting_, std::make_unique<Autocast>(torch::kCPU, options)});
    setting_ = next;
  }

  Source& source(const Shape& shape) {
    auto& known = sources_[shape];
    if (known.empty() || (known.size() < 3 && random_.chance(40)))
      known.push_back(std::make_unique<Source>(shape, random_));
    return *known[random_.below(static_cast<int>(known.size()))];
  }

  void call(const std::string& where) {
    const Op& op = random_.of(ops_);
    const at::AutoGradMode grad(random_.chance(80));
    std::vector<Source*> chosen;
    for (const Shape& shape : op.shapes) chosen.push_back(&source(shape));
    Tensors given[2];
    for (int world : {0, 1})
      for (Source* one : chosen) given[world].push_back(one->in(world));
    if (!can_run(given[1], op)) return;
    const Tensor theirs = result_of([&] {
      const Autocast off(torch::kCPU, {.enabled = false});
      return op.call(cast_by_hand(op, given[1], setting_));
    });
    const Tensor ours = result_of([&] { return op.call(given[0]); });
    if (!theirs.defined() || !ours.defined()) {
      if (theirs.defined() || ours.defined()) tell(where + ": " + op.name + " throws in one world");
      return;
    }
    ++calls_;
    if (ours.scalar_type() != theirs.scalar_type() || !is_near(ours, theirs, 4) ||
        ours.requires_grad() != theirs.requires_grad())
      tell(where + ": " + op.name);
    const bool kept =
        theirs.requires_grad() && random_.chance(80);  // else the graph is thrown away
    if (!kept) return;
    const auto weight = torch::randn(theirs.sizes());
    losses_[0].push_back((ours.to(torch::kFloat) * weight).sum());
    losses_[1].push_back((theirs.to(torch::kFloat) * weight).sum());
    used_.insert(used_.end(), chosen.begin(), chosen.end());
  }

  // Undefined where LibTorch refuses.
  static Tensor result_of(const std::function<Tensor()>& call) {
    try {
      return call();
    } catch (const c10::Error&) {
      return {};
    }
  }

  // Without a region dtypes have to agree, and ops made of others ask for that at once.
  bool can_run(const Tensors& given, const Op& op) const {
    if (setting_.enabled && op.casts != Casts::none && op.casts != Casts::inner) return true;
    for (const Tensor& t : given)
      if (t.scalar_type() != torch::kFloat) return false;
    return true;
  }

  void backward() {
    if (losses_[0].empty()) return;
    for (Tensors& losses : losses_) {
      torch::autograd::backward(losses, {});
      losses.clear();
    }
    for (Source* one : used_) {
      Tensor &ours = one->leaf(0).mutable_grad(), &theirs = one->leaf(1).mutable_grad();
      if (ours.defined() != theirs.defined() || (ours.defined() && !is_near(ours, theirs, 8)))
        tell(name_ + ": gradient");
      ours = theirs = Tensor();
    }
    used_.clear();
  }

  // A graph has to run before what it saved is written to.
  void write() {
    backward();
    for (auto& [shape, known] : sources_)
      for (auto& one : known)
        if (random_.chance(40)) one->write(random_);
  }

  // The step's kernels write weights and copies.
  void step() {
    backward();
    Tensors leaves;
    for (auto& [shape, known] : sources_)
      for (auto& one : known)
        if (one->is_trained() && one->leaf(0).is_non_overlapping_and_dense()) {
          leaves.push_back(one->leaf(0));
          one->leaf(0).mutable_grad() = torch::randn_like(one->leaf(0));
        }
    if (leaves.empty()) return;
    {
      optim::SGD optimizer(leaves, 0.5);
      optimizer.step();
    }
    for (auto& [shape, known] : sources_)
      for (auto& one : known) {
        one->leaf(0).mutable_grad() = Tensor();
        one->leaf(1).data().copy_(one->leaf(0).detach());
      }
  }

  void tell(const std::string& what) {
    if (++wrong_ <= 10) ADD_FAILURE() << what;
  }

  Random random_;
  int& wrong_;
  int calls_ = 0;
  std::string name_;
  std::vector<Op> ops_;
  std::map<Shape, std::vector<std::unique_ptr<Source>>> sources_;
  std::vector<Region> regions_;
  Setting setting_;
  Tensors losses_[2];
  std::vector<Source*> used_;

 public:
  int calls() const { return calls_; }
};

TEST(RandomAutocast, CallsAreTheCastsWrittenByHand) {
  const auto wanted = number_from("DEMI_RANDOM_CALLS", 400);
  auto seed = static_cast<std::uint64_t>(number_from("DEMI_RANDOM_SEED", 1));
  int wrong = 0;
  std::int64_t calls = 0;
  for (; calls < wanted && wrong < 10; ++seed) {
    Episode episode(seed, wrong);
    episode.run(25);
    calls += episode.calls();
  }
  std::cout << calls << " calls, " << wrong << " wrong\n";
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(weights::stats().copies, 0);
}

}  // namespace
}  // namespace demi
