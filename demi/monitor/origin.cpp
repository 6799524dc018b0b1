#include "demi/monitor/origin.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace demi::monitor {
namespace {

bool is_sound(const Origin::Trial& trial) {
  return trial.loss_is_finite && trial.gradients_are_finite && trial.values_are_finite;
}

// "in the layer fc" if the op reads its weights, "after the layer fc" if it only follows it.
std::string layer_words(const Origin& origin) {
  if (origin.name.empty()) return "before any layer";
  return (origin.reads_weights ? "in the layer " : "after the layer ") + origin.name;
}

std::string op_words(const Origin& origin) {
  if (origin.op.empty())
    return "the batch was repeated, and was finite then: what made it is not known";
  const std::string did =
      origin.refusal.empty() ? "made it" : "refused its arguments (" + origin.refusal + ")";
  if (origin.place == Origin::Place::forward) {
    const std::string inside = origin.inner.empty() ? "" : " (its " + origin.inner + ")";
    return fmt::format("{}{} {} in forward, {}", origin.op, inside, did, layer_words(origin));
  }
  const std::string by =
      origin.inner.empty() ? "a tensor's hook, or a sum of gradients," : origin.inner;
  const std::string of =
      origin.name.empty() ? "" : ", the backward of an op " + layer_words(origin);
  return fmt::format("{} in {} {} in backward{}", origin.op, by, did, of);
}

std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += (all.empty() ? "" : ", ") + text;
  return all;
}

// Why FP32 itself does not hold it.
std::string advice_on_numbers(const Origin& origin) {
  constexpr double kSquareOverflows = 1e19;
  const auto reaches_0 = [](const Origin::Input& input) {
    return input.least <= 0 && input.greatest >= 0;
  };
  const auto is_huge = [](const Origin::Input& input) {
    return std::max(std::abs(input.least), std::abs(input.greatest)) >= kSquareOverflows;
  };
  if (std::ranges::any_of(origin.inputs, is_huge))
    return "the numbers that go in are too large: a lower learning rate, clipped gradients, or a "
           "normalisation in front of it";
  if (std::ranges::any_of(origin.inputs, reaches_0))
    return "a number that goes in is 0 or changes its sign: if the op or its derivative is not "
           "finite there, add an epsilon or clamp it";
  return "look at the numbers that go in, and at the learning rate";
}

// The advice if there is no other way to run the step to compare it with.
std::string advice_without_trials(const Origin& origin) {
  switch (origin.place) {
    case Origin::Place::data:
      return "leave the example out, or mend it";
    case Origin::Place::state:
      return "look at what loaded it, or wrote it between two steps; resume from an older "
             "checkpoint, or from other weights";
    case Origin::Place::update:
      return "a lower learning rate, or clipped gradients: the square of a gradient beyond 1.8e19 "
             "is Inf";
    case Origin::Place::buffer:
      return "an activation is too large, or its variance has no second number: look at what goes "
             "into that layer";
    case Origin::Place::forward:
    case Origin::Place::backward:
      break;
  }
  return origin.op.empty() ? "" : advice_on_numbers(origin);
}

}  // namespace

std::string cause_of(const Origin& origin) {
  switch (origin.place) {
    case Origin::Place::data:
      return "the batch's " + origin.name + " holds it";
    case Origin::Place::state:
      if (origin.nonfinite.empty()) return "the " + origin.name + " held it before the step";
      return "it was there before the step: " + joined(origin.nonfinite);
    case Origin::Place::update:
      return "the optimizers' step wrote it: " + joined(origin.nonfinite);
    case Origin::Place::buffer:
      return "forward wrote it: " + joined(origin.nonfinite);
    case Origin::Place::forward:
    case Origin::Place::backward:
      break;
  }
  const std::string words = op_words(origin);
  return origin.vanishes ? words + ", and it vanishes again: loss and gradients are finite" : words;
}

namespace {

std::string inputs_of(const Origin& origin) {
  std::string text;
  for (const Origin::Input& input : origin.inputs)
    text += fmt::format("{}{} from {:g} to {:g}", text.empty() ? "; its inputs: " : "; ",
                        input.what, input.least, input.greatest);
  return text;
}

std::string words_of(const Origin::Trial& trial, const Origin& origin) {
  const bool both = !trial.autocast && !trial.scaler && origin.trials.size() > 1;
  std::string text = both              ? "without both: "
                     : !trial.autocast ? "without autocast: "
                                       : "without loss scaling: ";
  if (is_sound(trial)) return text + "finite";
  if (!trial.values_are_finite) return text + "Inf or NaN in forward, too";
  return text + (trial.loss_is_finite ? "gradients hold Inf or NaN" : "loss is NaN or Inf");
}

std::string advice(const Origin& origin) {
  if (origin.trials.empty()) return advice_without_trials(origin);
  if (origin.is_loss_scale()) return "the loss scale is too high for this step, and nothing else";
  const auto helps = [&](const Origin::Trial& trial) { return !trial.autocast && is_sound(trial); };
  if (std::ranges::any_of(origin.trials, helps)) {
    const std::string part = origin.name.empty() ? "" : " such as " + origin.name;
    return "16 bits make it: let the op, or a part of the model" + part + ", run in FP32";
  }
  return "neither takes it away: " + advice_on_numbers(origin);
}

}  // namespace

std::string_view name_of(Origin::Place place) {
  switch (place) {
    case Origin::Place::data:
      return "data";
    case Origin::Place::state:
      return "state";
    case Origin::Place::update:
      return "update";
    case Origin::Place::buffer:
      return "buffer";
    case Origin::Place::forward:
      return "forward";
    case Origin::Place::backward:
      break;
  }
  return "backward";
}

bool Origin::is_loss_scale() const {
  if (place != Place::backward) return false;
  return std::ranges::any_of(trials, [](const Trial& trial) {
    return trial.autocast && !trial.scaler && is_sound(trial);
  });
}

std::string to_string(const Origin& origin) {
  std::string text =
      fmt::format("Inf or NaN in step {}: {}{}", origin.step, cause_of(origin), inputs_of(origin));
  for (const Origin::Trial& trial : origin.trials) text += "; " + words_of(trial, origin);
  const std::string hint = advice(origin);
  return hint.empty() ? text : text + "; " + hint;
}

}  // namespace demi::monitor
