// Saving and loading a checkpoint beside dd on the same disk, in turn in one run.
//
//   checkpoint_bench [--folder DIR] [--megabytes N] [--rounds N]
//
// DIR (the current folder) is on the disk to be measured, N (1024) is the size of the checkpoint,
// 3/4 of it in state.safetensors as with AdamW. Written is with fsync (dd: conv=fsync); read is
// from the disk: the system is asked to forget the files' pages before each reading
// (POSIX_FADV_DONTNEED). The loaded checkpoint is compared before anything is timed. Shown is the
// median of the rounds, and in brackets the least and the most, in MB/s; a step's share is how much
// longer than the copy of all tensors a snapshot took.
#include <ATen/ATen.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "demi/checkpoint/checkpoint.h"
#include "demi/checkpoint/writer.h"

namespace {

namespace fs = std::filesystem;
using demi::checkpoint::Checkpoint;

constexpr int64_t kTensorBytes = int64_t{8} << 20;

Checkpoint make_checkpoint(int64_t megabytes) {
  Checkpoint result;
  const int64_t tensors = std::max<int64_t>(4, megabytes * 1'000'000 / kTensorBytes);
  for (int64_t i = 0; i < tensors; ++i)
    (i % 4 == 0 ? result.model : result.state)["tensor." + std::to_string(i)] =
        at::rand({kTensorBytes / 4});
  return result;
}

int64_t bytes_of(const Checkpoint& checkpoint) {
  int64_t bytes = 0;
  for (const auto* tensors : {&checkpoint.model, &checkpoint.state})
    for (const auto& [name, tensor] : *tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

void require_equal(const Checkpoint& a, const Checkpoint& b) {
  for (const auto& [name, tensor] : a.model)
    if (!at::equal(tensor, b.model.at(name))) throw std::runtime_error(name + " differs");
  for (const auto& [name, tensor] : a.state)
    if (!at::equal(tensor, b.state.at(name))) throw std::runtime_error(name + " differs");
}

void run(const std::string& command) {
  if (std::system(command.c_str()) != 0) throw std::runtime_error("failed: " + command);
}

void forget_pages(const fs::path& path) {
  std::vector<fs::path> files{path};
  if (fs::is_directory(path)) {
    files.clear();
    for (const auto& entry : fs::directory_iterator(path)) files.push_back(entry.path());
  }
  for (const fs::path& file : files) {
    const int fd = ::open(file.c_str(), O_RDONLY);
    ::fdatasync(fd);
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
  }
}

double seconds_of(const std::function<void()>& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct Measured {
  const char* name;
  std::vector<double> seconds;

  double median() {
    std::ranges::sort(seconds);
    return seconds[seconds.size() / 2];
  }
};

void print(Measured& measured, int64_t bytes, Measured* beside) {
  const double median = measured.median(), megabytes = static_cast<double>(bytes) / 1e6;
  std::printf("| %-28s | %7.0f (%.0f to %.0f) |", measured.name, megabytes / median,
              megabytes / measured.seconds.back(), megabytes / measured.seconds.front());
  if (beside != nullptr) std::printf(" %5.2f", beside->median() / median);
  std::printf(" |\n");
}

void measure(const fs::path& folder, int64_t megabytes, int rounds) {
  const Checkpoint checkpoint = make_checkpoint(megabytes);
  const int64_t bytes = bytes_of(checkpoint);
  const fs::path saves = folder / "saves", file = folder / "dd";
  require_equal(checkpoint, demi::checkpoint::load(demi::checkpoint::save(saves, 0, checkpoint)));
  Checkpoint kept = demi::checkpoint::load(saves);

  const std::string count = std::to_string(bytes / (1 << 20));
  const std::string dd_write =
      "dd if=/dev/zero of='" + file.string() + "' bs=1M count=" + count + " conv=fsync 2>/dev/null";
  const std::string dd_read = "dd if='" + file.string() + "' of=/dev/null bs=1M 2>/dev/null";

  Measured written{"dd, written and synced", {}}, saved{"save", {}}, read{"dd, read", {}},
      loaded{"load", {}}, mapped{"map and copy into a model", {}},
      copied{"copy of all tensors", {}}, snapped{"snapshot of a Writer", {}};
  for (int round = 0; round < rounds; ++round) {
    fs::remove(file);
    written.seconds.push_back(seconds_of([&] { run(dd_write); }));
    fs::remove_all(saves);
    saved.seconds.push_back(seconds_of([&] { demi::checkpoint::save(saves, round, checkpoint); }));
    const fs::path last = demi::checkpoint::find(saves);
    forget_pages(file);
    read.seconds.push_back(seconds_of([&] { run(dd_read); }));
    forget_pages(last);
    loaded.seconds.push_back(seconds_of([&] { demi::checkpoint::load(last); }));
    forget_pages(last);
    mapped.seconds.push_back(seconds_of([&] {
      Checkpoint from = demi::checkpoint::map(last);
      for (auto [tensors, sources] :
           {std::pair{&kept.model, &from.model}, {&kept.state, &from.state}})
        for (auto& [name, tensor] : *tensors) {
          tensor.copy_(sources->at(name));
          sources->erase(name);
        }
    }));
    copied.seconds.push_back(seconds_of([&] {
      std::vector<at::Tensor> copies;
      for (const auto* tensors : {&checkpoint.model, &checkpoint.state})
        for (const auto& [name, tensor] : *tensors) copies.push_back(tensor.clone());
    }));
    demi::checkpoint::Writer writer(saves);
    snapped.seconds.push_back(seconds_of([&] { writer.save(round + 1, checkpoint); }));
    writer.wait();
  }
  std::printf("| %ld MB | MB/s (least to most) | of dd, of copy |\n|---|---|---|\n",
              static_cast<long>(bytes / 1'000'000));
  print(written, bytes, nullptr);
  print(saved, bytes, &written);
  print(read, bytes, nullptr);
  print(loaded, bytes, &read);
  print(mapped, bytes, &read);
  print(copied, bytes, nullptr);
  print(snapped, bytes, &copied);
}

}  // namespace

int main(int argc, char** argv) {
  fs::path folder = fs::current_path();
  long megabytes = 1024, rounds = 5;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--folder") folder = argv[i + 1];
    if (name == "--megabytes") megabytes = std::atol(argv[i + 1]);
    if (name == "--rounds") rounds = std::atol(argv[i + 1]);
  }
  if (argc % 2 == 0 || megabytes < 1 || rounds < 1) {
    std::fprintf(stderr, "checkpoint_bench [--folder DIR] [--megabytes N] [--rounds N]\n");
    return 2;
  }
  std::string work = (folder / "checkpoint-bench-XXXXXX").string();
  if (::mkdtemp(work.data()) == nullptr) {
    std::fprintf(stderr, "no folder can be made in %s\n", folder.c_str());
    return 2;
  }
  try {
    measure(work, megabytes, static_cast<int>(rounds));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    fs::remove_all(work);
    return 1;
  }
  fs::remove_all(work);
  std::printf("\nagain: checkpoint_bench --folder '%s' --megabytes %ld --rounds %ld\n",
              folder.c_str(), megabytes, rounds);
  return 0;
}
