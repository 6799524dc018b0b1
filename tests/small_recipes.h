#pragma once

// Every recipe of the table made small enough for a test: a data set of a few examples in the files
// of its own layout, and networks as they are, where their width is not a setting. A new recipe is
// covered by being in the table.
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "lab/data/registry.h"
#include "lab/settings/recipe.h"

namespace small_recipes {

namespace fs = std::filesystem;
using demi::settings::Config;

constexpr int kExamples = 12;  // of training; a third of that to test on
constexpr int kBatch = 4;

inline void write(const fs::path& file, const std::string& content) {
  fs::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary) << content;
}

// Bytes that differ from each other and from example to example.
inline std::string pixels(int count, int seed) {
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes.push_back(static_cast<char>((i * 37 + seed * 101) % 251));
  return bytes;
}

inline std::string big_endian(std::initializer_list<uint32_t> numbers) {
  std::string bytes;
  for (const uint32_t number : numbers)
    for (int shift = 24; shift >= 0; shift -= 8)
      bytes.push_back(static_cast<char>(number >> shift));
  return bytes;
}

inline void write_mnist(const fs::path& folder) {
  const auto split = [&](const std::string& name, int count) {
    std::string images = big_endian({0x803, static_cast<uint32_t>(count), 28, 28});
    std::string labels = big_endian({0x801, static_cast<uint32_t>(count)});
    for (int i = 0; i < count; ++i) {
      images += pixels(28 * 28, i);
      labels.push_back(static_cast<char>(i % 10));
    }
    write(folder / (name + "-images-idx3-ubyte"), images);
    write(folder / (name + "-labels-idx1-ubyte"), labels);
  };
  split("train", kExamples);
  split("t10k", kExamples / 3);
}

// The binary version: labels, then the planes red, green, blue.
inline void write_cifar(const fs::path& folder, const std::vector<std::string>& train_files,
                        const std::string& test_file, std::size_t labels) {
  const auto records = [&](int first, int count) {
    std::string bytes;
    for (int example = first; example < first + count; ++example)
      bytes += std::string(labels, static_cast<char>(example % 10)) + pixels(3 * 32 * 32, example);
    return bytes;
  };
  const int each = kExamples / static_cast<int>(train_files.size()) + 1;
  int first = 0;
  for (const std::string& file : train_files) {
    write(folder / file, records(first, each));
    first += each;
  }
  write(folder / test_file, records(0, kExamples / 3));
}

inline void write_imdb(const fs::path& folder) {
  const char* const words[] = {"good", "bad", "film", "the", "a", "plot", "of", "it"};
  for (const char* split : {"train", "test"})
    for (const char* label : {"neg", "pos"})
      for (int i = 0; i < kExamples / 2; ++i) {
        std::string text = label[0] == 'n' ? "bad" : "good";
        for (int word = 0; word < 3 + 5 * i; ++word)
          text += std::string(" ") + words[static_cast<std::size_t>(word * (i + 1)) % 8];
        write(folder / split / label / (std::to_string(i) + "_1.txt"), text);
      }
}

inline std::string png_chunk(const std::string& type, const std::string& content) {
  const std::string covered = type + content;
  uint32_t crc = 0xffffffff;  // PNG, annex D
  for (const char byte : covered) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xedb88320 : 0);
  }
  return big_endian({static_cast<uint32_t>(content.size())}) + covered + big_endian({~crc});
}

// Of side x side pixels R, G, B, stored without compression (RFC 1950 and 1951).
inline std::string png_of(const std::string& colours, uint32_t side) {
  const std::size_t width = std::size_t{3} * side;
  std::string rows;
  for (std::size_t row = 0; row < side; ++row)
    rows += std::string(1, '\0') + colours.substr(width * row, width);
  uint32_t low = 1, high = 0;  // Adler-32
  for (const char byte : rows) {
    low = (low + static_cast<unsigned char>(byte)) % 65521;
    high = (high + low) % 65521;
  }
  const auto size = static_cast<uint16_t>(rows.size());
  const auto little_endian = [](uint16_t number) {
    return std::string{static_cast<char>(number & 255), static_cast<char>(number >> 8)};
  };
  const std::string stream = std::string("\x78\x01\x01", 3) + little_endian(size) +
                             little_endian(static_cast<uint16_t>(~size)) + rows +
                             big_endian({(high << 16) | low});
  return "\x89PNG\r\n\x1a\n" +
         png_chunk("IHDR", big_endian({side, side}) + std::string("\x08\x02\0\0\0", 5)) +
         png_chunk("IDAT", stream) + png_chunk("IEND", "");
}

// 8 x 8. No two are alike: batches of equal pictures have no deviation, and BatchNorm makes
// gradients without bounds of that.
inline std::string png(int seed) { return png_of(pixels(3 * 8 * 8, seed), 8); }

inline void write_pictures(const fs::path& folder) {
  int seed = 0;
  for (const char* name : {"a", "b"}) {
    for (int i = 0; i < kExamples / 2; ++i)
      write(folder / "train" / name / (std::to_string(i) + ".png"), png(++seed));
    for (int i = 0; i < kExamples / 6; ++i)
      write(folder / "val" / name / (std::to_string(i) + ".png"), png(++seed));
  }
}

inline void write_text(const fs::path& folder) {
  std::string text;
  for (int i = 0; i < 25 * kExamples; ++i) text.push_back("abcd ef\n"[i * i * (i + 3) % 8]);
  write(folder / "tinyshakespeare.txt", text);
}

inline void write_data(const std::string& name, const fs::path& folder) {
  using demi::data::Layout;
  switch (demi::data::data_set(name).layout) {
    case Layout::synthetic:
    case Layout::csv:
    case Layout::tokens:
      return;
    case Layout::text:
      return write_text(folder);
    case Layout::picture_folder:
      return write_pictures(folder);
    case Layout::mnist:
      return write_mnist(folder);
    case Layout::cifar10:
      return write_cifar(folder,
                         {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                          "data_batch_4.bin", "data_batch_5.bin"},
                         "test_batch.bin", 1);
    case Layout::cifar100:
      return write_cifar(folder, {"train.bin"}, "test.bin", 2);
    case Layout::imdb:
      return write_imdb(folder);
  }
}

/// Of that recipe, with its data below `folder`: three batches of four examples, in two steps of
/// which nothing is random.
inline Config of(const std::string& recipe, const fs::path& folder) {
  Config c = demi::settings::find_recipe(recipe).config;
  c.epochs = 1;
  c.steps = 2;
  c.batches = kExamples / kBatch;
  c.batch_size = kBatch;
  c.test_batch_size = kBatch;
  c.in = c.out = 16;
  c.image_size = 64;
  c.classes = 10;
  c.context = 8;
  for (const auto& [name, value] : {std::pair("embedding", "16"), {"hidden", "16"}, {"heads", "4"}})
    demi::settings::set(c, name, value, recipe);
  if (recipe == "gpt2") demi::settings::set(c, "depth", "4", recipe);
  c.tokens_per_step = 0;
  c.eval_every = 2;
  c.workers = 0;
  c.min_lr *= 0.01;
  c.lr *= 0.01;  // the second loss tells the weights after one step, not chaos
  const bool synthetic = c.data.starts_with("synthetic");
  if (synthetic) return c;
  if (c.data == "csv") {
    c.train_file = (folder / "train.csv").string();
    c.test_file = (folder / "test.csv").string();
    for (const std::string& file : {c.train_file, c.test_file}) {
      std::string rows = "label,text\n";
      for (int i = 0; i < kExamples; ++i) rows += i % 2 ? "good,a good film\n" : "bad,it is bad\n";
      write(file, rows);
    }
    return c;
  }
  if (c.data == "tokens") {
    c.vocabulary_size = 64;
    c.train_file = (folder / "train.bin").string();
    c.test_file = (folder / "val.bin").string();
    for (const std::string& file : {c.train_file, c.test_file}) {
      std::string numbers;  // 16 bits each, the lower ones first
      for (int i = 0; i < 25 * kExamples; ++i)
        numbers += {static_cast<char>(i * i * (i + 3) % 61), '\0'};
      write(file, numbers);
    }
    return c;
  }
  c.data_dir = (folder / c.data).string();
  write_data(c.data, c.data_dir);
  setenv("DEMI_CACHE", (folder / "cache").c_str(), 1);
  return c;
}

inline std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const demi::settings::Recipe& recipe : demi::settings::recipes()) all.push_back(recipe.name);
  return all;
}

/// As part of a test's name.
inline std::string plain(std::string name) {
  for (char& c : name)
    if (c == '-') c = '_';
  return name;
}

}  // namespace small_recipes
