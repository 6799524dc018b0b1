// `demi number` as a user meets it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cli_testing.h"

namespace cli_testing {
namespace {

class Number : public Cli {
 protected:
  std::string on_terminal(unsigned short columns, const std::vector<std::string>& arguments,
                          bool colour) {
    return shown_on_terminal(STDOUT_FILENO, columns, arguments, [colour] {
      setenv("LC_ALL", "C.UTF-8", 1);
      setenv("TERM", "xterm", 1);
      colour ? unsetenv("NO_COLOR") : setenv("NO_COLOR", "1", 1);
    });
  }
};

TEST_F(Number, JsonHasTheBitsTheValueAndTheError) {
  const auto json = json_of({"number", "-314.625"});
  ASSERT_EQ(json["values"].size(), 1U);
  EXPECT_EQ(json["values"][0]["input"], "-314.625");
  const auto& formats = json["values"][0]["formats"];
  ASSERT_EQ(formats.size(), 7U);
  const auto& fp32 = formats["fp32"];
  EXPECT_EQ(fp32["hex"], "0xC39D5000");
  EXPECT_EQ(fp32["sign"], 1);
  EXPECT_EQ(fp32["exponent"], "10000111");
  EXPECT_EQ(fp32["fraction"], "00111010101000000000000");
  EXPECT_EQ(fp32["value"], -314.625);
  EXPECT_EQ(fp32["error_ulp"], 0);
  EXPECT_EQ(fp32["below"], -314.625 - 0x1p-15);
  EXPECT_EQ(fp32["above"], -314.625 + 0x1p-15);
  EXPECT_EQ(formats["fp16"]["value"], -314.5);
  EXPECT_EQ(formats["fp16"]["error_ulp"], 0.5);
  EXPECT_EQ(formats["bf16"]["value"], -314);
  EXPECT_EQ(formats["fp64"]["hex"], "0xC073AA0000000000");
  EXPECT_EQ(formats["fp64"]["fraction"].get<std::string>().size(), 52U);
  EXPECT_EQ(formats["fp8_e4m3"]["hex"], "0xFA");
  EXPECT_EQ(formats["fp8_e5m2"]["hex"], "0xDD");
  EXPECT_EQ(formats["tf32"]["hex"], "0xC39D4000");
}

// 3.14159 x 2^8 = 804.247; 1.15 ends at 1 - 2^-15.
TEST_F(Number, FixedPointStandsBesideFloatingPoint) {
  const auto json = json_of({"number", "3.14159", "--format", "fp16", "--fixed", "8.8,1.15"});
  const auto& value = json["values"][0];
  EXPECT_EQ(value["formats"].size(), 1U);
  EXPECT_EQ(value["fixed"]["8.8"]["value"], 804 / 256.0);
  EXPECT_EQ(value["fixed"]["8.8"]["hex"], "0x0324");
  EXPECT_EQ(value["fixed"]["8.8"]["bits"], "0000001100100100");
  EXPECT_NEAR(value["fixed"]["8.8"]["error_ulp"].get<double>(), 3.14159 * 256 - 804, 1e-12);
  EXPECT_EQ(value["fixed"]["1.15"]["value"], 1 - 0x1p-15);
  EXPECT_EQ(value["fixed"]["1.15"]["outcome"], "overflow");
  EXPECT_EQ(value["fixed"]["1.15"]["lowest"], -1);
  const Outcome text = run({"number", "3.14159", "--format", "fp16", "--fixed", "8.8"});
  EXPECT_THAT(text.out, HasSubstr("0 0000011 00100100  0x0324"));
  EXPECT_EQ(json_of({"number", "--range", "--fixed", "2.6,3.5"})["ranges"].size(), 12U);
  EXPECT_EQ(run({"number", "1/0", "--fixed", "8.8"}).code, 2);
  EXPECT_EQ(run({"number", "1", "--fixed", ""}).code, 2);
}

TEST_F(Number, TheCourseExamplesInFp16) {
  const auto json = json_of(
      {"number", "2049+1", "0.0001*0.0001", "65520", "65519", "1e-8", "0.1", "--format", "half"});
  const auto fp16 = [&](int i) { return json["values"][i]["formats"]["fp16"]; };
  EXPECT_EQ(fp16(0)["value"], 2048);
  EXPECT_EQ(fp16(0)["error_ulp"], 1);
  EXPECT_EQ(fp16(0)["steps"].size(), 3U) << "2049, 1, and their sum";
  EXPECT_EQ(fp16(0)["steps"][2]["text"], "2048 + 1");
  EXPECT_EQ(fp16(0)["steps"][2]["outcome"], "rounded");
  EXPECT_EQ(fp16(1)["value"], 0);
  EXPECT_EQ(fp16(1)["outcome"], "underflow");
  EXPECT_EQ(fp16(2)["value"], "inf");
  EXPECT_EQ(fp16(2)["outcome"], "overflow");
  EXPECT_TRUE(fp16(2)["error_ulp"].is_null());
  EXPECT_TRUE(fp16(2)["above"].is_null());
  EXPECT_EQ(fp16(2)["below"], 65504);
  EXPECT_EQ(fp16(3)["value"], 65504);
  EXPECT_EQ(fp16(3)["above"], "inf");
  EXPECT_EQ(fp16(4)["value"], 0);
  EXPECT_EQ(fp16(5)["decimal"], "0.0999755859375");
}

TEST_F(Number, SpecialValuesAreWordsInJson) {
  const auto json = json_of({"number", "nan", "-inf", "-0", "--format", "fp16,e4m3"});
  const auto value = [&](int i) { return json["values"][i]["formats"]["fp16"]["value"]; };
  EXPECT_EQ(value(0), "nan");
  EXPECT_EQ(value(1), "-inf");
  EXPECT_EQ(value(2).dump(), "-0.0");
  EXPECT_EQ(json["values"][1]["formats"]["fp8_e4m3"]["value"], "nan");
}

TEST_F(Number, Fp4IsShownWhereItIsAskedFor) {
  const auto json = json_of({"number", "2.4", "-100", "--format", "fp4_e2m1"});
  const auto fp4 = [&](int i) { return json["values"][i]["formats"]["fp4_e2m1"]; };
  EXPECT_EQ(fp4(0)["hex"], "0x4");
  EXPECT_EQ(fp4(0)["value"], 2);
  EXPECT_EQ(fp4(0)["error_ulp"], 0.4);
  EXPECT_EQ(fp4(0)["above"], 3);
  EXPECT_EQ(fp4(1)["value"], -6);
  EXPECT_EQ(fp4(1)["outcome"], "overflow");
  EXPECT_TRUE(fp4(1)["below"].is_null());
  const Outcome text = run({"number", "100", "--format", "e2m1"});
  EXPECT_THAT(text.out, HasSubstr("from 7 on, half a step further, the number saturates"));
  EXPECT_THAT(run({"number", "1.3", "--format", "e2m1"}).out,
              HasSubstr("1 fraction bit holds 1.0|1"));
  for (const char* value : {"nan", "inf", "1/0"}) {
    const Outcome refused = run({"number", value, "--format", "fp4_e2m1"});
    EXPECT_EQ(refused.code, 2);
    EXPECT_THAT(refused.err, HasSubstr("neither Inf nor NaN"));
  }
  EXPECT_THAT(run({"number", "--range", "--format", "fp4"}).out, HasSubstr("share a byte"));
}

TEST_F(Number, ABlockHasAScaleAndItsNumbers) {
  const auto json = json_of({"number", "500", "-3", "0.001", "1/3", "--block", "mxfp8"})["block"];
  EXPECT_EQ(json["form"], "mxfp8");
  EXPECT_EQ(json["format"], "fp8_e4m3");
  EXPECT_EQ(json["amax"], 500);
  EXPECT_EQ(json["scale"], 2);
  EXPECT_EQ(json["scale_code"], "0x80");
  EXPECT_TRUE(json["tensor_scale"].is_null());
  EXPECT_EQ(json["saturated"], 0);
  EXPECT_EQ(json["underflowed"], 1);
  ASSERT_EQ(json["numbers"].size(), 4U);
  EXPECT_EQ(json["numbers"][0]["input"], "500");
  EXPECT_EQ(json["numbers"][1]["input"], "-3");
  EXPECT_EQ(json["numbers"][0]["code"], "0x78");
  EXPECT_EQ(json["numbers"][0]["of_code"], 256);
  EXPECT_EQ(json["numbers"][0]["value"], 512);
  EXPECT_EQ(json["numbers"][2]["outcome"], "underflow");
  EXPECT_EQ(json["numbers"][3]["fp32"], 1.0f / 3.0f);
  const auto nvfp4 =
      json_of({"number", "6", "-0.2", "--block", "nvfp4", "--tensor-amax", "2688"})["block"];
  EXPECT_EQ(nvfp4["tensor_amax"], 2688);
  EXPECT_EQ(nvfp4["tensor_scale"], 1);
  EXPECT_EQ(nvfp4["scale_code"], "0x38");
  EXPECT_EQ(json_of({"number", "1", "--block", "fp8", "--format", "e5m2"})["block"]["scale"],
            57344);
  EXPECT_EQ(json_of({"number", "1", "inf", "--block", "mxfp8"})["block"]["numbers"][0]["value"],
            "nan");
  const Outcome text = run({"number", "500", "-3", "0.001", "--block", "mxfp8"});
  EXPECT_THAT(text.out, HasSubstr("2^1 = 2, E8M0 code 0x80 = 1 + 127"));
  EXPECT_THAT(text.out, HasSubstr("0 of 3 saturated, 1 became 0."));
}

TEST_F(Number, WhatIsNoBlockIsRefused) {
  const auto expect = [&](std::vector<std::string> arguments, const char* words) {
    arguments.insert(arguments.begin(), "number");
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(words));
    EXPECT_EQ(outcome.out, "");
  };
  expect({"1", "--block", "mxpf8"}, "did you mean mxfp8?");
  expect({"--block", "mxfp8"}, "accepted: 1 to 32 numbers");
  expect({"1", "--block", "mxfp8", "--format", "fp16"}, "accepted: fp8_e4m3, fp8_e5m2");
  expect({"1", "--block", "mxfp8", "--format", "e4m3,e5m2"}, "a block has one format");
  expect({"1", "--block", "mxfp8", "--range"}, "neither --range nor --fixed");
  expect({"1", "--block", "nvfp4", "--tensor-amax", "0.5"}, "accepted: 1 or more");
  expect({"1", "--tensor-amax", "2"}, "--block");
}

TEST_F(Number, ALeadingMinusIsNoOption) {
  for (const char* value :
       {"-314.625", "-.5", "-1e-8", "-inf", "-nan", "-0x1p3", "-(1+2)", "--5"}) {
    const Outcome outcome = run({"number", value, "--format", "fp16"});
    EXPECT_EQ(outcome.code, 0) << value << outcome.err;
  }
  for (const char* value : {"-i", "-1+x"}) {
    const Outcome outcome = run({"number", value});
    EXPECT_EQ(outcome.code, 2) << value;
    EXPECT_THAT(outcome.err, HasSubstr("a number is expected at position"));
  }
  EXPECT_EQ(json_of({"number", "-314.625", "--format", "fp16"})["values"][0]["input"], "-314.625");
  EXPECT_THAT(run({"number", "--json", "--", "-1"}).out, HasSubstr(R"("input": "-1")"));
  EXPECT_THAT(run({"number", "-h"}).out, HasSubstr("Usage: demi number"));
  EXPECT_THAT(run({"number", "1", "--jsn"}).err, HasSubstr("did you mean --json?"));
}

TEST_F(Number, WhatCannotBeReadExitsWith2AndPrintsNothing) {
  const auto expect = [&](std::vector<std::string> arguments, const char* words) {
    arguments.insert(arguments.begin(), "number");
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(words));
    EXPECT_EQ(outcome.out, "");
  };
  expect({}, "demi number -314.625");
  expect({""}, "at position 1");
  expect({"1", "2", "1+x"}, "a number is expected at position 3; seen: '1+x'; accepted: numbers");
  expect({"2049", "+", "1"}, "at position 2; seen: '+'");
  expect({"1", "--format", "fp17"}, "did you mean fp16?");
  expect({"--range", "--fixed", "8"}, "8.8 or 1.15");
}

TEST_F(Number, RangesStandSideBySide) {
  const auto ranges = json_of({"number", "--range", "--fixed", "1.15"})["ranges"];
  ASSERT_EQ(ranges.size(), 11U);
  EXPECT_EQ(ranges[3]["name"], "fp16");
  EXPECT_EQ(ranges[3]["bytes"], 2);
  EXPECT_EQ(ranges[3]["largest"], 65504);
  EXPECT_EQ(ranges[3]["smallest_normal"], 0x1p-14);
  EXPECT_EQ(ranges[3]["smallest_denormal"], 0x1p-24);
  EXPECT_EQ(ranges[3]["epsilon"], 0x1p-10);
  EXPECT_TRUE(ranges[3]["step"].is_null());
  EXPECT_EQ(ranges[7]["name"], "int8");
  EXPECT_EQ(ranges[7]["lowest"], -128);
  EXPECT_EQ(ranges[10]["name"], "fixed 1.15");
  EXPECT_EQ(ranges[10]["largest"], 1 - 0x1p-15);
  EXPECT_TRUE(ranges[10]["epsilon"].is_null());
  const Outcome text = run({"number", "--range"});
  EXPECT_THAT(text.out, HasSubstr("2147483647"));
  EXPECT_THAT(text.out, Not(HasSubstr("\x1b")));
}

TEST_F(Number, RangesFit80Columns) {
  const std::string text =
      on_terminal(80, {"number", "--range", "--fixed", "16.16"}, /*colour=*/false);
  EXPECT_THAT(text, HasSubstr("fixed 16.16      4       -32768  32767.99998 "));
}

TEST_F(Number, ANarrowTerminalIsHonoured) {
  const std::string text =
      on_terminal(40, {"number", "0.1", "--format", "fp64", "--range"}, /*colour=*/false);
  EXPECT_THAT(text, HasSubstr("1023 = 1019 = 01111111011"));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::size_t columns = 0;
    for (const char c : line) columns += c != '\r' && (c & 0xC0) != 0x80;
    EXPECT_LE(columns, 40U) << line;
  }
  EXPECT_THAT(on_terminal(80, {"number", "1"}, /*colour=*/true), HasSubstr("\x1b[1m1\x1b[0m"));
}

}  // namespace
}  // namespace cli_testing
