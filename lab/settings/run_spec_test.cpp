#include "lab/settings/run_spec.h"

#include <gtest/gtest.h>

#include "demi/core/error.h"

namespace demi::settings {
namespace {

TEST(RunSpec, VariantsSayHowTheLossIsScaled) {
  EXPECT_EQ(parse_run("fp16").loss_scale.kind, LossScale::Kind::automatic);
  EXPECT_EQ(parse_run("fp16:no-scaler").loss_scale.kind, LossScale::Kind::off);
  EXPECT_EQ(parse_run("bf16:scaler").loss_scale.kind, LossScale::Kind::dynamic);
  EXPECT_EQ(parse_run("fp16:statistics").loss_scale.kind, LossScale::Kind::statistics);
  const RunSpec fixed = parse_run("16-mixed:scale=128");
  EXPECT_EQ(fixed.label, "fp16:scale=128");
  EXPECT_EQ(fixed.loss_scale.kind, LossScale::Kind::fixed);
  EXPECT_EQ(fixed.loss_scale.value, 128);
}

TEST(RunSpec, VariantsChangeOneThingEach) {
  const RunSpec plain = parse_run("fp16");
  EXPECT_TRUE(plain.autocast && plain.skip && plain.fp32_part.empty() && plain.op_policy.empty());
  EXPECT_FALSE(parse_run("fp16:no-autocast").autocast);
  EXPECT_FALSE(parse_run("fp32:no-skip").skip);
  EXPECT_EQ(parse_run("fp32:cuda-graph=on").cuda_graph, "on");
  EXPECT_EQ(parse_run("bf16:op-policy=some/file.policy").op_policy, "some/file.policy");
  const RunSpec parts = parse_run("fp16:fp32-part=layer4:scale=8:fp32-part=fc");
  EXPECT_EQ(parts.fp32_part, "layer4,fc");
  EXPECT_EQ(parts.loss_scale.value, 8);
  EXPECT_EQ(parts.label, "fp16:fp32-part=layer4:scale=8:fp32-part=fc");
}

void expect_refused(std::string_view run, std::string_view hint) {
  try {
    parse_run(run);
    FAIL() << run;
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find(hint), std::string::npos) << error.what();
  }
}

TEST(RunSpec, WrongOnesAreAnsweredWithTheNearest) {
  expect_refused("fb16", "did you mean fp16?");
  expect_refused("fp16:noscaler", "did you mean no-scaler?");
  expect_refused("fp16:fp32-prt=fc", "did you mean fp32-part=NAME?");
  expect_refused("fp16:statistic", "did you mean statistics?");
  expect_refused("fp16:scale", "did you mean scale=NUMBER?");
  expect_refused("fp16:no-skip=3", "did you mean no-skip?");
  expect_refused("fp16:", "known: no-scaler, ");
  for (const char* number : {"0", "1e999", "12x", "dynamic"})
    expect_refused(std::string("fp16:scale=") + number, "positive number");
  expect_refused("fp16:fp32-part=", "names nothing");
  expect_refused("fp16:op-policy=", "op-policy=FILE");
  expect_refused("fp16:cuda-graph", "did you mean cuda-graph=WORD?");
  expect_refused("fp16:cuda-graph=yes", "on, auto, off");
  expect_refused("", "no such precision");
}

TEST(RunSpec, VariantsOfTheRegionNeedOne) {
  for (const char* run : {"fp32:no-autocast", "fp16-true:fp32-part=fc", "tf32:op-policy=file"})
    expect_refused(run, "computes without one");
}

TEST(RunSpecs, HaveFilesOfTheirOwn) {
  EXPECT_EQ(parse_runs("fp32,fp16:no-scaler,fp16").size(), 3u);
  EXPECT_EQ(file_name(parse_run("fp16:op-policy=a/b.policy").label), "fp16-op-policy-a-b.policy");
  EXPECT_THROW(parse_runs("fp16,16-mixed"), UsageError);
  EXPECT_THROW(parse_runs("fp16:op-policy=a/b,fp16:op-policy=a-b"), UsageError) << "one name";
}

}  // namespace
}  // namespace demi::settings
