// The two updates of a rule of matrices: what each of them writes, and the direction between them.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <optional>

#include "demi/core/number.h"
#include "demi/kernels/decide.h"
#include "demi/kernels/testing/emulation.h"
#include "demi/kernels/testing/step_case.h"

namespace demi::kernels {
namespace {

using testing::CaseOptions;
using testing::StepCase;

constexpr std::array<Codec, 2> kSigned8{Codec::softsign, Codec::softsign};

CaseOptions muon_case() {
  CaseOptions options;
  options.rule = UpdateRule::muon;
  options.group = {.learning_rate = 0.5, .momentum = 0.75, .weight_decay = 0.125, .own = {1, 1}};
  options.lengths = {7, 1000, 16384, 20001};
  options.gradient = Storage::fp32;
  options.scale = 1;
  return options;
}

/// Runs the table's range by a CPU path, or by the device's kernels if there is none.
void run(const CpuKernels* path, const StepTable& table) {
  if (path) return path->update(table, table.range.first_block, table.range.end_block);
  cuda::HostLauncher launcher;
  cuda::launch_update(launcher, table);
}

std::vector<const CpuKernels*> every_path() {
  std::vector<const CpuKernels*> all = testing::simd_paths();
  all.push_back(cpu_kernels(Path::reference));
  all.push_back(nullptr);
  return all;
}

std::vector<unsigned char> codes_of(StepCase& one, int moment) {
  std::vector<unsigned char> all;
  for (const TensorEntry& tensor : one.plan().tensors()) {
    const Coded& array = tensor.coded_moment[moment];
    const auto* codes = static_cast<const unsigned char*>(array.values);
    all.insert(all.end(), codes, codes + tensor.length * bytes_of(array.codec));
    const auto* scales = static_cast<const unsigned char*>(array.scales);
    if (scales) all.insert(all.end(), scales, scales + 2 * scales_of(array.codec, tensor.length));
  }
  return all;
}

TEST(MatrixRule, EachUpdateWritesItsOwnMomentAlone) {
  for (const CpuKernels* path : every_path()) {
    CaseOptions options = muon_case();
    options.codecs = kSigned8;
    StepCase one(options);
    StepTable table = one.table();
    decide(table);
    const auto first = codes_of(one, 0), second = codes_of(one, 1);
    run(path, table);
    EXPECT_NE(codes_of(one, 0), first);
    EXPECT_EQ(codes_of(one, 1), second);
    const auto moved = codes_of(one, 0);
    table.range.rule = UpdateRule::muon_apply;
    run(path, table);
    EXPECT_EQ(codes_of(one, 0), moved);
    EXPECT_NE(codes_of(one, 1), second);
  }
}

// torch.optim.Muon: B = lerp(B, g, 1 - mu), the direction lerp(g, B, mu) or B; then
// p = p (1 - lr decay) - lr direction.
TEST(MatrixRule, HasTheFormula) {
  for (const CpuKernels* path : every_path()) {
    for (const bool nesterov : {false, true}) {
      CaseOptions options = muon_case();
      options.group.own[1] = 0;
      options.group.nesterov = nesterov;
      StepCase one(options);
      StepTable table = one.table();
      const TensorEntry& tensor = one.plan().tensors()[3];
      const std::int64_t i = 20000;  // of the last block, the second of its tensor
      const float p = tensor.parameter[i], b = tensor.moment[0][i];
      const float g = static_cast<const float*>(tensor.gradient)[i];
      decide(table);
      run(path, table);
      EXPECT_EQ(tensor.parameter[i], p);
      const float moved = b + 0.25F * (g - b);
      EXPECT_EQ(tensor.moment[0][i], moved);
      const float direction = nesterov ? moved - (moved - g) * 0.25F : moved;
      auto* stored =
          static_cast<std::uint16_t*>(table.direction) + table.first_block[3] * kBlock + i;
      EXPECT_EQ(*stored, bf16_from_fp32(direction));
      *stored = bf16_from_fp32(2.0F);
      table.range.rule = UpdateRule::muon_apply;
      run(path, table);
      EXPECT_EQ(tensor.parameter[i], p * 0.9375F + -0.5F * 2.0F);
      EXPECT_EQ(tensor.moment[0][i], moved);
    }
  }
}

/// Memory whose readers end.
class Unreadable {
 public:
  Unreadable() { EXPECT_NE(memory_, MAP_FAILED); }
  ~Unreadable() { ::munmap(memory_, kBytes); }
  Unreadable(const Unreadable&) = delete;
  Unreadable& operator=(const Unreadable&) = delete;
  const void* memory() const { return memory_; }

 private:
  static constexpr std::size_t kBytes = 1 << 20;
  void* memory_ = ::mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
};

// torch.optim.Muon's p.mul_(1 - lr decay); p.add_(direction, alpha = -lr) has no gradient.
TEST(MatrixRule, TheSecondUpdateDoesNotReadTheGradient) {
  constexpr std::array kHalves{Codec::bf16_by_chance, Codec::bf16_by_chance};
  const Unreadable unreadable;
  for (const CpuKernels* path : every_path())
    for (const auto& codecs : {std::optional<std::array<Codec, 2>>(), {kHalves}, {kSigned8}}) {
      CaseOptions options = muon_case();
      options.group.own[1] = 0;
      options.codecs = codecs;
      StepCase one(options), other(options);
      for (StepCase* each : {&one, &other}) {
        StepTable table = each->table();
        decide(table);
        run(path, table);
      }
      const auto second = [&](StepCase& of) {
        StepTable table = of.table();
        table.range.rule = UpdateRule::muon_apply;
        run(path, table);
      };
      second(one);
      for (TensorEntry& tensor : other.plan().tensors()) tensor.gradient = unreadable.memory();
      EXPECT_EXIT(
          {
            second(other);
            std::_Exit(other.written() == one.written() ? 0 : 1);
          },
          ::testing::ExitedWithCode(0), "");
    }
}

TEST(MatrixRule, TensorsHaveRatesOfTheirOwn) {
  CaseOptions options = muon_case();
  options.lengths = {5, 5, 5};
  StepCase one(options);
  one.plan().tensors()[1].rate_factor = 3;
  const StepTable table = one.table();
  decide(table);
  EXPECT_EQ(table.coefficients[0].negative_rate, -0.5F);
  EXPECT_EQ(table.coefficients[1].negative_rate, -1.5F);
  EXPECT_EQ(table.coefficients[2].negative_rate, -0.5F);
}

TEST(MatrixRule, ASkippedStepWritesNothing) {
  for (const CpuKernels* path : every_path()) {
    StepCase one(muon_case());
    StepTable table = one.table();
    one.plan().state().found_inf = 1;
    decide(table);
    const auto before = one.written();
    run(path, table);
    table.range.rule = UpdateRule::muon_apply;
    run(path, table);
    EXPECT_TRUE(one.written() == before);
  }
}

}  // namespace
}  // namespace demi::kernels
