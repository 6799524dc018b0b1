#include "demi/checkpoint/folder_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <map>
#include <string>
#include <utility>

#include "demi/checkpoint/folder.h"
#include "demi/core/error.h"

namespace demi::checkpoint {
namespace {

namespace fs = std::filesystem;

using FolderId = std::pair<dev_t, ino_t>;

/// The folders that this process holds. Never destroyed: threads may outlive static objects.
struct Registry {
  struct Entry {
    std::shared_ptr<HeldFolder> folder;
    int64_t holders = 0;
  };
  std::mutex mutex;
  std::map<FolderId, Entry> folders;

  static Registry& get() {
    static auto* const registry = [] {
      auto* const made = new Registry;
      ::pthread_atfork([] { get().mutex.lock(); }, [] { get().mutex.unlock(); },
                       [] { get().leave_to_parent(); });
      return made;
    }();
    return *registry;
  }

  /// Leaves the locks to the parent in a forked process: they are the parent's, and end with it.
  /// flock(2) would keep them as long as a descriptor is open anywhere.
  void leave_to_parent() {
    for (auto& [id, entry] : folders) entry.folder->file = Descriptor();
    folders.clear();
    mutex.unlock();
  }

  /// The last holder unlocks the folder before another thread can find that nobody holds it.
  void leave(const FolderId& id, const std::shared_ptr<HeldFolder>& folder) {
    const std::lock_guard guard(mutex);
    const auto entry = folders.find(id);
    if (entry == folders.end() || entry->second.folder != folder) return;  // it is the parent's
    if (--entry->second.holders > 0) return;
    folder->file = Descriptor();
    folders.erase(entry);
  }
};

/// Makes the folder and those above it, and writes their names to the disk.
void make_folder(const fs::path& folder) {
  const fs::path above = folder.parent_path();
  int result = ::mkdir(folder.c_str(), 0777);
  if (result != 0 && errno == ENOENT && !above.empty()) {
    make_folder(above);
    result = ::mkdir(folder.c_str(), 0777);
  }
  if (result == 0) return sync_folder(above);
  const int error = errno;
  std::error_code code;
  if (error == EEXIST && fs::is_directory(folder, code)) return;
  throw_file_error("checkpoint.save", folder, "cannot be made a folder",
                   code ? code.value() : error);
}

FolderId id_of(const fs::path& folder) {
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0)
    throw_file_error("checkpoint.save", folder, "cannot be read", errno);
  return {status.st_dev, status.st_ino};
}

[[noreturn]] void refuse_second_run(const fs::path& folder, const std::string& holder) {
  refuse({.where = "checkpoint.FolderLock",
          .what = "another run saves to the folder " + folder.string(),
          .seen = holder,
          .accepted = "one run at a time",
          .advice = "end that run, or name another folder"});
}

std::string holder_named_in(const Descriptor& lock) {
  std::array<char, 200> text{};
  const ssize_t bytes = ::pread(lock.get(), text.data(), text.size(), 0);
  if (bytes <= 0) return "a process that has not named itself yet";
  const std::string_view line(text.data(), static_cast<std::size_t>(bytes));
  return "process " + std::string(line.substr(0, line.find('\n')));
}

std::string name_of_this_process() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '?';
  return fmt::format("{} on {}", getpid(), host.data());
}

/// False where the file system has no locks.
bool lock(const Descriptor& file, const fs::path& folder) {
  int result = 0;
  do result = ::flock(file.get(), LOCK_EX | LOCK_NB);
  while (result != 0 && errno == EINTR);
  if (result == 0) return true;
  if (errno == EWOULDBLOCK) refuse_second_run(folder, holder_named_in(file));
  if (errno == ENOTSUP || errno == ENOLCK || errno == ENOSYS) return false;
  throw_file_error("checkpoint.FolderLock", file.path(), "cannot be locked", errno);
}

std::shared_ptr<HeldFolder> acquire(const fs::path& folder) {
  auto held = std::make_shared<HeldFolder>();
  held->file = Descriptor(folder / "lock", O_RDWR | O_CREAT);
  held->locked = lock(held->file, folder);
  if (::ftruncate(held->file.get(), 0) != 0)
    throw_file_error("checkpoint.FolderLock", held->file.path(), "cannot be written", errno);
  held->file.write_all(name_of_this_process() + "\n");
  return held;
}

}  // namespace

std::shared_ptr<HeldFolder> hold_folder(const fs::path& folder, bool for_a_run) {
  make_folder((folder / "").parent_path());  // without a slash at its end
  Registry& registry = Registry::get();
  const std::lock_guard guard(registry.mutex);
  const FolderId id = id_of(folder);
  if (!registry.folders.contains(id)) registry.folders[id] = {acquire(folder)};
  auto& [held, holders] = registry.folders[id];
  if (for_a_run && held->has_run.exchange(true))
    refuse_second_run(folder, "this process, " + name_of_this_process());
  ++holders;
  return {held.get(), [id, held = held](HeldFolder*) { Registry::get().leave(id, held); }};
}

FolderLock::FolderLock(const fs::path& folder) : held_(hold_folder(folder, /*for_a_run=*/true)) {}

FolderLock::~FolderLock() {
  if (held_) held_->has_run = false;
}

FolderLock::FolderLock(FolderLock&& other) noexcept = default;

FolderLock& FolderLock::operator=(FolderLock&& other) noexcept {
  std::swap(held_, other.held_);
  return *this;
}

}  // namespace demi::checkpoint
