// Proximal policy optimisation (PPO; Schulman et al. 2017) whose training steps are replayed from a
// CUDA graph on a GPU. The rate falls with each rollout and the loss scale moves, and the next
// replay uses both: demi::optim::Adam reads rate and step count on the device. A graph of
// torch::optim::Adam has the two of the step in which it was recorded. On a CPU the same steps run
// plainly.
//
//     captured_ppo [DEVICE [DTYPE]]
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "demi/demi.h"
#include "examples/arguments.h"

namespace {

constexpr int64_t kPoles = 32, kSteps = 128, kMiniBatch = 512, kEpochs = 4, kRollouts = 12;
constexpr double kDiscount = 0.99, kTrace = 0.95, kClip = 0.2, kFirstRate = 2e-3;

using Tensors = std::vector<torch::Tensor>;

// Poles on carts, to be kept upright by pushes to the left or right (Barto, Sutton and Anderson
// 1983, with the constants of Gym's CartPole). Each step is worth 1. An episode ends when the pole
// falls or the cart leaves its track, and after 200 steps. Nothing waits for the device.
struct Poles {
  torch::Tensor state;  // (N, 4): place, speed, angle, angular speed
  torch::Tensor age;    // (N), steps of the episode

  explicit Poles(torch::Device device)
      : state(start(device)), age(torch::zeros({kPoles}, device)) {}

  static torch::Tensor start(torch::Device device) {
    return torch::rand({kPoles, 4}, device) * 0.1 - 0.05;
  }

  struct Outcome {
    torch::Tensor next;         // (N, 4), before a new episode begins
    torch::Tensor fell, ended;  // (N), bool
    torch::Tensor age;          // (N)
  };

  // `right`: (N), bool.
  Outcome push(const torch::Tensor& right) {
    const auto x = state.unbind(1);
    const auto sine = x[2].sin(), cosine = x[2].cos();
    const auto pushed = (right.to(torch::kFloat) * 20 - 10 + x[3].square() * sine * 0.05) / 1.1;
    const auto turn = (sine * 9.8 - cosine * pushed) / ((4 / 3. - cosine.square() * 0.1 / 1.1) / 2);
    const auto speed_up = pushed - turn * cosine * 0.05 / 1.1;
    const auto next = state + torch::stack({x[1], speed_up, x[3], turn}, 1) * 0.02;
    age = age + 1;
    const auto fell =
        (next.select(1, 0).abs() > 2.4).logical_or(next.select(1, 2).abs() > 12 * M_PI / 180);
    Outcome outcome{next, fell, fell.logical_or(age >= 200), age};
    state = torch::where(outcome.ended.unsqueeze(1), start(next.device()), next);
    age = torch::where(outcome.ended, torch::zeros_like(age), age);
    return outcome;
  }
};

torch::nn::Sequential layers(int64_t out) {
  using torch::nn::Linear;
  using torch::nn::Tanh;
  return torch::nn::Sequential(Linear(4, 64), Tanh(), Linear(64, 64), Tanh(), Linear(64, out));
}

struct PolicyAndValue : torch::nn::Module {
  torch::nn::Sequential policy = register_module("policy", layers(2));
  torch::nn::Sequential value = register_module("value", layers(1));

  // (N, 4) -> (N, 3): the logits of left and right, and the value
  torch::Tensor forward(const torch::Tensor& state) {
    return torch::cat({policy->forward(state), value->forward(state)}, 1);
  }
};

torch::Tensor log_policy(const torch::Tensor& output) {
  return torch::log_softmax(output.narrow(1, 0, 2), 1);
}

// What one rollout gives to train on: rows of kSteps * kPoles.
struct Rollout {
  torch::Tensor states;                            // (R, 4)
  torch::Tensor actions;                           // (R, 1), 0 or 1
  torch::Tensor log_chances, advantages, returns;  // (R)
  torch::Tensor mean_return;                       // (), of the episodes that ended
};

// `run`: the network as it is trained, (N, 4) -> (N, 3) in FP32.
template <class Run>
Rollout roll_out(Poles& poles, const Run& run) {
  const torch::NoGradGuard no_grad;
  Tensors states, outputs, actions, fell, ended, next_states, ages;
  for (int64_t t = 0; t < kSteps; ++t) {
    states.push_back(poles.state);
    outputs.push_back(run(poles.state));
    const auto chance = log_policy(outputs.back()).exp().select(1, 1);
    actions.push_back(torch::rand_like(chance) < chance);
    const Poles::Outcome outcome = poles.push(actions.back());
    next_states.push_back(outcome.next);
    fell.push_back(outcome.fell);
    ended.push_back(outcome.ended.to(torch::kFloat));
    ages.push_back(outcome.age);
  }
  // After the last of its 200 steps a pole would have stood on: its value counts.
  const auto output = torch::stack(outputs);  // (T, N, 3)
  const auto value = output.select(2, 2);     // (T, N)
  const auto next_value = run(torch::cat(next_states)).select(1, 2).view_as(value);
  const auto errors = 1 + kDiscount * next_value.masked_fill(torch::stack(fell), 0) - value;
  Tensors advantages(kSteps);
  auto advantage = torch::zeros_like(errors[0]);
  for (int64_t t = kSteps; t-- > 0;) {
    const auto goes_on = 1 - ended[static_cast<std::size_t>(t)];
    advantage = errors[t] + kDiscount * kTrace * goes_on * advantage;
    advantages[static_cast<std::size_t>(t)] = advantage;
  }
  const auto gains = torch::cat(advantages), ends = torch::stack(ended);
  const auto chosen = torch::cat(actions).to(torch::kLong).unsqueeze(1);
  return {.states = torch::cat(states),
          .actions = chosen,
          .log_chances = log_policy(output.view({-1, 3})).gather(1, chosen).squeeze(1),
          .advantages = gains,
          .returns = gains + value.reshape(-1),
          .mean_return = (torch::stack(ages) * ends).sum() / ends.sum().clamp_min(1)};
}

// `to`: actions, logarithms of their chances when they were taken, advantages, returns.
torch::Tensor ppo_loss(const torch::Tensor& output, const Tensors& to) {
  const auto all = log_policy(output);
  const auto ratio = (all.gather(1, to[0]).squeeze(1) - to[1]).exp();
  const auto advantage = (to[2] - to[2].mean()) / (to[2].std() + 1e-8);
  const auto gain =
      torch::minimum(ratio * advantage, ratio.clamp(1 - kClip, 1 + kClip) * advantage);
  const auto entropy = -(all.exp() * all).sum(1);
  const auto value_loss = (output.select(1, 2) - to[3]).square();
  return (value_loss * 0.5 - gain - entropy * 0.01).mean();
}

}  // namespace

int main(int argc, char** argv) {
  const auto [device, dtype] = read_arguments(argc, argv, torch::kBFloat16);
  torch::set_num_threads(1);  // several wait for each other longer than such small tensors take
  torch::manual_seed(0);
  PolicyAndValue network;
  network.to(device);
  demi::optim::Adam adam(network.parameters(), demi::optim::AdamOptions(kFirstRate).eps(1e-5));
  demi::GradScaler scaler({.enabled = dtype == torch::kHalf});
  demi::loop::Step step(
      {.models = {&network}, .optimizers = {&adam}, .scaler = &scaler},
      {.precision = demi::parse_precision(dtype == torch::kHalf ? "fp16" : "bf16"),
       .device = device,
       .clip_norm = 0.5,
       .read_every = 0,
       .graph = demi::loop::GraphMode::automatic});
  // In the region, as in training: the ratio of the first step is 1. What the policy does is
  // recorded, too, in the memory of the step's graphs.
  demi::loop::GraphedCall act(
      {&network},
      [&, on = device, dtype = dtype](const Tensors& in) {
        const demi::Autocast region(on.type(), dtype);
        return Tensors{network.forward(in[0]).to(torch::kFloat)};
      },
      {.device = device}, step);
  const auto run = [&](const torch::Tensor& states) { return act({states}).front(); };

  Poles poles(device);
  double first = 0, last = 0;
  for (int64_t n = 0; n < kRollouts; ++n) {
    const double rate = kFirstRate * (1 - static_cast<double>(n) / static_cast<double>(kRollouts));
    for (auto& group : adam.param_groups()) group.options().set_lr(rate);
    const Rollout rollout = roll_out(poles, run);
    auto loss = torch::zeros({}, device);
    int64_t steps = 0;
    for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
      for (const auto& rows : torch::randperm(kSteps * kPoles, device).split(kMiniBatch)) {
        loss += step.batch(
            {rollout.states.index_select(0, rows)},
            {rollout.actions.index_select(0, rows), rollout.log_chances.index_select(0, rows),
             rollout.advantages.index_select(0, rows), rollout.returns.index_select(0, rows)},
            [&](const Tensors& in) { return network.forward(in[0]); }, ppo_loss);
        step.finish();
        ++steps;
      }
    }
    last = rollout.mean_return.item<double>();
    if (n == 0) first = last;
    std::printf("rollout %2d: mean return %5.1f, rate %.6f, loss %.3f\n", static_cast<int>(n + 1),
                last, rate, loss.item<double>() / static_cast<double>(steps));
  }

  const auto counts = step.graph_counts();
  std::printf("%d of %d launches were replays of %d graphs%s%s\n", static_cast<int>(counts.replays),
              static_cast<int>(2 * step.steps_taken()), static_cast<int>(counts.recorded),
              counts.refusal.empty() ? "" : ": ", counts.refusal.c_str());
  const bool replayed = counts.replays > 0 || !counts.refusal.empty();
  return first < 40 && last > 100 && replayed ? EXIT_SUCCESS : EXIT_FAILURE;
}
