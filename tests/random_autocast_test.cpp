// Random autocast calls against the same casts written by hand: every weight stands in two worlds,
// one is used in regions, the other through .to(dtype). Between the calls regions open and close,
// weights are written to in every way, hooked, frozen and cloned, and graphs run backward, are
// asked by torch::autograd::grad or are thrown away.
//
//   DEMI_RANDOM_CALLS=3000 DEMI_RANDOM_SEED=7 training_tests --gtest_filter=RandomAutocast.*
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "demi/autocast/apply.h"
#include "demi/autocast/autocast.h"
#include "demi/optim/sgd.h"
#include "demi/step/pending_step.h"
#include "demi/weights/weights.h"
#include "tests/random_calls.h"

namespace demi {
namespace {

using at::Tensor;
using Shape = std::vector<std::int64_t>;
using Tensors = std::vector<Tensor>;

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
  const char* name;
  Shape base;
  std::function<Tensor(const Tensor&)> of;
  bool one_of_several = false;  // LibTorch refuses such a one after a write to its base
};

Shape reversed(Shape shape) { return {shape.rbegin(), shape.rend()}; }

Shape with_first(Shape shape, std::int64_t first) {
  shape[0] = first;
  return shape;
}

Shape places_reversed(const Shape& shape) {
  Shape order;
  for (std::size_t i = shape.size(); i-- > 0;) order.push_back(static_cast<std::int64_t>(i));
  return order;
}

/// Windows over the first dimension of a base that has no last one: they overlap.
View windows(const Shape& shape) {
  Shape base(shape.begin(), shape.end() - 1);
  base[0] += shape.back() - 1;
  return {"unfold", base, [size = shape.back()](auto& t) { return t.unfold(0, size, 1); }};
}

/// Rows that begin one element after the other.
View rows_upon_rows(const Shape& shape) {
  Shape strides(shape.size(), 1);
  for (std::size_t i = shape.size() - 1; i-- > 1;) strides[i] = strides[i + 1] * shape[i + 1];
  const std::int64_t row = c10::multiply_integers(shape.begin() + 1, shape.end());
  return {"as_strided", {shape[0] - 1 + row}, [shape, strides](auto& t) {
            return t.as_strided(shape, strides);
          }};
}

View view_of_a_view(const Shape& shape, Random& random) {
  const Shape order = places_reversed(shape);
  const View inner = shape.size() > 1 && random.chance(40)
                         ? windows(reversed(shape))
                         : View{"", with_first(reversed(shape), shape.back() + 2),
                                [n = shape.back()](auto& t) { return t.narrow(0, 1, n); }};
  return {"view of a view", inner.base,
          [inner, order](auto& t) { return inner.of(t).permute(order); }};
}

View random_view(const Shape& shape, Random& random) {
  Shape stacked{3};
  stacked.insert(stacked.end(), shape.begin(), shape.end());
  const std::int64_t place = random.below(3);
  const bool has_rows = shape.size() > 1;
  switch (random.below(13)) {
    case 0:
      return {"permute", reversed(shape),
              [order = places_reversed(shape)](auto& t) { return t.permute(order); }};
    case 1:
      return {"narrow", with_first(shape, shape[0] + 2),
              [place, n = shape[0]](auto& t) { return t.narrow(0, place, n); }};
    case 2:
      return {"select", stacked, [place](auto& t) { return t.select(0, place); }};
    case 3:
      return {"view", {c10::multiply_integers(shape)}, [shape](auto& t) { return t.view(shape); }};
    case 4:
      return {"expand", with_first(shape, 1), [shape](auto& t) { return t.expand(shape); }};
    case 5:
      return {"chunk", stacked, [](auto& t) { return t.chunk(3)[1].squeeze(0); }, true};
    case 6:
    case 7:
      if (has_rows) return windows(shape);
      break;
    case 8:
      if (has_rows) return rows_upon_rows(shape);
      break;
    case 9:
      return view_of_a_view(shape, random);
    default:
      break;
  }
  return {"", shape, nullptr};
}

/// A module with one parameter.
struct Holder : torch::nn::Cloneable<Holder> {
  explicit Holder(const Tensor& value) : value_(value) { Holder::reset(); }
  void reset() override { p = register_parameter("p", value_.clone()); }
  Tensor p;

 private:
  Tensor value_;
};

// held: by an optimizer with gradients in FP32; opened: with gradients in 16 bits. part: of a
// module that a policy keeps in FP32.
enum class Kind { trained, held, opened, part, frozen, batch, activation, low, other_low };

/// How often something took part in a call.

/// One tensor in both worlds. Held twice, as a module holds a parameter, where it is a weight.
class Source {
 public:
  Source(Shape shape, Random& random) : view_(random_view(shape, random)) {
    kind_ = static_cast<Kind>(random.below(9));
    const bool four = view_.base.size() == 4 && random.chance(50);
    value_ = fresh();
    if (four) value_ = value_.contiguous(at::MemoryFormat::ChannelsLast);
    for (Tensor& t : worlds_) t = value_.clone().set_requires_grad(can_train());
    if (kind_ == Kind::part) {
      holder_ = std::make_shared<Holder>(value_);
      demi::apply(Policy("float32"), *holder_);
      worlds_[0] = holder_->p;
      if (random.chance(50)) clone();
    }
    if (kind_ != Kind::batch) also_ = worlds_[0];
    hold();
    caches_view_ = random.chance(20) && !view_.one_of_several;
  }
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  bool can_train() const {
    return kind_ != Kind::frozen && kind_ != Kind::batch && kind_ != Kind::low &&
           kind_ != Kind::other_low;
  }
  bool is_trained() const { return worlds_[0].requires_grad(); }
  bool is_part() const { return kind_ == Kind::part; }
  bool wants_fp32_gradients() const { return kind_ != Kind::opened; }
  Tensor& leaf(int world) { return worlds_[world]; }

  /// As a call gets it. `hooked`: with a hook on the view.
  Tensor in(int world, bool hooked) {
    const bool grad = at::GradMode::is_enabled();
    if (caches_view_ && view_.of && grad) {
      Tensor& cached = cached_[world];
      if (!cached.defined()) cached = view_.of(worlds_[world]);
      return shaped(cached);
    }
    const Tensor made = view_.of ? view_.of(worlds_[world]) : worlds_[world];
    if (hooked && view_.of && grad && made.requires_grad()) made.register_hook(hook(world));
    return shaped(made);
  }

  void count(Counts& counts) const {
    if (view_.of) ++counts[view_.name];
    if (is_hooked_) ++counts["hook"];
    if (can_train() && !is_trained()) ++counts["frozen"];
    if (is_clone_) ++counts["clone of a part"];
    if (kind_ == Kind::opened) ++counts["16-bit gradients"];
  }

  /// What hooks got since the last time: FP32, and the same in both worlds.
  bool hooks_saw_the_same(const std::function<bool(const Tensor&, const Tensor&)>& is_same) {
    const Tensors ours = std::exchange(seen_[0], {}), theirs = std::exchange(seen_[1], {});
    if (ours.size() != theirs.size()) return false;
    for (std::size_t i = 0; i < ours.size(); ++i)
      if (ours[i].scalar_type() != torch::kFloat || !is_same(ours[i], theirs[i])) return false;
    return true;
  }

  /// No graph may be alive: a hook comes or goes, the weight is frozen or trained on, a clone takes
  /// its place.
  void change(Random& random) {
    if (!can_train()) return;
    const int what = random.below(3);
    if (is_part() && random.chance(60)) {
      clone();
      if (std::exchange(is_hooked_, false)) worlds_[1].remove_hook(hooks_[1]);
      forget_view();
    } else if (what == 0) {
      const bool trains = !is_trained();
      for (Tensor& t : worlds_) t.requires_grad_(trains);
      forget_view();
    } else if (is_hooked_) {
      for (int world : {0, 1}) worlds_[world].remove_hook(hooks_[world]);
      is_hooked_ = false;
    } else if (is_trained()) {
      for (int world : {0, 1}) hooks_[world] = worlds_[world].register_hook(hook(world));
      is_hooked_ = true;
    }
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

  void hold() {
    if (kind_ == Kind::held || kind_ == Kind::opened)
      optimizer_ = std::make_unique<optim::SGD>(
          Tensors{worlds_[0]}, optim::SGDOptions(0.5),
          optim::StepOptions{.low_precision_grads = kind_ == Kind::opened});
  }

  void clone() {
    holder_ = std::dynamic_pointer_cast<Holder>(holder_->clone());
    worlds_[0] = also_ = holder_->p.requires_grad_(worlds_[1].requires_grad());
    is_clone_ = true;
    // Writes give it other memory, and only after a first use it is known without that.
    const torch::NoGradGuard no_grad;
    const Autocast region(torch::kCPU);
    at::cat({worlds_[0]});
  }

  std::function<Tensor(const Tensor&)> hook(int world) {
    return [this, world](const Tensor& gradient) {
      seen_[world].push_back(gradient.clone());
      return gradient.to(torch::kFloat) * 2;
    };
  }

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
  bool caches_view_, is_hooked_ = false, is_clone_ = false;
  Tensor value_, worlds_[2], cached_[2], also_;
  std::shared_ptr<Holder> holder_;
  unsigned hooks_[2] = {};
  Tensors seen_[2];
  std::unique_ptr<optim::SGD> optimizer_;
};

struct Setting {
  bool enabled = false;
  c10::ScalarType dtype = torch::kBFloat16;
};

/// `in_fp32`: an argument is of a part that is kept in FP32.
Tensors cast_by_hand(const Op& op, Tensors tensors, const Setting& region, bool in_fp32) {
  if (!region.enabled || op.casts == Casts::none) return tensors;
  const bool low = (op.casts == Casts::low || op.casts == Casts::inner) && !in_fp32;
  c10::ScalarType to = low ? region.dtype : torch::kFloat;
  if (op.casts == Casts::promote && !in_fp32) {
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
  Episode(std::uint64_t seed, int& wrong, Counts& counts)
      : random_(seed), wrong_(wrong), counts_(counts) {
    torch::manual_seed(seed);
    ops_ = ops_of(random_);
    name_ = "DEMI_RANDOM_SEED=" + std::to_string(seed);
  }
  ~Episode() {
    while (!regions_.empty()) regions_.pop_back();
  }

  int run(int calls) {
    for (int i = 0; i < calls; ++i) {
      if (random_.chance(25)) change_region();
      if (random_.chance(25)) write();
      if (random_.chance(15)) change();
      if (random_.chance(5)) weights::drop();
      call(name_ + " call " + std::to_string(i));
      if (random_.chance(25)) backward();
      if (random_.chance(5)) step();
    }
    backward();
    return calls_;
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
    return *known[random_.below(known.size())];
  }

  void call(const std::string& where) {
    const Op& op = random_.of(ops_);
    const at::AutoGradMode grad(random_.chance(80));
    std::vector<Source*> chosen;
    for (const Shape& shape : op.shapes) chosen.push_back(&source(shape));
    // What an op is made of gets results of its arguments, which are no parameters.
    const bool has_part =
        std::any_of(chosen.begin(), chosen.end(), [](const Source* one) { return one->is_part(); });
    if (has_part && op.casts == Casts::inner) return;
    const bool hooked = random_.chance(15);
    Tensors given[2];
    for (int world : {0, 1})
      for (Source* one : chosen) given[world].push_back(one->in(world, hooked));
    if (!can_run(given[1], op)) return;
    const Tensor theirs = result_of([&] {
      const Autocast off(torch::kCPU, {.enabled = false});
      return op.call(cast_by_hand(op, given[1], setting_, has_part));
    });
    const Tensor ours = result_of([&] { return op.call(given[0]); });
    if (!theirs.defined() || !ours.defined()) {
      if (theirs.defined() || ours.defined()) tell(where + ": " + op.name + " throws in one world");
      return;
    }
    ++calls_;
    if (hooked) ++counts_["hook on a view"];
    for (const Source* one : chosen) one->count(counts_);
    if (ours.scalar_type() != theirs.scalar_type() || !is_near(ours, theirs, 4) ||
        ours.requires_grad() != theirs.requires_grad())
      tell(where + ": " + op.name);
    const bool kept =
        theirs.requires_grad() && random_.chance(80);  // else the graph is thrown away
    if (!kept) return;
    const auto weight = torch::randn(theirs.sizes());
    losses_[0].push_back((ours.to(torch::kFloat) * weight).sum());
    losses_[1].push_back((theirs.to(torch::kFloat) * weight).sum());
    for (Source* one : chosen)
      if (std::find(used_.begin(), used_.end(), one) == used_.end()) used_.push_back(one);
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
    // LibTorch's fused kernel gives its result the strides of the first argument, in every dtype:
    // elements that share memory there overwrite each other in the result.
    if (op.name == std::string("attention"))
      for (const Tensor& t : given)
        if (!t.is_non_overlapping_and_dense()) return false;
    if (setting_.enabled && op.casts != Casts::none && op.casts != Casts::inner) return true;
    for (const Tensor& t : given)
      if (t.scalar_type() != torch::kFloat) return false;
    return true;
  }

  void backward() {
    if (losses_[0].empty()) return;
    const int way = random_.below(10);
    way < 3 ? ask() : way < 5 ? put_in() : torch_backward(/*again=*/false);
    for (Source* one : used_) {
      Tensor &ours = one->leaf(0).mutable_grad(), &theirs = one->leaf(1).mutable_grad();
      if (!is_same_gradient(ours, theirs) ||
          (ours.defined() && one->wants_fp32_gradients() && ours.scalar_type() != torch::kFloat))
        tell(name_ + ": gradient");
      if (!one->hooks_saw_the_same(is_same_gradient)) tell(name_ + ": gradient in a hook");
      ours = theirs = Tensor();
    }
    for (Tensors& losses : losses_) losses.clear();
    used_.clear();
  }

  void torch_backward(bool again) {
    for (const Tensors& losses : losses_) torch::autograd::backward(losses, {}, again);
  }

  static bool is_same_gradient(const Tensor& ours, const Tensor& theirs) {
    return ours.defined() == theirs.defined() && (!ours.defined() || is_near(ours, theirs, 8));
  }

  // torch::autograd::grad
  void ask() {
    Tensors asked[2];
    for (Source* one : used_)
      if (one->is_trained())
        for (int world : {0, 1}) asked[world].push_back(one->leaf(world));
    if (asked[0].empty()) return torch_backward(/*again=*/false);
    Tensors got[2];
    for (int world : {0, 1})
      got[world] = torch::autograd::grad(losses_[world], asked[world], {}, {},
                                         /*create_graph=*/false,
                                         /*allow_unused=*/true);
    counts_["autograd::grad"] += static_cast<int>(got[0].size());
    for (std::size_t i = 0; i < got[0].size(); ++i)
      if (!is_same_gradient(got[0][i], got[1][i]) ||
          (got[0][i].defined() && got[0][i].scalar_type() != torch::kFloat))
        tell(name_ + ": autograd::grad");
  }

  // Another tensor in the place of .grad, and one more backward.
  void put_in() {
    torch_backward(/*again=*/true);
    for (Source* one : used_) {
      const bool narrow = random_.chance(30);
      for (int world : {0, 1}) {
        Tensor& gradient = one->leaf(world).mutable_grad();
        if (!gradient.defined()) continue;
        const Tensor doubled = gradient.to(torch::kFloat) * 2;
        gradient = narrow && world == 0 && !one->wants_fp32_gradients()
                       ? doubled.to(torch::kBFloat16)
                       : doubled;
        ++counts_["gradient put in"];
      }
    }
    torch_backward(/*again=*/false);
  }

  void change() {
    backward();
    for (auto& [shape, known] : sources_)
      for (auto& one : known)
        if (random_.chance(40)) one->change(random_);
  }

  // A graph has to run before what it saved is written to.
  void write() {
    backward();
    for (auto& [shape, known] : sources_)
      for (auto& one : known)
        if (random_.chance(40)) one->write(random_);
  }

  // The step's kernels write weights and copies. Gradients come with a loss scale, and some are
  // replaced by true ones after unscale_.
  void step() {
    backward();
    const torch::NoGradGuard no_grad;
    std::vector<Source*> stepped;
    Tensors leaves;
    for (auto& [shape, known] : sources_)
      for (auto& one : known)
        if (one->is_trained() && one->leaf(0).is_non_overlapping_and_dense()) {
          stepped.push_back(one.get());
          leaves.push_back(one->leaf(0));
        }
    if (leaves.empty()) return;
    optim::SGD optimizer(leaves, optim::SGDOptions(0.5),
                         {.low_precision_grads = random_.chance(50)});
    const Tensor scale = torch::full({}, 1024.F);
    for (Source* one : stepped) {
      const Tensor gradient =
          torch::randn_like(one->leaf(0)).to(torch::kBFloat16).to(torch::kFloat);
      const bool narrow = optimizer.low_precision_grads() && random_.chance(70);
      one->leaf(0).mutable_grad() =
          (gradient * scale).to(narrow ? torch::kBFloat16 : torch::kFloat);
      one->leaf(1).data().sub_(gradient * 0.5);
    }
    optimizer.pending().unscale_(scale);
    for (Source* one : stepped)
      if (random_.chance(30)) {
        one->leaf(0).mutable_grad() = optimizer.unscaled_grad(one->leaf(0)) * 1;
        ++counts_["gradient put in before a step"];
      }
    optimizer.step();
    for (Source* one : stepped) {
      one->leaf(0).mutable_grad() = Tensor();
      if (!is_near(one->leaf(0), one->leaf(1), 0x1p-8)) tell(name_ + ": step");
      one->leaf(1).data().copy_(one->leaf(0).detach());
    }
  }

  void tell(const std::string& what) {
    if (++wrong_ <= 10) ADD_FAILURE() << what;
  }

  Random random_;
  int& wrong_;
  Counts& counts_;
  int calls_ = 0;
  std::string name_;
  std::vector<Op> ops_;
  std::map<Shape, std::vector<std::unique_ptr<Source>>> sources_;
  std::vector<Region> regions_;
  Setting setting_;
  Tensors losses_[2];
  std::vector<Source*> used_;
};

TEST(RandomAutocast, CallsAreTheCastsWrittenByHand) {
  expect_no_wrong_call<Episode>(400, 25);
  EXPECT_EQ(weights::stats().copies, 0);
}

}  // namespace
}  // namespace demi
