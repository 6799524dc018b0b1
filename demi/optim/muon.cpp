#include "demi/optim/muon.h"

#include <cmath>
#include <string>

#include "demi/core/error.h"
#include "demi/optim/rule.h"

namespace demi::optim {
namespace {

constexpr auto kMuon = "optim.Muon";

OptionList muon_list(MuonOptions& o) {
  return {{"lr", &o.lr()},
          {"weight_decay", &o.weight_decay()},
          {"momentum", &o.momentum()},
          {"nesterov", &o.nesterov()},
          {"ns_coefficients", &o.ns_coefficients()},
          {"eps", &o.eps()},
          {"ns_steps", &o.ns_steps()},
          {"adjust_lr", &o.adjust_lr()},
          {"kernel_sides", &o.kernel_sides()},
          {"polar_express", &o.polar_express()},
          {"muon", &o.muon()},
          {"sgd", &o.sgd()}};
}

void check_muon(const MuonOptions& o) {
  require_not_negative("Muon", "muon", o.muon());
  require_not_negative("Muon", "sgd", o.sgd());
  if (!(o.momentum() < 1))
    refuse({.where = kMuon,
            .what = "momentum is out of range",
            .seen = std::to_string(o.momentum()),
            .accepted = "0 or more, under 1"});
  if (o.ns_steps() < 0 || o.ns_steps() > 99)
    refuse({.where = kMuon,
            .what = "ns_steps is out of range",
            .seen = std::to_string(o.ns_steps()),
            .accepted = "0 to 99"});
  const auto [a, b, c] = o.ns_coefficients();
  if (!std::isfinite(a) || !std::isfinite(b) || !std::isfinite(c))
    refuse({.where = kMuon,
            .what = "ns_coefficients are out of range",
            .seen = c10::str(a, ", ", b, ", ", c),
            .accepted = "three finite numbers"});
  for (const int64_t rows : o.split_rows())
    if (rows < 1)
      refuse({.where = kMuon,
              .what = "split_rows is out of range",
              .seen = std::to_string(rows),
              .accepted = "1 or more rows for each matrix"});
}

// The kernels' nesterov is SGD's for the range of momentum: it is checked with that of SGD.
kernels::Group muon_numbers(const MuonOptions& o) {
  check_muon(o);
  return {.learning_rate = o.lr(),
          .momentum = o.momentum(),
          .epsilon = o.eps(),
          .weight_decay = o.weight_decay(),
          .nesterov = o.nesterov() && o.momentum() > 0,
          .own = {o.muon(), o.sgd()}};
}

MatrixOptions muon_matrices(const OptimizerOptions& options) {
  const auto& o = static_cast<const MuonOptions&>(options);
  return {.coefficients = o.ns_coefficients(),
          .steps = o.ns_steps(),
          .epsilon = o.eps(),
          .polar_express = o.polar_express(),
          .adjust_lr = o.adjust_lr(),
          .kernel_sides = o.kernel_sides(),
          .split_rows = o.split_rows(),
          .products = o.products(),
          .batched = o.batched()};
}

}  // namespace

MuonOptions::MuonOptions(double lr) : lr_(lr) {}

const Rule& MuonOptions::rule() {
  static const Rule rule = [] {
    Rule made = make_rule<MuonOptions>(kernels::UpdateRule::muon, "Muon", muon_list, muon_numbers);
    made.matrices = muon_matrices;
    return made;
  }();
  return rule;
}

}  // namespace demi::optim
