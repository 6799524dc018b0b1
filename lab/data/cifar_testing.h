#pragma once

#include <archive.h>
#include <archive_entry.h>

#include <filesystem>
#include <initializer_list>
#include <string>

#include "lab/files/folder_testing.h"

namespace demi::data::cifar_testing {

/// A record of the binary version: labels, then the planes red, green, blue of 1024 bytes each.
inline std::string record(std::initializer_list<int> labels, char red, char green, char blue) {
  std::string text;
  for (int label : labels) text.push_back(static_cast<char>(label));
  return text + std::string(1024, red) + std::string(1024, green) + std::string(1024, blue);
}

inline void write_ten(const TestFolder& folder) {
  for (int batch = 1; batch <= 5; ++batch)
    folder.write("data_batch_" + std::to_string(batch) + ".bin",
                 record({batch}, 1, 2, 3) + record({0}, 4, 5, static_cast<char>(batch)));
  folder.write("test_batch.bin", record({9}, 7, 8, 9));
}

/// A tar.gz (or tar.xz) of `folder`'s files below `root`, made by libarchive itself.
inline void pack(const std::filesystem::path& folder, const std::filesystem::path& file,
                 const std::string& root, bool xz = false) {
  namespace fs = std::filesystem;
  archive* out = archive_write_new();
  if (xz) {
    archive_write_add_filter_xz(out);
  } else {
    archive_write_add_filter_gzip(out);
  }
  archive_write_set_format_ustar(out);
  archive_write_open_filename(out, file.c_str());
  for (const auto& item : fs::recursive_directory_iterator(folder)) {
    if (!item.is_regular_file()) continue;
    const std::string bytes = files::contents(item.path());
    archive_entry* entry = archive_entry_new();
    archive_entry_set_pathname(entry, (root + fs::relative(item.path(), folder).string()).c_str());
    archive_entry_set_size(entry, static_cast<la_int64_t>(bytes.size()));
    archive_entry_set_filetype(entry, AE_IFREG);
    archive_entry_set_perm(entry, 0644);
    archive_write_header(out, entry);
    archive_write_data(out, bytes.data(), bytes.size());
    archive_entry_free(entry);
  }
  archive_write_free(out);
}

}  // namespace demi::data::cifar_testing
