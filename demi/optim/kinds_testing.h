#pragma once

#include <array>
#include <memory>
#include <vector>

#include "demi/optim/all.h"
#include "demi/optim/backend_testing.h"

namespace demi::optim::testing {

using Tensors = std::vector<at::Tensor>;

/// An optimizer for each kind of state.
enum class KindId {
  kSgd,
  kMomentum,
  kAdam,
  kAmsgrad,
  kLamb,
  kLion,
  kRMSprop,
  kNAdam,
  kRAdam,
  kAdagrad
};

inline std::unique_ptr<Optimizer> make(KindId kind, const Tensors& p, StepOptions step = {},
                                       const Backend& backend = machine_backend()) {
  switch (kind) {
    case KindId::kSgd:
      return std::make_unique<On<SGD>>(backend, p, SGDOptions(0.1), step);
    case KindId::kMomentum:
      return std::make_unique<On<SGD>>(backend, p, SGDOptions(0.1).momentum(0.9).weight_decay(0.1),
                                       step);
    case KindId::kAdam:
      return std::make_unique<On<Adam>>(backend, p, AdamOptions(0.1).weight_decay(0.1), step);
    case KindId::kAmsgrad:
      return std::make_unique<On<AdamW>>(backend, p, AdamWOptions(0.1).amsgrad(true), step);
    case KindId::kLamb:
      return std::make_unique<On<LAMB>>(backend, p, LAMBOptions(0.1).weight_decay(0.1), step);
    case KindId::kRMSprop:
      return std::make_unique<On<RMSprop>>(
          backend, p, RMSpropOptions(0.1).weight_decay(0.1).momentum(0.5).centered(true).eps(0.1),
          step);
    case KindId::kNAdam:
      return std::make_unique<On<NAdam>>(backend, p, NAdamOptions(0.1).weight_decay(0.1), step);
    case KindId::kRAdam:
      return std::make_unique<On<RAdam>>(backend, p, RAdamOptions(0.1).betas({0.9, 0.9}), step);
    case KindId::kAdagrad:
      return std::make_unique<On<Adagrad>>(
          backend, p,
          AdagradOptions(0.1).weight_decay(0.1).lr_decay(0.5).initial_accumulator_value(0.25),
          step);
    case KindId::kLion:
      break;
  }
  return std::make_unique<On<Lion>>(backend, p, LionOptions(0.1).weight_decay(0.1), step);
}

struct Kind {
  const char* name;
  KindId id;

  std::unique_ptr<Optimizer> make(const Tensors& p, StepOptions step = {},
                                  const Backend& backend = machine_backend()) const {
    return testing::make(id, p, step, backend);
  }
};

inline constexpr std::array kKinds{
    Kind{"SGD", KindId::kSgd},         Kind{"SGD with momentum", KindId::kMomentum},
    Kind{"Adam", KindId::kAdam},       Kind{"AdamW with amsgrad", KindId::kAmsgrad},
    Kind{"LAMB", KindId::kLamb},       Kind{"Lion", KindId::kLion},
    Kind{"RMSprop", KindId::kRMSprop}, Kind{"NAdam", KindId::kNAdam},
    Kind{"RAdam", KindId::kRAdam},     Kind{"Adagrad", KindId::kAdagrad}};

}  // namespace demi::optim::testing
