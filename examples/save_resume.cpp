// Save, kill, resume, in a loop of one's own: {model, optimizer, scaler} are saved after update().
// A run whose process is killed goes on from the last save and ends with the same bits as one that
// nobody interrupted.
//
//     save_resume [DEVICE [DTYPE [FOLDER [KILL_AFTER]]]]
//
// With FOLDER: trains, saves there after each 10 steps, and goes on from what is there already.
// KILL_AFTER: kills itself after that step. Without FOLDER: does all of that and compares.
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "demi/demi.h"
#include "examples/arguments.h"

namespace {

namespace fs = std::filesystem;

constexpr int64_t kSteps = 40, kSaveEvery = 10;

torch::nn::Sequential make_model(torch::Device device) {
  torch::manual_seed(0);
  torch::nn::Sequential model(torch::nn::Linear(8, 32), torch::nn::ReLU(), torch::nn::Dropout(0.2),
                              torch::nn::Linear(32, 1));
  model->to(device);
  return model;
}

// The batch of a step is a function of its number, so it need not be saved.
torch::Tensor batch_of(int64_t step, torch::Device device) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(step));
  return torch::randn({64, 8}, generator).to(device);
}

torch::nn::Sequential train(torch::Device device, torch::Dtype dtype, const fs::path& folder,
                            int64_t kill_after) {
  auto model = make_model(device);
  demi::optim::AdamW optimizer(model->parameters(), demi::optim::AdamWOptions(1e-2));
  demi::GradScaler scaler;
  // What dropout draws belongs to it, too: `random` is true.
  const demi::loop::Job objects{
      .models = {model.get()}, .optimizers = {&optimizer}, .scaler = &scaler};

  int64_t step = 0;
  if (fs::exists(folder / "last")) {
    const auto saved = demi::checkpoint::load(folder, objects);  // all of it, or nothing
    step = static_cast<int64_t>(saved.numbers.at("loop").at("step"));
    std::printf("goes on after step %lld\n", static_cast<long long>(step));
  }
  while (step < kSteps) {
    const auto x = batch_of(step, device), y = x.sum(1, true).tanh();
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      demi::Autocast region(device.type(), dtype);
      loss = torch::mse_loss(model->forward(x), y);
    }
    scaler.scale(loss).backward();
    scaler.step(optimizer);
    scaler.update();
    ++step;

    if (!folder.empty() && step % kSaveEvery == 0) {
      auto checkpoint = demi::checkpoint::capture(objects);
      checkpoint.numbers["loop"]["step"] = static_cast<double>(step);
      demi::checkpoint::save(folder, step, checkpoint, {.keep_last = 2});
    }
    if (step == kill_after) raise(SIGKILL);
  }
  return model;
}

// This program once more, as a process of its own that kills itself. Returns the signal.
int run_and_kill(const char* device, const char* dtype, const fs::path& folder,
                 const std::string& kill_after) {
  const std::string where = folder.string();
  const char* const arguments[] = {"save_resume",      device, dtype, where.c_str(),
                                   kill_after.c_str(), nullptr};
  pid_t child = 0;
  int status = 0;
  if (posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, const_cast<char**>(arguments),
                  environ) != 0)
    return 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

bool same_bits(const torch::nn::Sequential& a, const torch::nn::Sequential& b) {
  const auto x = a->parameters(), y = b->parameters();
  for (std::size_t i = 0; i < x.size(); ++i)
    if (!torch::equal(x[i], y[i])) return false;
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const char *device_name = argc > 1 ? argv[1] : "cpu", *dtype_name = argc > 2 ? argv[2] : "bf16";
  const torch::Device device = device_named(device_name);
  const torch::Dtype dtype = dtype_named(dtype_name);
  if (argc > 3) {
    train(device, dtype, argv[3], argc > 4 ? number_named(argv[4]) : -1);
    return EXIT_SUCCESS;
  }
  const fs::path folder =
      fs::temp_directory_path() / ("demi-save-resume-" + std::to_string(getpid()));
  const bool killed = run_and_kill(device_name, dtype_name, folder, "13") == SIGKILL &&
                      run_and_kill(device_name, dtype_name, folder, "37") == SIGKILL;
  const auto resumed = train(device, dtype, folder, /*kill_after=*/-1);
  fs::remove_all(folder);
  const auto unbroken = train(device, dtype, {}, /*kill_after=*/-1);
  const bool same = same_bits(resumed, unbroken);
  std::printf("killed twice, resumed: the weights are%s those of a run without a kill\n",
              same ? "" : " NOT");
  return killed && same ? EXIT_SUCCESS : EXIT_FAILURE;
}
