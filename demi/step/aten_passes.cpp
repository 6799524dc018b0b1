#include "demi/step/aten_passes.h"

#include <torch/types.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "demi/kernels/codecs/random_halves.h"
#include "demi/kernels/decision.h"
#include "demi/kernels/rule_info.h"
#include "demi/kernels/rules/all.h"
#include "demi/step/coded_state.h"
#include "demi/step/matrices.h"
#include "demi/step/member.h"

namespace demi::optim::aten {
namespace {

/// V of the formulas: a tensor, or one number for all of its elements.
struct Value {
  at::Tensor tensor;
  double number = 0;

  Value() = default;
  explicit Value(float all) : number(all) {}
  explicit Value(at::Tensor array) : tensor(std::move(array)) {}
  bool is_number() const { return !tensor.defined(); }
};

// At least one side is a tensor in all formulas.
Value operator+(const Value& a, const Value& b) {
  if (a.is_number()) return Value(b.tensor + a.number);
  return Value(b.is_number() ? a.tensor + b.number : a.tensor + b.tensor);
}
Value operator-(const Value& a, const Value& b) {
  return Value(b.is_number() ? a.tensor - b.number : a.tensor - b.tensor);
}
Value operator*(const Value& a, const Value& b) {
  if (a.is_number()) return Value(b.tensor * a.number);
  return Value(b.is_number() ? a.tensor * b.number : a.tensor * b.tensor);
}
/// Divides by a tensor on the device where the divisor is a number: LibTorch would multiply by its
/// reciprocal. The tensor has no dimensions, since one dimension would broadcast a parameter that
/// has none.
Value operator/(const Value& a, const Value& b) {
  if (!b.is_number()) return Value(a.tensor / b.tensor);
  return Value(a.tensor / at::full({}, b.number, a.tensor.options()));
}
Value operator-(const Value& a) { return Value(-a.tensor); }
/// LibTorch's FP32 root is one unit off for some numbers on a CPU without AVX-512 (MKL's). The FP64
/// root rounded to FP32 is the nearest one: x has 24 bits and a midpoint m of two FP32 numbers 25,
/// so that sqrt(x) is 2^-51 of its size away from m at least, and FP64's error is less.
Value square_root(const Value& x) {
  const bool rounds_wrongly = x.tensor.is_cpu() && x.tensor.scalar_type() == at::kFloat;
  return Value(rounds_wrongly ? x.tensor.to(at::kDouble).sqrt_().to(at::kFloat) : x.tensor.sqrt());
}
Value reciprocal(const Value& x) { return Value(x.tensor.reciprocal()); }
Value maximum(const Value& a, const Value& b) { return Value(at::maximum(a.tensor, b.tensor)); }
Value sign(const Value& x) { return Value(x.tensor.sign()); }
Value clamp(const Value& x, const Value& limit) {
  return Value(x.tensor.clamp(-limit.number, limit.number));
}

using Elements = kernels::Elements<Value>;

/// call(m, name) for the arrays that the rule keeps: moment[m] of the formulas.
template <class Call>
void each_array(kernels::UpdateRule rule, const kernels::Coefficients& c, Call call) {
  const auto states = kernels::info_of(rule).states;
  for (int m = 0; m < static_cast<int>(states.size()); ++m)
    if ((c.arrays >> m & 1U) != 0) call(m, states[static_cast<size_t>(m)].name);
}

kernels::UpdateRule rule_of(const kernels::StepTable& table, const kernels::TensorEntry& entry) {
  return table.groups[entry.group].rule;
}

Elements load(const kernels::StepTable& table, const kernels::TensorEntry& entry,
              const kernels::Coefficients& c, Member& member) {
  Elements e;
  e.parameter = Value(member.target == Target::kCoded ? weight_of(member) : member.work);
  each_array(rule_of(table, entry), c,
             [&](int m, const char* name) { e.moment[m] = Value(decoded(*member.state, name)); });
  const Value scaled(member.gradient->to(arithmetic_of(member)));
  const float inverse_scale = entry.unscaled ? 1.0F : table.state->inverse_scale;
  e.gradient = kernels::true_gradient(scaled, inverse_scale, table.state->clip_factor, c);
  return e;
}

void store(const kernels::StepTable& table, const kernels::TensorEntry& entry,
           const kernels::Coefficients& c, Member& member, const Elements& e) {
  each_array(rule_of(table, entry), c, [&](int m, const char* name) {
    at::Tensor& state = (*member.state)[name];
    if (!codec_of(state)) state.copy_(e.moment[m].tensor);
  });
  if (member.target == Target::kCoded)
    put_weight(member, e.parameter.tensor,
               kernels::rounding_key(table, entry, kernels::kWeightArray));
  else
    member.work.copy_(e.parameter.tensor);
}

/// Codes the coded states, and replaces them by their decoded values, on which a trust ratio is
/// based. Runs on the host, since devices that come here have no kernels.
void store_coded(const kernels::StepTable& table, const kernels::TensorEntry& entry,
                 const kernels::Coefficients& c, Member& member, Elements& e) {
  each_array(rule_of(table, entry), c, [&](int m, const char* name) {
    const auto codec = codec_of((*member.state)[name]);
    if (!codec) return;
    keep_coded(*member.state, name, *codec, e.moment[m].tensor, member.work,
               kernels::rounding_key(table, entry, m));
    e.moment[m] = Value(decoded(*member.state, name));
  });
}

/// The greatest gradient as the plan keeps it. FP64 holds finite numbers that FP32 does not: they
/// stay finite.
std::uint32_t bits_of_greatest(double greatest) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  const bool is_finite = std::isfinite(greatest);
  const auto number = static_cast<float>(is_finite ? std::min(greatest, kLargest) : greatest);
  return std::bit_cast<std::uint32_t>(number) & 0x7FFFFFFFU;
}

double squares(const at::Tensor& tensor) {
  const double norm =
      at::linalg_vector_norm(tensor, 2, std::nullopt, false, at::kDouble).item<double>();
  return norm * norm;
}

/// Pass 3 of a rule of matrices.
void apply_direction(const Member& member, const MatrixOptions& options, Elements& e,
                     const kernels::Coefficients& c) {
  const c10::ScalarType dtype = product_dtype(member.work, options);
  // The direction has the array's layout, as the kernels leave it.
  const at::Tensor direction = at::empty_like(member.work, member.work.options().dtype(dtype));
  direction.copy_(e.direction.tensor);
  const at::Tensor memory = direction.as_strided({direction.numel()}, {1});
  orthogonalise({memory, 1, memory.numel()}, member.work, options);
  e.direction = Value(direction.to(arithmetic_of(member)));
  kernels::update<kernels::UpdateRule::muon_apply>(e, c);
}

template <kernels::UpdateRule rule>
void apply_trust(const kernels::StepPlan& plan, const kernels::Group& group, Elements& e,
                 kernels::Coefficients c) {
  const Value update = kernels::RuleOf<rule>::direction(e, c);
  const double rate = kernels::learning_rate(group, plan.state().taken - 1);
  c.negative_rate =
      kernels::trust_rate(group, rate, squares(e.parameter.tensor), squares(update.tensor));
  kernels::apply_trust<rule>(e, c);
}

}  // namespace

void measure(kernels::StepPlan& plan, const std::vector<Member>& members) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> numbers;
  std::vector<bool> unscaled;
  for (size_t i = 0; i < members.size(); ++i) {
    if (!plan.tensors()[i].gradient || members[i].gradient->numel() == 0) continue;
    const at::Tensor& gradient = *members[i].gradient;
    const at::Tensor norm = at::linalg_vector_norm(gradient, 2, std::nullopt, false, at::kDouble);
    numbers.push_back(at::stack({norm * norm, gradient.abs().amax().to(at::kDouble)}));
    unscaled.push_back(plan.tensors()[i].unscaled);
  }
  kernels::Partial sums{};
  if (!numbers.empty()) {
    const float inverse_scale = kernels::inverse_scale_of(plan.inputs());
    const at::Tensor all = at::stack(numbers).cpu();  // the host read
    for (int64_t i = 0; i < all.size(0); ++i) {
      kernels::Partial one{all[i][0].item<double>(), bits_of_greatest(all[i][1].item<double>()), 0};
      if (unscaled[static_cast<size_t>(i)]) one = kernels::with_scale(one, inverse_scale);
      sums.sum_of_squares += one.sum_of_squares;
      sums.greatest_bits = std::max(sums.greatest_bits, one.greatest_bits);
    }
  }
  kernels::record_sums(plan.inputs(), sums.sum_of_squares, sums.greatest_bits, plan.state());
}

void update(kernels::StepPlan& plan, std::vector<Member>& members,
            const std::vector<MatrixOptions>& matrices) {
  const at::NoGradGuard no_grad;
  const kernels::StepTable table = plan.table();
  for (size_t i = 0; i < members.size(); ++i) {
    if (!table.tensors[i].gradient) continue;
    const kernels::Coefficients& c = table.coefficients[i];
    Elements e = load(table, table.tensors[i], c, members[i]);
    kernels::with_rule(rule_of(table, table.tensors[i]), [&]<kernels::UpdateRule rule>() {
      kernels::update<rule>(e, c);
      if constexpr (rule == kernels::UpdateRule::muon)
        apply_direction(members[i], matrices[static_cast<size_t>(table.tensors[i].group)], e, c);
      store_coded(table, table.tensors[i], c, members[i], e);
      if constexpr (kernels::RuleOf<rule>::kTrust)
        apply_trust<rule>(plan, table.groups[table.tensors[i].group], e, c);
    });
    store(table, table.tensors[i], c, members[i], e);
  }
}

}  // namespace demi::optim::aten
