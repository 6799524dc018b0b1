#include "lab/data/check.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>
#include <numeric>
#include <string_view>
#include <system_error>
#include <utility>

#include "lab/data/csv.h"
#include "lab/data/picture.h"
#include "lab/data/picture_folder.h"
#include "lab/data/tokenizer.h"
#include "lab/files/damage.h"
#include "lab/files/md5.h"

namespace demi::data {
namespace {

namespace fs = std::filesystem;

/// A picture or text, with what identifies equal ones.
struct Example {
  std::string place, key;
  std::size_t part;
  int64_t label;
};

/// Collects what readers report.
class Findings {
 public:
  explicit Findings(std::vector<Finding>& all) : all_(all) {}
  void operator()(const files::Damage& damage) const {
    const std::string at = damage.place.empty() ? "" : ", " + damage.place;
    all_.push_back({.place = damage.file.string() + at,
                    .what = std::string(damage.what),
                    .seen = damage.found,
                    .advice = std::string(damage.advice)});
  }

 private:
  std::vector<Finding>& all_;
};

FilesCheck::Part part_of(std::string place, std::size_t classes) {
  return {.place = std::move(place), .of_class = std::vector<int64_t>(classes)};
}

std::vector<Repeated> repeated_among(const std::vector<Example>& examples) {
  std::map<std::string_view, std::vector<const Example*>> equal;
  for (const Example& example : examples) equal[example.key].push_back(&example);
  std::vector<Repeated> all;
  for (const auto& [key, group] : equal) {
    if (group.size() < 2) continue;
    Repeated& repeated = all.emplace_back();
    for (const Example* example : group) {
      repeated.places.push_back(example->place);
      repeated.in_both_parts |= example->part != group[0]->part;
      repeated.of_several_classes |= example->label != group[0]->label;
    }
  }
  // The key's order means nothing to a reader.
  std::ranges::sort(all, {}, [](const Repeated& r) { return r.places; });
  return all;
}

void note_classes_of_one_part(FilesCheck& check) {
  if (check.parts.size() < 2) return;
  for (std::size_t c = 0; c < check.classes.size(); ++c)
    if (check.parts[1].of_class[c] == 0)
      check.notes.push_back(fmt::format("class {} is trained on and not tested: {} has none of it",
                                        check.classes[c], check.parts[1].place));
}

/// Notes texts over several lines in .tsv files. By RFC 4180 a text that begins with a quote ends
/// at the next one, maybe lines further on; the author of a .tsv without quoting does not mean
/// that.
void note_swallowed_lines(FilesCheck& check, const fs::path& file, const LabelledTexts& texts) {
  if (separator_of(file) != '\t') return;
  const auto over_lines = [](const TextSource& source) {
    return source.read().find('\n') != std::string::npos;
  };
  const auto first = std::ranges::find_if(texts.sources, over_lines);
  if (first == texts.sources.end()) return;
  check.notes.push_back(fmt::format(
      "{} texts hold line breaks, as a text in quotes may ({} is the first): if the file knows no "
      "quoting (GLUE's; pandas' quoting=3), write it again with quotes doubled",
      std::ranges::count_if(texts.sources, over_lines), first->place));
}

/// Only pictures of one size can be equal, so few of them are read again for their sums.
void find_repeated_pictures(FilesCheck& check, std::vector<Example> pictures) {
  std::map<std::uintmax_t, std::vector<Example>> by_size;
  for (Example& picture : pictures) {
    std::error_code unreadable;
    const auto bytes = fs::file_size(picture.place, unreadable);
    if (!unreadable) by_size[bytes].push_back(std::move(picture));
  }
  std::vector<Example> candidates;
  for (auto& [bytes, group] : by_size)
    for (Example& picture : group) {
      if (group.size() < 2) break;
      picture.key = files::md5_of_file(picture.place);
      candidates.push_back(std::move(picture));
    }
  check.repeated = repeated_among(candidates);
}

}  // namespace

int64_t FilesCheck::Part::examples() const {
  return std::accumulate(of_class.begin(), of_class.end(), int64_t{0});
}

FilesCheck check_pictures(const fs::path& folder, const CheckProgress& progress) {
  FilesCheck check{.kind = Kind::pictures};
  const PictureFolders found = find_picture_folders(folder, Findings(check.damaged));
  check.classes = found.train.classes;
  std::vector<const PictureFolder*> folders{&found.train};
  if (found.test) folders.push_back(&*found.test);
  std::vector<Example> pictures;
  for (std::size_t part = 0; part < folders.size(); ++part) {
    check.parts.push_back(part_of(folders[part]->name, check.classes.size()));
    if (std::string note = note_on_others(*folders[part]); !note.empty())
      check.notes.push_back(std::move(note));
    const int64_t* label = folders[part]->labels.const_data_ptr<int64_t>();
    for (const fs::path& file : folders[part]->files) {
      ++check.parts[part].of_class[static_cast<std::size_t>(*label)];
      pictures.push_back({.place = file.string(), .key = {}, .part = part, .label = *label++});
    }
  }
  std::vector<std::vector<Finding>> damaged(pictures.size());
  std::mutex one_at_a_time;
  int64_t done = 0;
  const auto all = static_cast<int64_t>(pictures.size());
  at::parallel_for(0, all, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto place = static_cast<std::size_t>(i);
      read_picture(pictures[place].place, Findings(damaged[place]));
      const std::lock_guard lock(one_at_a_time);
      ++done;
      if (progress) progress(done, all);
    }
  });
  std::vector<Example> sound;
  for (std::size_t i = 0; i < pictures.size(); ++i) {
    std::ranges::move(damaged[i], std::back_inserter(check.damaged));
    if (damaged[i].empty()) sound.push_back(std::move(pictures[i]));
  }
  note_classes_of_one_part(check);
  find_repeated_pictures(check, std::move(sound));
  return check;
}

FilesCheck check_texts(const fs::path& train, const fs::path& test) {
  FilesCheck check{.kind = Kind::texts};
  const Findings findings(check.damaged);
  std::vector<LabelledTexts> read{read_labelled_texts(train, {}, findings)};
  check.classes = read[0].classes;
  if (!test.empty() && !check.classes.empty())
    read.push_back(read_labelled_texts(test, check.classes, findings));
  const BasicEnglish tokenizer;
  std::vector<Example> texts;
  int64_t empty = 0;
  for (std::size_t part = 0; part < read.size(); ++part) {
    check.parts.push_back(part_of((part == 0 ? train : test).string(), check.classes.size()));
    for (const TextSource& source : read[part].sources) {
      ++check.parts[part].of_class[static_cast<std::size_t>(source.label)];
      std::string text = source.read();
      int64_t words = 0;
      const std::size_t bad = tokenizer(text, [&](std::string_view) { ++words; });
      if (bad != BasicEnglish::npos)
        check.damaged.push_back(
            {.place = fmt::format("{}, offset {} of the text", source.place, bad),
             .what = "the text is not UTF-8",
             .seen = fmt::format("byte 0x{:02x}", static_cast<unsigned char>(text[bad])),
             .advice = "convert the file: iconv -t UTF-8"});
      else if (words == 0)
        ++empty;
      else
        texts.push_back(
            {.place = source.place, .key = std::move(text), .part = part, .label = source.label});
    }
  }
  for (std::size_t part = 0; part < read.size(); ++part)
    note_swallowed_lines(check, part == 0 ? train : test, read[part]);
  if (empty > 0) check.notes.push_back(fmt::format("{} texts have no word", empty));
  note_classes_of_one_part(check);
  check.repeated = repeated_among(texts);
  return check;
}

}  // namespace demi::data
