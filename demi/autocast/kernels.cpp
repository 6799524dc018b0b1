#include "demi/autocast/kernels.h"

#include <ATen/autocast_mode.h>
#include <c10/util/Exception.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <set>

namespace demi {
namespace {

// Drops LibTorch's warning, once a process, that its kernel was replaced: that is intended.
class QuietAboutOverriding final : public c10::WarningHandler {
 public:
  explicit QuietAboutOverriding(c10::WarningHandler* outer) : outer_(outer) {}
  void process(const c10::Warning& warning) override {
    if (warning.msg().find("verrid") == std::string::npos) outer_->process(warning);
  }

 private:
  c10::WarningHandler* outer_;
};

struct Kernels {
  std::map<std::string, std::unique_ptr<torch::Library>> libraries;  // by namespace
  std::set<int> registered;
};

// Never destroyed: the dispatcher may go first.
Kernels& kernels_on(c10::DeviceType device) {
  static auto* all = new std::map<c10::DeviceType, Kernels>();
  return (*all)[device];
}

torch::Library& library_for(Kernels& kernels, c10::DispatchKey key, const std::string& name_space) {
  auto& library = kernels.libraries[name_space];
  if (!library)
    library = std::make_unique<torch::Library>(torch::Library::IMPL, name_space,
                                               std::make_optional(key), __FILE__, __LINE__);
  return *library;
}

void show_stack_traces_where_asked() {
  const char* debug = std::getenv("DEMI_DEBUG");
  if (debug && *debug && *debug != '0') setenv("TORCH_SHOW_CPP_STACKTRACES", "1", /*overwrite=*/0);
}

}  // namespace

void ensure_kernel(c10::DeviceType device, const std::string& op, int number) {
  Kernels& kernels = kernels_on(device);
  if (!kernels.registered.insert(number).second) return;
  if (kernels.registered.size() == 1) show_stack_traces_where_asked();
  const auto key = at::autocast::get_autocast_dispatch_key_from_device_type(device);
  QuietAboutOverriding quiet(c10::WarningUtils::get_warning_handler());
  const c10::WarningUtils::WarningHandlerGuard guard(&quiet);
  torch::Library& library = library_for(kernels, key, op.substr(0, op.find("::")));
  if (register_hot_kernel(library, device, op, number) ||
      register_lstm_kernel(library, device, op, number) ||
      register_cudnn_rnn_kernel(library, device, op, number))
    return;
  library.impl(op.c_str(), torch::CppFunction::makeFromBoxedFunctor(
                               std::make_unique<BoxedKernel>(device, number)));
}

void drop_kernels(c10::DeviceType device) { kernels_on(device) = {}; }

}  // namespace demi
