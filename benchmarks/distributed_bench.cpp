// One rank of benchmarks/distributed.py: a training step on several ranks, its computation alone
// and its communication alone, in turn.
//
//   distributed_bench PRECISION [--layers N] [--width N] [--batch N] [--steps N] [--bucket-kb N]
//                     [--shard 0|1] [--half 0|1] [--trace FILE]
//
// PRECISION is fp32 or bf16. The model is N layers Linear(width, width) and ReLU without biases,
// the batch that of each rank, the optimizer SGD. What the ranks' gradients become is checked
// before anything is timed. Rank 0 prints one JSON object: medians in milliseconds, and the bytes
// that each rank received in one backward and in the optimizer's step after it, as the kernel
// counts them. --shard 1: the ranks share the optimizer's state, and the optimizer's step alone is
// timed (sharded_step_ms): update, and what each rank sends to the others. --bucket-kb counts for
// that, too. --half 1: parameters of bf16. --trace: rank 0 writes one more step of all ranks as a
// Chrome trace.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iomanip>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "demi/autocast/autocast.h"
#include "demi/core/error.h"
#include "demi/distributed/distributed_data_parallel.h"
#include "demi/distributed/process_group.h"
#include "demi/distributed/sharded_optimizer_state.h"
#include "demi/optim/sgd.h"

namespace {

using demi::distributed::DistributedDataParallel;
using demi::distributed::ProcessGroup;

struct Options {
  bool bf16 = false;
  std::string trace;  // a file; empty: none
  std::map<std::string, int64_t> numbers{{"--layers", 8}, {"--width", 1024},  {"--batch", 64},
                                         {"--steps", 15}, {"--bucket-kb", 0}, {"--shard", 0},
                                         {"--half", 0}};
};

Options options_of(int argc, char** argv) {
  Options options;
  const std::string precision = argc > 1 ? argv[1] : "";
  if (precision != "fp32" && precision != "bf16")
    throw std::runtime_error("the first argument is fp32 or bf16; seen: " + precision);
  options.bf16 = precision == "bf16";
  for (int i = 2; i + 1 < argc; i += 2) {
    if (std::string(argv[i]) == "--trace") {
      options.trace = argv[i + 1];
      continue;
    }
    const auto known = options.numbers.find(argv[i]);
    if (known == options.numbers.end())
      throw std::runtime_error(std::string("no such option: ") + argv[i]);
    known->second = std::atoll(argv[i + 1]);
  }
  return options;
}

double milliseconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

// The gradients that DistributedDataParallel leaves are the mean of the ranks' own.
void check_gradients(torch::nn::Sequential& model, ProcessGroup& group,
                     DistributedDataParallel& parallel, const std::function<void()>& backward) {
  model->zero_grad();
  std::vector<torch::Tensor> means;
  {
    const auto alone = parallel.no_sync();
    backward();
    for (const auto& p : model->parameters()) means.push_back(p.grad().to(torch::kFloat64));
  }
  model->zero_grad();
  backward();
  const auto parameters = model->parameters();
  for (std::size_t i = 0; i < means.size(); ++i) {
    group.all_reduce(means[i]);
    means[i] /= static_cast<double>(group.world_size());
    const auto gradient = parameters[i].grad();
    const double digit = gradient.scalar_type() == torch::kFloat ? 1e-5 : 1.0 / 64;
    const auto error = (gradient.to(torch::kFloat64) - means[i]).abs().max().item<double>();
    if (!(error <= digit * means[i].abs().max().item<double>()))
      throw std::runtime_error("the gradients are not the ranks' mean");
  }
}

// All that this process's TCP connections have received so far, without headers.
double received_bytes() {
  double sum = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    tcp_info info{};
    socklen_t size = sizeof(info);
    if (getsockopt(std::atoi(entry.path().filename().c_str()), IPPROTO_TCP, TCP_INFO, &info,
                   &size) == 0)
      sum += static_cast<double>(info.tcpi_bytes_received);
  }
  return sum;
}

// By rank: what it receives while `work` runs on all of them.
std::vector<double> received_in(ProcessGroup& group, const std::function<void()>& work) {
  group.barrier();  // the others have sent what came before
  const double before = received_bytes();
  group.barrier();  // and nothing of what follows
  work();
  group.barrier();
  const auto all = torch::zeros({group.world_size()}, torch::kFloat64);
  all[group.rank()] = received_bytes() - before;
  group.all_reduce(all);
  return {all.data_ptr<double>(), all.data_ptr<double>() + all.numel()};
}

template <class Number>
std::string json_list(const std::vector<Number>& numbers) {
  std::string text = "[";
  for (const Number number : numbers)
    text += (text.size() > 1 ? ", " : "") + std::to_string(static_cast<int64_t>(number));
  return text + "]";
}

// One step of all ranks: what each computes, when each of its buckets is under way, and how long it
// waits. Microseconds since the ranks left a barrier, by each one's own clock.
class Trace {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Trace(Clock::time_point begin) : begin_(begin) {}
  void add(std::string name, Clock::time_point from, Clock::time_point to, int lane = 0) {
    names_.push_back(std::move(name));
    lanes_.push_back(lane);
    for (const auto time : {from, to})
      times_.push_back(std::chrono::duration<double, std::micro>(time - begin_).count());
  }
  // On every rank. Rank 0 writes the file.
  void write(ProcessGroup& group, const std::string& path) const {
    const auto all = torch::zeros({group.world_size(), std::ssize(times_)}, torch::kFloat64);
    all[group.rank()] = torch::tensor(times_, torch::kFloat64);
    group.all_reduce(all);
    if (group.rank() != 0) return;
    std::ofstream file(path);
    file << "{\"traceEvents\": [\n" << std::fixed << std::setprecision(3);
    for (int rank = 0; rank < group.world_size(); ++rank) {
      file << event("process_name", "M", rank, 0) << R"(, "args": {"name": "rank )" << rank
           << "\"}},\n";
      for (std::size_t i = 0; i < names_.size(); ++i) {
        const double from = all[rank][2 * static_cast<int64_t>(i)].item<double>();
        const double to = all[rank][2 * static_cast<int64_t>(i) + 1].item<double>();
        file << event(names_[i], "X", rank, lanes_[i]) << ", \"ts\": " << from
             << ", \"dur\": " << to - from << "},\n";
      }
      for (const int lane : std::set<int>(lanes_.begin(), lanes_.end()))
        file << event("thread_name", "M", rank, lane) << R"(, "args": {"name": ")"
             << (lane == 0 ? "step" : "link, bucket " + std::to_string(lane)) << "\"}}"
             << (rank + 1 == group.world_size() && lane == lanes_.back() ? "\n" : ",\n");
    }
    file << "], \"displayTimeUnit\": \"ms\"}\n";
    if (!file.flush()) throw std::runtime_error("cannot write " + path);
  }

 private:
  static std::string event(const std::string& name, const char* phase, int rank, int lane) {
    return R"({"name": ")" + name + R"(", "ph": ")" + phase + R"(", "pid": )" +
           std::to_string(rank) + R"(, "tid": )" + std::to_string(lane);
  }

  Clock::time_point begin_;
  std::vector<std::string> names_;
  std::vector<int> lanes_;
  std::vector<double> times_;  // from and to of each
};

// The last step must have reduced the gradients as it is traced: not the first one of a plan.
void trace_step(ProcessGroup& group, const DistributedDataParallel& parallel,
                torch::optim::Optimizer& optimizer, const std::function<torch::Tensor()>& forward,
                const std::string& path) {
  using Clock = Trace::Clock;
  optimizer.zero_grad();
  group.barrier();
  const auto begin = Clock::now();
  const auto loss = forward();
  const auto middle = Clock::now();
  loss.backward();
  const auto end = Clock::now();
  optimizer.step();
  const auto stepped = Clock::now();
  const auto& reduced = parallel.last_reduced();
  Trace trace(begin);
  trace.add("forward", begin, middle);
  trace.add("backward", middle, reduced.backward_ended);
  trace.add("wait", reduced.backward_ended, reduced.averaged);
  trace.add("step", end, stepped);
  for (std::size_t b = 0; b < reduced.sent.size(); ++b)
    trace.add("all-reduce of bucket " + std::to_string(b + 1), reduced.sent[b].sent,
              reduced.sent[b].ended, static_cast<int>(b) + 1);
  trace.write(group, path);
}

void run(const Options& options) {
  const int64_t layers = options.numbers.at("--layers"), width = options.numbers.at("--width");
  ProcessGroup group;
  if (group.world_size() == 1) throw std::runtime_error("one rank sends nothing: start several");
  torch::manual_seed(0);
  torch::nn::Sequential model;
  for (int64_t i = 0; i < layers; ++i) {
    model->push_back(torch::nn::Linear(torch::nn::LinearOptions(width, width).bias(false)));
    model->push_back(torch::nn::ReLU());
  }
  if (options.numbers.at("--half") != 0) model->to(torch::kBFloat16);
  demi::distributed::DistributedOptions settings;
  if (const int64_t kb = options.numbers.at("--bucket-kb"); kb > 0)
    settings.bucket_bytes = settings.first_bucket_bytes = kb * 1024;
  DistributedDataParallel parallel(*model, group, settings);
  demi::optim::SGD optimizer(model->parameters(), demi::optim::SGDOptions(1e-4),
                             {.low_precision_grads = true});
  std::optional<demi::distributed::ShardedOptimizerState> shards;
  if (options.numbers.at("--shard") != 0) {
    demi::distributed::ShardOptions pieces;
    if (const int64_t kb = options.numbers.at("--bucket-kb"); kb > 0)
      pieces.bucket_bytes = kb * 1024;
    shards.emplace(optimizer, group, pieces);
  }
  torch::manual_seed(1 + group.rank());
  const auto input = torch::randn({options.numbers.at("--batch"), width});
  const auto target = torch::randn_like(input);

  const auto forward = [&] {
    const demi::Autocast region(torch::kCPU, {.dtype = torch::kBFloat16, .enabled = options.bf16});
    return torch::mse_loss(model->forward(input), target);
  };
  const auto backward = [&] { forward().backward(); };
  const auto step = [&] {
    optimizer.zero_grad();
    backward();
    optimizer.step();
  };
  for (int warm_up = 0; warm_up < 3; ++warm_up) step();
  check_gradients(model, group, parallel, backward);
  const auto reduced = parallel.last_reduced();
  optimizer.zero_grad();
  const std::vector<double> of_backward = received_in(group, backward);
  const std::vector<double> of_step = received_in(group, [&] { optimizer.step(); });

  const auto bucket = torch::zeros({reduced.bytes / reduced.buckets / (options.bf16 ? 2 : 4)},
                                   options.bf16 ? torch::kBFloat16 : torch::kFloat);
  std::vector<double> steps, forwards, computations, communications;
  for (int64_t i = 0; i < (shards ? 0 : options.numbers.at("--steps")); ++i) {
    group.barrier();
    steps.push_back(milliseconds(step));
    group.barrier();
    forwards.push_back(milliseconds([&] { forward(); }));
    group.barrier();
    computations.push_back(milliseconds([&] {
      const auto alone = parallel.no_sync();
      step();
    }));
    group.barrier();
    communications.push_back(milliseconds([&] {
      for (int b = 0; b < reduced.buckets; ++b) group.all_reduce(bucket);
    }));
    // Steps without communication take the ranks apart.
    for (const auto& p : model->parameters()) group.broadcast(p.detach());
  }
  std::vector<double> sharded_steps;
  for (int64_t i = 0; i < (shards ? options.numbers.at("--steps") : 0); ++i) {
    group.barrier();
    sharded_steps.push_back(milliseconds([&] { optimizer.step(); }));
  }
  if (!options.trace.empty()) trace_step(group, parallel, optimizer, forward, options.trace);
  if (group.rank() != 0) return;
  const auto& kept = shards ? shards->elements() : std::vector<int64_t>();
  std::printf(
      "{\"ranks\": %d, \"parameters\": %lld, \"bytes\": %lld, \"buckets\": %d, \"step_ms\": %.3f, "
      "\"forward_ms\": %.3f, \"compute_ms\": %.3f, \"communication_ms\": %.3f, "
      "\"sharded_step_ms\": %.3f, "
      "\"received_in_backward\": %s, \"received_in_step\": %s, \"kept_elements\": %s}\n",
      group.world_size(), static_cast<long long>(layers * width * width),
      static_cast<long long>(reduced.bytes), reduced.buckets, median(steps), median(forwards),
      median(computations), median(communications), median(sharded_steps),
      json_list(of_backward).c_str(), json_list(of_step).c_str(), json_list(kept).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(options_of(argc, argv));
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return EXIT_FAILURE;
  }
}
