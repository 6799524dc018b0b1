#include "cli/go_on.h"

#include <iostream>
#include <system_error>
#include <vector>

#include "cli/output.h"
#include "demi/checkpoint/checkpoint.h"
#include "demi/core/error.h"
#include "lab/recipes/run_record.h"

namespace demi::cli {
namespace {

namespace fs = std::filesystem;

}  // namespace

std::vector<fs::path> checkpoint_folders(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code none;
  if (fs::exists(folder / "last", none)) found.push_back(folder);
  for (fs::directory_iterator entry(folder, none), end; !none && entry != end;
       entry.increment(none))
    if (fs::exists(entry->path() / "last")) found.push_back(entry->path());
  return found;
}

void say_how_to_go_on(const std::string& command, const fs::path& run_folder,
                      std::string_view when) {
  const auto folders = checkpoint_folders(run_folder / recipes::kCheckpoints);
  if (folders.empty()) return;
  for (const fs::path& folder : folders) {
    try {
      std::cerr << "kept: " << checkpoint::find(folder).string() << "\n";
    } catch (const DataError& damaged) {
      note(damaged.what());
    }
  }
  std::cerr << "go on" << when << ": demi " << command << " --resume " << run_folder.string()
            << "\n";
}

}  // namespace demi::cli
