// Checkpoints of tensors on a real GPU; skipped where there is none.
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include "demi/checkpoint/checkpoint_testing.h"
#include "demi/checkpoint/snapshot.h"
#include "demi/checkpoint/writer.h"
#include "demi/core/cuda_library.h"

namespace demi::checkpoint {
namespace {

class GpuCheckpoint : public CheckpointFolder {
 protected:
  void SetUp() override {
    CheckpointFolder::SetUp();
    const CudaLibrary& library = load_cuda();
    if (!library.loaded) GTEST_SKIP() << library.reason;
    if (!torch::cuda::is_available()) GTEST_SKIP() << "LibTorch finds no CUDA device";
  }

  static Checkpoint on_device(Checkpoint checkpoint) {
    for (auto* tensors : {&checkpoint.model, &checkpoint.state})
      for (auto& [name, tensor] : *tensors) tensor = tensor.to(at::kCUDA);
    return checkpoint;
  }
};

TEST_F(GpuCheckpoint, IsTheSameFileAsThatOfTheCpu) {
  const auto gpu = save(folder_ / "gpu", 1, on_device(ten_tensors(3)));
  const auto cpu = save(folder_ / "cpu", 1, ten_tensors(3));
  for (const char* name : {"model.safetensors", "state.safetensors", "manifest.json"})
    EXPECT_EQ(bytes_of(gpu / name), bytes_of(cpu / name)) << name;
  EXPECT_TRUE(same(load(gpu), ten_tensors(3)));
}

TEST_F(GpuCheckpoint, SnapshotsArePinnedAndStayAsTheyWere) {
  Checkpoint training;
  training.model["large"] = at::full({1 << 24}, 1.0, at::TensorOptions().device(at::kCUDA));
  const Snapshot snapshot(training);
  training.model.at("large").fill_(2.0);  // on the same stream, behind the copy
  const at::Tensor& copy = snapshot.finish().model.at("large");
  EXPECT_TRUE(copy.is_pinned());
  EXPECT_TRUE(at::equal(copy, at::full({1 << 24}, 1.0)));
}

TEST_F(GpuCheckpoint, IsSavedWhileTrainingGoesOn) {
  Writer writer(folder_);
  Checkpoint training = on_device(ten_tensors(1));
  for (int step = 1; step <= 5; ++step) {
    for (auto& [name, tensor] : training.model) tensor.fill_(step);
    for (auto& [name, tensor] : training.state) tensor.fill_(step);
    training.numbers = ten_tensors(step).numbers;
    training.text = ten_tensors(step).text;
    training.model_text = ten_tensors(step).model_text;
    writer.save(step, training, {.keep_last = 0});
  }
  writer.wait();
  for (int step = 1; step <= 5; ++step)
    EXPECT_TRUE(same(load(folder_ / ("step-0000000" + std::to_string(step))), ten_tensors(step)));
}

}  // namespace
}  // namespace demi::checkpoint
