#include "lab/inspect/difference.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "lab/inspect/statistics.h"

namespace demi::inspect {
namespace {

using Kind = TensorDifference::Kind;

/// Visits the elements of a part whose bytes differ, which distinguishes -0 from 0 and NaN from
/// NaN.
template <class Visit>
void each_different_byte_pattern(const at::Tensor& a, const at::Tensor& b, Visit visit) {
  const auto size = static_cast<std::size_t>(a.element_size());
  const auto *x = static_cast<const char*>(a.const_data_ptr()),
             *y = static_cast<const char*>(b.const_data_ptr());
  if (std::memcmp(x, y, a.nbytes()) == 0) return;
  for (int64_t i = 0; i < a.numel(); ++i, x += size, y += size)
    if (std::memcmp(x, y, size) != 0) visit(i);
}

template <class Visit>
void each_different_value(const at::Tensor& a, const at::Tensor& b, Visit visit) {
  const at::Tensor x = as_doubles(a), y = as_doubles(b);
  const auto *p = x.const_data_ptr<double>(), *q = y.const_data_ptr<double>();
  const int64_t each = x.numel() / std::max<int64_t>(a.numel(), 1);  // 2 of complex numbers
  for (int64_t i = 0; i < a.numel(); ++i) {
    bool same = true;
    for (int64_t k = i * each; k < (i + 1) * each; ++k)
      same &= p[k] == q[k] || (std::isnan(p[k]) && std::isnan(q[k]));
    if (!same) visit(i);
  }
}

/// Counts what differs between two parts of n elements each.
class PartDifference {
 public:
  PartDifference(TensorDifference& to, const at::Tensor& a, const at::Tensor& b) : to_(to) {
    if (a.scalar_type() == b.scalar_type())
      each_different_byte_pattern(a, b, [&](int64_t i) { note(a, b, i); });
    else if (a.is_complex() == b.is_complex())
      each_different_value(a, b, [&](int64_t i) { note(a, b, i); });
    else
      to.different_elements += a.numel();  // nothing to subtract
  }

 private:
  void note(const at::Tensor& a, const at::Tensor& b, int64_t i) {
    ++to_.different_elements;
    if (!x_.defined()) {
      x_ = as_doubles(a);
      y_ = as_doubles(b);
      each_ = x_.numel() / a.numel();
    }
    bool finite = true;
    for (int64_t k = i * each_; k < (i + 1) * each_; ++k) {
      const double x = x_.const_data_ptr<double>()[k], y = y_.const_data_ptr<double>()[k];
      if (std::isfinite(x) && std::isfinite(y))
        to_.max_abs_difference = std::max(to_.max_abs_difference, std::abs(x - y));
      else
        finite = false;
    }
    to_.non_finite += !finite;
  }

  TensorDifference& to_;
  at::Tensor x_, y_;  // made for the first difference
  int64_t each_ = 1;
};

void compare_values(TensorDifference& found) {
  checkpoint::StoredValues first(*found.first), second(*found.second);
  for (at::Tensor a = first.next(); a.defined(); a = first.next())
    PartDifference(found, a, second.next());
}

TensorDifference compare(const std::string& name, const checkpoint::StoredTensor* first,
                         const checkpoint::StoredTensor* second) {
  TensorDifference found{.name = name};
  if (first) found.first = *first;
  if (second) found.second = *second;
  if (!first || !second) {
    found.kind = first ? Kind::only_in_first : Kind::only_in_second;
    return found;
  }
  found.elements = first->elements();
  if (first->shape != second->shape) {
    found.kind = Kind::shape;
    return found;
  }
  if (first->dtype != second->dtype) found.kind = Kind::dtype;
  compare_values(found);
  return found;
}

bool is_different(const TensorDifference& found) {
  return found.kind != Kind::values || found.different_elements > 0;
}

/// Tensors of both sides by name, in the order of the first and then of the second.
class Pairs {
 public:
  Pairs(const checkpoint::Contents& first, const checkpoint::Contents& second) {
    const bool model_alone = first.is_file != second.is_file;
    add(first, model_alone, &Pair::first);
    add(second, model_alone, &Pair::second);
  }

  struct Pair {
    std::string name;
    const checkpoint::StoredTensor* first = nullptr;
    const checkpoint::StoredTensor* second = nullptr;
  };
  const std::vector<Pair>& all() const { return pairs_; }

 private:
  void add(const checkpoint::Contents& contents, bool model_alone,
           const checkpoint::StoredTensor* Pair::*side) {
    for (const checkpoint::StoredTensor& tensor : contents.tensors) {
      if (model_alone && !tensor.of_model) continue;
      const auto [at, is_new] = index_.emplace(tensor.name, pairs_.size());
      if (is_new) pairs_.push_back({.name = tensor.name});
      pairs_[at->second].*side = &tensor;
    }
  }

  std::vector<Pair> pairs_;
  std::map<std::string, std::size_t> index_;
};

/// Whether both hold the same; of numbers the same bits.
bool same(const std::string& a, const std::string& b) { return a == b; }
bool same(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); }

/// `of_checkpoints`: without measured entries, which a file of weights does not have.
template <class Value>
std::vector<EntryDifference<Value>> compare_entries(const std::map<std::string, Value>& first,
                                                    const std::map<std::string, Value>& second,
                                                    bool of_checkpoints) {
  std::map<std::string, EntryDifference<Value>> all;
  for (const auto& [name, value] : first) all[name] = {.name = name, .first = value};
  for (const auto& [name, value] : second) {
    all[name].name = name;
    all[name].second = value;
  }
  std::vector<EntryDifference<Value>> different;
  for (auto& [name, entry] : all)
    if (!(of_checkpoints && is_measured(name)) &&
        !(entry.first && entry.second && same(*entry.first, *entry.second)))
      different.push_back(std::move(entry));
  return different;
}

std::map<std::string, double> flat(const std::map<std::string, StateDict>& numbers) {
  std::map<std::string, double> all;
  for (const auto& [group, entries] : numbers)
    for (const auto& [name, value] : entries) all[group + "/" + name] = value;
  return all;
}

}  // namespace

bool is_measured(const std::string& name) {
  if (name.starts_with("measured/")) return true;
  const std::string_view word = "seconds";
  for (std::size_t at = name.find(word); at != std::string::npos; at = name.find(word, at + 1)) {
    const auto is_letter = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; };
    const std::size_t end = at + word.size();
    if ((at == 0 || !is_letter(name[at - 1])) && (end == name.size() || !is_letter(name[end])))
      return true;
  }
  return false;
}

Difference difference(const checkpoint::Contents& first, const checkpoint::Contents& second) {
  Difference found;
  const Pairs pairs(first, second);
  for (const Pairs::Pair& pair : pairs.all()) {
    const bool of_model =
        (pair.first && pair.first->of_model) || (pair.second && pair.second->of_model);
    const bool measured = !of_model && is_measured(pair.name);
    found.compared += !measured;
    TensorDifference one = compare(pair.name, pair.first, pair.second);
    if (is_different(one)) (measured ? found.times : found.tensors).push_back(std::move(one));
  }
  if (first.is_file != second.is_file) return found;
  found.numbers = compare_entries(flat(first.numbers), flat(second.numbers), !first.is_file);
  found.text = compare_entries(first.metadata, second.metadata, !first.is_file);
  return found;
}

}  // namespace demi::inspect
