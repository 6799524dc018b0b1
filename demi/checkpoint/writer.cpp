#include "demi/checkpoint/writer.h"

#include <memory>
#include <system_error>
#include <utility>

#include "demi/checkpoint/run_id.h"
#include "demi/checkpoint/snapshot.h"

namespace demi::checkpoint {

Writer::Writer(std::filesystem::path folder) : folder_(std::move(folder)), lock_(folder_) {}

Writer::~Writer() {
  if (thread_.joinable()) thread_.join();
}

void Writer::save(int64_t step, const Checkpoint& checkpoint, const SaveOptions& options) {
  wait();
  check_save(step, checkpoint, options);
  if (!std::exchange(has_saved_, true)) warn_of_other_runs(folder_, checkpoint.run);
  auto snapshot = std::make_shared<const Snapshot>(checkpoint);
  is_writing_ = true;
  auto write = [this, step, options, snapshot = std::move(snapshot)]() mutable {
    try {
      checkpoint::save(folder_, step, snapshot->finish(), options);
    } catch (...) {
      error_ = std::current_exception();
    }
    snapshot.reset();
    is_writing_ = false;
  };
  try {
    thread_ = std::thread(write);
  } catch (const std::system_error&) {
    write();  // the system gives no thread
  }
}

void Writer::wait() {
  if (thread_.joinable()) thread_.join();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

}  // namespace demi::checkpoint
