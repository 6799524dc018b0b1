#include "lab/profiler/kernel_log.h"

#include <ATen/native/verbose_wrapper.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <tuple>

namespace demi::profiler {
namespace {

constexpr std::string_view kBeginMark = "demi_op ";

void write_line(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);  // the libraries may have buffers of their own
}

std::unique_ptr<at::ObserverContext> mark_begin(const at::RecordFunction& op) {
  write_line(begin_mark(op.name()));
  return nullptr;
}

void mark_end(const at::RecordFunction&, at::ObserverContext*) {
  write_line(std::string(kEndMark));
}

// 1: it was set. The user's own ONEDNN_VERBOSE comes back afterwards.
bool set_logs(bool on) {
  const char* given = on ? nullptr : std::getenv("ONEDNN_VERBOSE");
  const int level = on ? 1 : given ? static_cast<int>(std::strtol(given, nullptr, 10)) : 0;
  try {
    torch::verbose::_mkl_set_verbose(on ? 1 : 0);
    return torch::verbose::_mkldnn_set_verbose(level) == 1;
  } catch (const c10::Error&) {
    return false;
  }
}

std::vector<std::string_view> split(std::string_view line, char at) {
  std::vector<std::string_view> parts;
  for (std::size_t end = 0; end != line.npos; line.remove_prefix(end == line.npos ? 0 : end + 1)) {
    end = line.find(at);
    parts.push_back(line.substr(0, end));
  }
  return parts;
}

// "src:bf16:a:blocked:..." of oneDNN 3, "src_bf16::blocked:..." of oneDNN 2.
std::string source_dtype(std::string_view descriptors) {
  const auto at = descriptors.find("src");
  if (at == descriptors.npos || at + 4 > descriptors.size()) return "";
  const std::string_view rest = descriptors.substr(at + 4);
  return std::string(rest.substr(0, rest.find(':')));
}

// onednn_verbose,v1,primitive,exec,cpu,KIND,IMPLEMENTATION,PROPAGATION,DESCRIPTORS,...
std::optional<CpuKernel> of_onednn(std::string_view line) {
  const auto fields = split(line, ',');
  const auto exec = std::ranges::find(fields, std::string_view("exec"));
  if (fields.end() - exec < 6) return std::nullopt;
  return CpuKernel{.name = std::string(exec[2]) + " " + std::string(exec[3]),
                   .dtype = source_dtype(exec[5])};
}

// MKL_VERBOSE SGEMM(N,N,...) 12.3us ...; its first lines name the version.
std::optional<CpuKernel> of_mkl(std::string_view line) {
  const std::string_view rest = line.substr(std::string_view("MKL_VERBOSE ").size());
  const std::string_view name = rest.substr(0, rest.find('('));
  const auto is_in_name = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  if (name.empty() || name.size() == rest.size() || !std::ranges::all_of(name, is_in_name))
    return std::nullopt;
  const bool is_fp32 = name.starts_with("SGEMM"), is_fp64 = name.starts_with("DGEMM");
  return CpuKernel{.name = "MKL " + std::string(name),
                   .dtype = is_fp32   ? "f32"
                            : is_fp64 ? "f64"
                                      : ""};
}

std::optional<CpuKernel> kernel_in(std::string_view line) {
  if (line.starts_with("onednn_verbose") || line.starts_with("dnnl_verbose"))
    return of_onednn(line);
  if (line.starts_with("MKL_VERBOSE ")) return of_mkl(line);
  return std::nullopt;
}

}  // namespace

std::string begin_mark(std::string_view op) { return std::string(kBeginMark) + std::string(op); }

KernelLog::KernelLog() {
  if (!output_.is_open()) return;
  is_logging_ = set_logs(true);
  handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&mark_begin, &mark_end).scopes({at::RecordScope::FUNCTION}));
}

KernelLog::~KernelLog() { stop(); }

void KernelLog::stop() {
  if (!handle_) return;
  at::removeCallback(*handle_);
  handle_.reset();
  set_logs(false);
}

std::vector<CpuKernel> KernelLog::finish() {
  stop();
  return kernels_of(output_.text());
}

std::vector<CpuKernel> kernels_of(std::string_view log) {
  std::vector<CpuKernel> all;
  std::vector<std::string_view> open;
  for (const std::string_view line : split(log, '\n')) {
    if (line.starts_with(kBeginMark)) {
      open.push_back(line.substr(kBeginMark.size()));
      continue;
    }
    if (line == kEndMark) {
      if (!open.empty()) open.pop_back();
      continue;
    }
    std::optional<CpuKernel> kernel = kernel_in(line);
    if (!kernel || open.empty()) continue;
    kernel->op = open.back();
    const auto known = std::ranges::find_if(all, [&](const CpuKernel& one) {
      return std::tie(one.op, one.name, one.dtype) ==
             std::tie(kernel->op, kernel->name, kernel->dtype);
    });
    auto& counted = known == all.end() ? all.emplace_back(*kernel) : *known;
    ++counted.calls;
  }
  std::ranges::stable_sort(all, [](const CpuKernel& a, const CpuKernel& b) {
    return a.op != b.op ? a.op < b.op : a.calls > b.calls;
  });
  return all;
}

}  // namespace demi::profiler
