#include "demi/loop/open_steps.h"

#include <algorithm>
#include <mutex>

#include "demi/core/error.h"

namespace demi::loop {
namespace {

using Optimizers = std::vector<torch::optim::Optimizer*>;

std::mutex claims_mutex;

// Never destroyed: a Step may be static.
std::vector<const Claim*>& claims() {
  static auto& all = *new std::vector<const Claim*>;
  return all;
}

bool share_one(const Optimizers& these, const Optimizers& those) {
  return std::ranges::any_of(
      these, [&](const auto* one) { return std::ranges::find(those, one) != those.end(); });
}

}  // namespace

Claim::Claim(const Job& job) : scaler_(job.scaler), optimizers_(job.optimizers) {
  const std::lock_guard lock(claims_mutex);
  for (const Claim* other : claims()) {
    require(!scaler_ || other->scaler_ != scaler_,
            {.where = "loop.Step",
             .what = "the scaler is held by another Step",
             .seen = "one scaler in two",
             .accepted = "a Step that has it alone",
             .advice = "one Step serves several optimizers: take() and finish() update their "
                       "scaler once"});
    require(!share_one(optimizers_, other->optimizers_),
            {.where = "loop.Step",
             .what = "an optimizer is held by another Step",
             .seen = "one optimizer in two",
             .accepted = "a Step that has it alone",
             .advice = "let the other one go before"});
  }
  claims().push_back(this);
}

Claim::~Claim() {
  const std::lock_guard lock(claims_mutex);
  std::erase(claims(), this);
}

void Claim::set_open(bool open) {
  const std::lock_guard lock(claims_mutex);
  is_open_ = open;
}

void require_no_open_step(const Job& job, const char* where) {
  const std::lock_guard lock(claims_mutex);
  for (const Claim* claim : claims())
    require(!claim->is_open_ || !share_one(job.optimizers, claim->optimizers_),
            {.where = where,
             .what = "a step has begun and is not finished",
             .seen = "loop::Step with a batch since finish()",
             .accepted = "the time between two steps",
             .advice = "call finish() or drop() before"});
}

}  // namespace demi::loop
