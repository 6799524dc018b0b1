// The graphs of recorded_graph.h: what a CUDA graph does holds for them, and what it forbids shows.
#include "tests/recorded_graph.h"

#include <ATen/autocast_mode.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "demi/optim/adamw.h"
#include "demi/optim/backend_testing.h"
#include "demi/optim/testing.h"

namespace {

using at::Tensor;
using demi::DeviceError;
using demi::optim::testing::EmulatedDevice;
using second_device::kDevice;
using testing::HasSubstr;

Tensor numbers(at::IntArrayRef shape, double seed) {
  return demi::optim::testing::parameter(shape, at::kFloat, seed).detach().to(kDevice);
}

bool same_bits(const Tensor& a, const Tensor& b) { return at::equal(a.cpu(), b.cpu()); }

/// The numbers at an address, whoever holds it.
Tensor raw(const float* data, int64_t count) {
  return at::from_blob(const_cast<float*>(data), {count}).clone();
}

/// Each test works on a stream that may be captured.
class RecordedGraph : public ::testing::Test {
 protected:
  using Graph = std::unique_ptr<demi::graph::DeviceGraph>;

  Graph fresh(const Graph& beside = nullptr) const { return graphs_.make(kDevice, beside.get()); }
  Graph recorded(const std::function<void()>& work, const Graph& beside = nullptr) const {
    Graph graph = fresh(beside);
    graph->begin();
    work();
    graph->end();
    return graph;
  }
  static std::string refusal(const std::function<void()>& work) {
    try {
      work();
    } catch (const DeviceError& error) {
      return error.what();
    }
    return "";
  }

  const second_device::Graphs graphs_;
  const c10::StreamGuard stream_{second_device::stream_of_pool()};
};

/// Operations of every sort: in place, into results, over lists, with random numbers, backward.
struct Network {
  Tensor kernel = weight({4, 3, 3, 3}, 1), scale = weight({4}, 2), shift = weight({4}, 3),
         matrix = weight({5, 64}, 4), bias = weight({5}, 5);
  Tensor mean = at::zeros({4}, kDevice), variance = at::ones({4}, kDevice);
  Tensor input = at::zeros({6, 3, 4, 4}, kDevice),
         target = at::zeros({6}, at::TensorOptions(kDevice).dtype(at::kLong));
  Tensor probabilities, loss;  // of the last step

  static Tensor weight(at::IntArrayRef shape, double seed) {
    return numbers(shape, seed).requires_grad_();
  }
  std::vector<Tensor> weights() const { return {kernel, scale, shift, matrix, bias}; }

  void load(int step) {
    input.copy_(numbers(input.sizes(), 10 + step));
    target.copy_((at::arange(6) + step) % 5);
  }
  void step() {
    Tensor x = at::conv2d(input, kernel, {}, 1, 1);
    x = at::batch_norm(x, scale, shift, mean, variance, true, 0.1, 1e-5, false).relu();
    x = at::dropout(x, 0.25, true).flatten(1);
    x = at::cat({x.narrow(1, 32, 32), x.narrow(1, 0, 32)}, 1);
    const Tensor y = at::addmm(bias, x, matrix.t());
    probabilities = at::softmax(y.detach(), 1).index({target});
    loss = at::cross_entropy_loss(y, target) * 2.5;
    for (const Tensor& w : weights())
      if (w.grad().defined()) w.mutable_grad().zero_();
    loss.backward();
  }
};

void expect_same(const Network& a, const Network& b) {
  EXPECT_TRUE(std::isfinite(a.loss.item<float>()));
  EXPECT_TRUE(same_bits(a.loss, b.loss));
  EXPECT_TRUE(same_bits(a.probabilities, b.probabilities));
  EXPECT_TRUE(same_bits(a.mean, b.mean));
  EXPECT_TRUE(same_bits(a.variance, b.variance));
  for (size_t i = 0; i < a.weights().size(); ++i)
    EXPECT_TRUE(same_bits(a.weights()[i].grad(), b.weights()[i].grad())) << i;
}

TEST_F(RecordedGraph, AReplayHasTheBitsOfTheStep) {
  Network plain, replayed;
  for (Network* network : {&plain, &replayed}) {
    torch::manual_seed(1);
    network->load(0);
    network->step();
  }
  const Tensor mean = replayed.mean.cpu();
  EXPECT_FALSE(at::equal(mean, at::zeros({4}))) << "running statistics";
  const Graph graph = recorded([&] { replayed.step(); });
  EXPECT_TRUE(same_bits(replayed.mean, mean)) << "nothing has run";
  Tensor previous;
  for (int step = 1; step < 5; ++step) {
    torch::manual_seed(step);
    plain.load(step);
    plain.step();
    torch::manual_seed(step);
    replayed.load(step);
    graph->replay();
    expect_same(replayed, plain);
    EXPECT_FALSE(previous.defined() && same_bits(previous, replayed.loss));
    previous = replayed.loss.clone();
  }
}

TEST_F(RecordedGraph, AnOperationIsNotedOnce) {
  const Tensor x = numbers({1, 2, 3, 3}, 1), w = numbers({2, 2, 1, 1}, 2);
  const auto operations = [&](const std::function<void()>& work) {
    return dynamic_cast<const second_device::Graph&>(*recorded(work)).size();
  };
  EXPECT_EQ(operations([&] { x.add_(1); }), 1u);
  EXPECT_EQ(operations([&] { (void)at::conv2d(x, w); }), 1u);
  EXPECT_EQ(operations([&] { (void)x.view({18}).narrow(0, 1, 2); }), 0u);
}

TEST_F(RecordedGraph, EachReplayDrawsNewNumbers) {
  Tensor drawn = at::zeros({50}, kDevice);
  torch::manual_seed(3);
  const Tensor expected = at::rand({50}, kDevice);
  torch::manual_seed(3);
  const Graph graph = recorded([&] { drawn.copy_(at::rand({50}, kDevice)); });
  graph->replay();
  EXPECT_TRUE(same_bits(drawn, expected)) << "the recording has drawn none";
  graph->replay();
  EXPECT_FALSE(same_bits(drawn, expected));

  auto own = at::make_generator<at::CPUGeneratorImpl>(3);
  const Graph other = recorded([&] { drawn.uniform_(0, 1, own); });
  other->replay();
  EXPECT_TRUE(same_bits(drawn, expected)) << "nor of a generator of the program's";
}

TEST_F(RecordedGraph, NumbersOfTheHostAreThoseOfTheRecording) {
  const Tensor x = numbers({7}, 1), y = at::zeros({7}, kDevice);
  double rate = 2;
  const Tensor offset = at::scalar_tensor(3, at::kFloat);  // of the CPU
  const auto step = [&] { y.copy_(x.mul(rate).add(offset)); };
  const Graph graph = recorded(step);
  const Tensor before = x * 2 + 3;
  rate = 5;
  offset.fill_(100);
  graph->replay();
  EXPECT_TRUE(same_bits(y, before));
  step();
  EXPECT_FALSE(same_bits(y, before));
}

TEST_F(RecordedGraph, DtypesAreThoseOfTheRecording) {
  const Tensor x = numbers({30, 4}, 1), y = numbers({30, 4}, 2), one = numbers({}, 3);
  Tensor distances, product;
  const Graph graph = recorded([&] {
    distances = at::_cdist_forward(x, y, 2, 1);
    product = ((one * 0.1 + 0.7) * 0.3 + 0.2) * 0.6 + 0.1;
  });
  EXPECT_EQ(product.scalar_type(), at::kFloat);
  at::autocast::set_autocast_enabled(at::kCPU, true);  // which the operation's kernel would see
  graph->replay();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_TRUE(same_bits(distances, at::_cdist_forward(x, y, 2, 1)));
  EXPECT_TRUE(same_bits(product, ((one * 0.1 + 0.7) * 0.3 + 0.2) * 0.6 + 0.1));
}

TEST_F(RecordedGraph, ListsAndResultsThatAreGivenAreWritten) {
  const Tensor x = numbers({2, 3}, 1), z = at::zeros({4}, kDevice);
  Tensor y = at::zeros({2, 3}, kDevice), resized = at::empty({0}, kDevice);
  Tensor copied = at::zeros({2, 3}, kDevice);
  const Tensor rows = at::tensor({1, 0}).to(kDevice);
  const auto step = [&] {
    at::mul_out(resized, x, x);
    at::add_out(y, x, resized);
    at::_foreach_add_({y, z}, 1);
    y.index_put_({rows}, y * 2);
    y.masked_fill_(x > 0.5, 7);
    y.index_put_({x < -0.5}, at::scalar_tensor(9));
    at::_copy_from(y, copied);
  };
  const Graph graph = recorded(step);
  EXPECT_TRUE(same_bits(z, at::zeros({4}))) << "nothing has run";
  EXPECT_TRUE(same_bits(copied, at::zeros({2, 3}))) << "nothing has run";
  for (int i = 1; i < 3; ++i) {
    x.copy_(numbers({2, 3}, 1 + i));
    graph->replay();
    const Tensor seen = y.clone(), squares = resized.clone();
    step();
    EXPECT_TRUE(same_bits(seen, y)) << i;
    EXPECT_TRUE(same_bits(seen, copied)) << i;
    EXPECT_TRUE(same_bits(squares, x * x)) << i;
    EXPECT_TRUE(same_bits(z, at::full({4}, 2 * i)));
  }
}

TEST_F(RecordedGraph, AGradientThatIsMadeOutsideIsNotWritten) {
  const Tensor x = numbers({4}, 1), w = Network::weight({4}, 2);
  const Graph graph = recorded([&] { (w * x).sum().backward(); });
  const Tensor inside = w.grad();
  graph->replay();
  EXPECT_TRUE(same_bits(inside, x));
  w.mutable_grad() = at::zeros({4}, kDevice);
  graph->replay();
  EXPECT_TRUE(same_bits(w.grad(), at::zeros({4})));
  EXPECT_TRUE(same_bits(inside, x));
}

TEST_F(RecordedGraph, AGradientFromBeforeThatIsFreedIsAFault) {
  const Tensor x = numbers({4}, 1), w = Network::weight({4}, 2);
  w.mutable_grad() = at::zeros({4}, kDevice);
  const Graph graph = recorded([&] { (w * x).sum().backward(); });
  graph->replay();
  EXPECT_TRUE(same_bits(w.grad(), x));
  w.mutable_grad() = at::zeros({4}, kDevice);
  EXPECT_THAT(refusal([&] { graph->replay(); }), HasSubstr("freed before; seen: 16 bytes"));
  EXPECT_TRUE(same_bits(w.grad(), at::zeros({4})));
}

TEST_F(RecordedGraph, WhatNobodyHoldsReadsAsNaN) {
  Tensor before = numbers({5}, 1), result;
  const float *within = nullptr, *input = before.const_data_ptr<float>();
  const Graph graph = recorded([&] {
    const Tensor twice = before * 2;
    within = twice.const_data_ptr<float>();
    result = twice + 1;
  });
  EXPECT_TRUE(at::isnan(result.cpu()).all().item<bool>()) << "nothing has run";
  graph->replay();
  EXPECT_TRUE(same_bits(result, before * 2 + 1));
  EXPECT_TRUE(at::isnan(raw(within, 5)).all().item<bool>());
  before = Tensor();
  EXPECT_TRUE(at::isnan(raw(input, 5)).all().item<bool>());
  graph->replay();
  EXPECT_TRUE(at::isnan(result.cpu()).all().item<bool>()) << "its input has been freed";
}

TEST_F(RecordedGraph, WhatIsFreedInTheRecordingStaysFreed) {
  Tensor before = numbers({5}, 1), result;
  const Graph graph = recorded([&] {
    before.add_(1);
    result = before + 1;
    before = Tensor();
  });
  EXPECT_THAT(refusal([&] { graph->replay(); }), HasSubstr("freed before"));
  EXPECT_TRUE(at::isnan(result.cpu()).all().item<bool>());
}

TEST_F(RecordedGraph, ReadsByTheHostAreRefused) {
  const Tensor x = numbers({3, 4}, 1), one = numbers({}, 1), mask = x > 0, host = at::ones({3, 4});
  const Tensor counts = at::ones({3}, at::TensorOptions(kDevice).dtype(at::kLong));
  const Tensor sequence = numbers({2, 1, 3}, 1);
  torch::nn::LSTM lstm(3, 2);
  lstm->to(kDevice);
  const std::vector<std::pair<std::string, std::function<void()>>> reads{
      {"_local_scalar_dense", [&] { (void)one.item<float>(); }},
      {"_local_scalar_dense", [&] { (void)at::is_nonzero(one); }},
      {"copy_", [&] { (void)x.cpu(); }},
      {"copy_",
       [&] {
         at::empty({3, 4}).copy_(x);
       }},
      {"copy_", [&] { x.copy_(host); }},
      {"copy_", [&] { (void)host.to(kDevice, at::kFloat, true); }},
      {"copy_", [&] { one.copy_(at::scalar_tensor(1)); }},
      {"nonzero", [&] { (void)x.nonzero(); }},
      {"masked_select", [&] { (void)x.masked_select(mask); }},
      {"equal", [&] { (void)at::equal(x, x); }},
      {"unique", [&] { (void)at::unique_consecutive(x); }},
      {"unique", [&] { (void)at::_unique2(x); }},
      {"nonzero", [&] { (void)x.index({mask}); }},
      {"index_put", [&] { x.index_put_({mask}, one); }},
      {"repeat_interleave", [&] { (void)at::repeat_interleave(counts); }},
      {"lstm", [&] { (void)lstm(sequence); }},
      {"synchronize", [&] { second_device::current_stream().synchronize(); }},
      {"synchronize", [&] { second_device::Guard().synchronizeDevice(0); }}};
  for (const auto& [name, read] : reads) {
    SCOPED_TRACE(name);
    const Tensor y = at::zeros({4}, kDevice);
    const Graph graph = fresh();
    graph->begin();
    y.add_(1);
    std::string text;
    try {
      read();
    } catch (const c10::Error& error) {
      text = error.what_without_backtrace();
    }
    EXPECT_THAT(text, HasSubstr(name));
    EXPECT_THAT(text, HasSubstr("operation not permitted when stream is capturing"));
    EXPECT_THROW(y.add_(1), c10::Error) << "after the error";
    EXPECT_THAT(refusal([&] { graph->end(); }), HasSubstr("operation not permitted"));
    EXPECT_THAT(refusal([&] { graph->replay(); }), HasSubstr("nothing has been recorded"));
    graph->abandon();
    EXPECT_TRUE(same_bits(y, at::zeros({4})));
    read();
  }
}

TEST_F(RecordedGraph, SizesThatTheHostKnowsAreNoReads) {
  const Tensor x = numbers({3}, 1);
  const Tensor counts = at::tensor({1, 0, 2}).to(kDevice);
  Tensor repeated;
  const Graph graph = recorded([&] { repeated = at::repeat_interleave(x, counts, 0, 3); });
  graph->replay();
  EXPECT_TRUE(same_bits(repeated, at::repeat_interleave(x.cpu(), counts.cpu(), 0)));
}

TEST_F(RecordedGraph, AnAbandonedOneHasLeftNothing) {
  const Tensor x = numbers({4}, 1), expected = x.clone();
  torch::manual_seed(3);
  const Tensor drawn = at::rand({4});
  torch::manual_seed(3);
  const Graph graph = fresh();
  graph->abandon();  // nothing has begun
  graph->begin();
  Tensor made = x + 1;
  x.add_(at::rand_like(x));
  EXPECT_THROW(x + at::ones({3}, kDevice), c10::Error);
  graph->abandon();
  EXPECT_TRUE(same_bits(x, expected));
  EXPECT_TRUE(at::equal(at::rand({4}), drawn));
  made.fill_(2);  // memory that somebody holds stays
  EXPECT_THAT(refusal([&] { graph->replay(); }), HasSubstr("nothing has been recorded"));
  EXPECT_THAT(refusal([&] { graph->begin(); }), HasSubstr("recorded before"));
  EXPECT_NO_THROW(recorded([&] { x.add_(1); })->replay());
  EXPECT_TRUE(same_bits(x, expected + 1));
}

TEST_F(RecordedGraph, GraphsBesideEachOtherShareTheirMemory) {
  const Tensor x = numbers({4}, 1);
  Tensor y, z;
  Graph first = recorded([&] { y = x * 2; });
  const Graph second = recorded([&] { z = y + 1; }, first);
  EXPECT_TRUE(at::isnan(y.cpu()).all().item<bool>()) << "written by the first alone";
  first->replay();
  second->replay();
  EXPECT_TRUE(same_bits(z, x * 2 + 1));
  const float* data = y.const_data_ptr<float>();
  first.reset();
  y = Tensor();
  EXPECT_TRUE(at::isnan(raw(data, 4)).all().item<bool>()) << "kept, and lost";
  second->replay();
  EXPECT_TRUE(at::isnan(z.cpu()).all().item<bool>());
}

TEST_F(RecordedGraph, TensorsOutliveTheGraph) {
  const Tensor x = numbers({4}, 1);
  Tensor y;
  recorded([&] { y = x * 2; })->replay();
  EXPECT_TRUE(same_bits(y, x * 2));
}

TEST_F(RecordedGraph, WorkOfOtherStreamsIsNotRecorded) {
  const Tensor x = numbers({4}, 1), y = at::zeros({4}, kDevice), host = at::ones({4});
  bool captures_there = true;
  const Graph graph = recorded([&] {
    x.add_(1);
    EXPECT_TRUE(second_device::current_stream().is_capturing());
    std::thread([&] {
      captures_there = second_device::current_stream().is_capturing();
      y.copy_(host);  // as a loader
      y.add_(y.sum().item<float>());
    }).join();
  });
  EXPECT_FALSE(second_device::current_stream().is_capturing());
  EXPECT_FALSE(captures_there);
  EXPECT_TRUE(same_bits(y, at::full({4}, 5)));
  graph->replay();
  EXPECT_TRUE(same_bits(y, at::full({4}, 5)));
  EXPECT_TRUE(same_bits(x, numbers({4}, 1) + 1));
}

TEST_F(RecordedGraph, StreamsJoinByEvents) {
  const Tensor x = at::zeros({4}, kDevice);
  const c10::Stream main = second_device::current_stream(), side = second_device::stream_of_pool();
  c10::Event within(kDevice.type());
  const auto fork = [&](bool joins) {
    within.record(main);
    c10::Event event(kDevice.type());
    event.record(main);
    event.block(side);
    {
      const c10::StreamGuard guard(side);
      x.add_(1);
    }
    if (!joins) return;
    event.record(side);
    event.block(main);
  };
  const Graph graph = recorded([&] { fork(true); });
  EXPECT_TRUE(same_bits(x, at::zeros({4})));
  graph->replay();
  EXPECT_TRUE(same_bits(x, at::ones({4})));
  EXPECT_THAT(refusal([&] { recorded([&] { fork(false); }); }), HasSubstr("nobody waits for"));

  EXPECT_THROW(within.block(side), c10::Error) << "recorded in a capture";
  c10::Event outside(kDevice.type());
  outside.record(side);
  const auto waits = [&] { outside.block(main); };
  EXPECT_THROW(recorded(waits), c10::Error) << "for work that is not captured";
  EXPECT_NO_THROW(waits());
  const auto legacy = [&] {
    c10::Event event(kDevice.type());
    event.record(main);
    event.block(c10::Stream(c10::Stream::DEFAULT, kDevice));
  };
  EXPECT_THROW(recorded(legacy), c10::Error);
}

// LibTorch sees the stream of a node that was made before.
TEST_F(RecordedGraph, NodesOfTheDefaultStreamAreRefused) {
  const Tensor w = Network::weight({4}, 2);
  Tensor product;
  {
    const c10::StreamGuard guard(c10::Stream(c10::Stream::DEFAULT, kDevice));
    product = w * 3;
  }
  EXPECT_THROW(recorded([&] { (product * 2).sum().backward(); }), c10::Error);
}

TEST_F(RecordedGraph, BeginsOnceOnAStreamOfItsOwn) {
  {
    const c10::StreamGuard guard(c10::Stream(c10::Stream::DEFAULT, kDevice));
    EXPECT_THAT(refusal([&] { fresh()->begin(); }), HasSubstr("default stream"));
  }
  const Graph graph = fresh();
  EXPECT_THAT(refusal([&] { graph->end(); }), HasSubstr("no recording"));
  graph->begin();
  EXPECT_THAT(refusal([&] { fresh()->begin(); }), HasSubstr("another graph"));
  EXPECT_THAT(refusal([&] { graph->begin(); }), HasSubstr("recorded before"));
  const c10::StreamGuard guard(second_device::stream_of_pool());
  EXPECT_THAT(refusal([&] { graph->end(); }), HasSubstr("same stream"));
  EXPECT_FALSE(second_device::UnderWay::get());
}

TEST_F(RecordedGraph, OtherDevicesHaveNone) {
  EXPECT_EQ(graphs_.obstacle(kDevice), "");
  EXPECT_NE(graphs_.obstacle(c10::kCPU), "");
  EXPECT_THROW(graphs_.make(c10::kCPU, nullptr), demi::UsageError);
}

// A step as a program captures it: LibTorch's operations, demi's kernels, and operations again.
TEST_F(RecordedGraph, KernelsAreReplayedInTheOrderOfTheProgram) {
  const EmulatedDevice device(kDevice.type());
  struct Training {
    explicit Training(const EmulatedDevice& backend)
        : adamw(backend, {w}, demi::optim::AdamWOptions(0.1).weight_decay(0.01)) {}
    void step() {
      if (w.grad().defined()) w.mutable_grad().zero_();
      (w * input).pow(2).sum().backward();
      adamw.step();
      seen.copy_(w.detach() * 2);
    }
    Tensor w = Network::weight({300}, 2), input = numbers({300}, 0);
    Tensor seen = at::zeros({300}, kDevice);
    demi::optim::testing::On<demi::optim::AdamW> adamw;
  };
  Training plain(device), replayed(device);
  plain.step();
  replayed.step();
  const Tensor before = replayed.w.detach().clone();
  const auto launches = EmulatedDevice::launches();
  const auto graph = recorded([&] {
    EXPECT_TRUE(device.is_capturing(kDevice));
    EXPECT_TRUE(demi::optim::machine_backend().is_capturing(kDevice));
    std::thread([&] { EXPECT_FALSE(device.is_capturing(kDevice)); }).join();
    replayed.step();
  });
  EXPECT_FALSE(device.is_capturing(kDevice));
  EXPECT_GT(EmulatedDevice::launches(), launches);
  EXPECT_TRUE(same_bits(replayed.w.detach(), before)) << "nothing has run";
  for (int step = 1; step < 5; ++step) {
    for (Training* training : {&plain, &replayed}) training->input.copy_(numbers({300}, step));
    plain.step();
    graph->replay();
    EXPECT_TRUE(same_bits(replayed.w.detach(), plain.w.detach())) << step;
    EXPECT_TRUE(same_bits(replayed.seen, plain.seen)) << step;
    EXPECT_TRUE(same_bits(replayed.seen, replayed.w.detach() * 2)) << step;
  }
}

TEST_F(RecordedGraph, TheFirstStepOfAParameterIsRefused) {
  const EmulatedDevice device(kDevice.type());
  const Tensor w = Network::weight({30}, 2);
  demi::optim::testing::On<demi::optim::AdamW> adamw(device, {w}, demi::optim::AdamWOptions(0.1));
  w.mutable_grad() = numbers({30}, 3);
  const Graph graph = fresh();
  graph->begin();
  EXPECT_THROW(adamw.step(), demi::UsageError);
  graph->abandon();
  EXPECT_NO_THROW(adamw.step());
}

}  // namespace
