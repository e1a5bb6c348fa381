// SPDX-License-Identifier: Apache-2.0
#include "runtime/weights/check.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "runtime/base/check.h"

namespace baton {
namespace {

constexpr size_t kMaxListed = 20;

bool IsZero(const TensorEntry& entry) {
  const std::span<const std::byte> bytes = entry.bytes();
  return std::all_of(bytes.begin(), bytes.end(),
                     [](std::byte b) { return b == std::byte{0}; });
}

// Tables that old exports carry, heads that only training or drafting uses, and
// biases that add nothing, as quantizing exporters write them.
bool IsIgnored(const TensorEntry& entry) {
  return entry.name.find(".rotary_emb.") != std::string::npos ||
         entry.name.find("projector") != std::string::npos ||
         entry.name.starts_with("model.mtp") ||
         (entry.name.ends_with(".bias") && IsZero(entry));
}

bool HasAnyType(const TensorDecl& decl) {
  return decl.any_one_element || decl.form == TensorForm::kFloats;
}

// The one type a checkpoint's matrices and norms must share: that of the first
// declared tensor that is there (an embedding, in every decoder's list).
const TensorEntry* Sample(std::span<const TensorEntry> tensors,
                          std::span<const TensorDecl> declared) {
  for (const TensorDecl& decl : declared) {
    if (HasAnyType(decl)) continue;
    const TensorEntry* entry = FindDeclared(tensors, decl).entry;
    if (entry != nullptr) return entry;
  }
  return nullptr;
}

// What is wrong with one declared tensor; empty: nothing.
std::string ProblemOf(const TensorDecl& decl, const FoundTensor& found,
                      const TensorEntry* sample) {
  if (found.entry == nullptr) {
    if (decl.optional) return "";
    if (!decl.elsewhere.has_value()) {
      return fmt::format("missing: {} {}", decl.name, ToString(decl.shape));
    }
    return fmt::format("missing: {} {}, or rows of {} {}", decl.name,
                       ToString(decl.shape), decl.elsewhere->name,
                       ToString(decl.elsewhere->shape));
  }
  if (!found.fits) {
    return fmt::format("misshapen: {} {}, expected {}", found.entry->name,
                       ToString(found.entry->shape), ToString(found.expected));
  }
  if (!HasAnyType(decl) && found.entry->dtype != sample->dtype) {
    return fmt::format("wrong type: {} {}, but {} is {}", found.entry->name,
                       Name(found.entry->dtype), sample->name,
                       Name(sample->dtype));
  }
  return "";
}

// What is wrong with a tensor that should repeat `entry`; empty: nothing.
std::string ProblemOfRepeat(const TensorEntry& entry,
                            const TensorEntry& repeat) {
  const bool same =
      repeat.dtype == entry.dtype && repeat.shape == entry.shape &&
      std::memcmp(repeat.data, entry.data, entry.bytes().size()) == 0;
  if (same) return "";
  return fmt::format(
      "contradictory: {} {}, but {} is used in its place and has other values",
      repeat.name, ToString(repeat.shape), entry.name);
}

// Lines about each problem, once.
class Problems {
 public:
  void Add(std::string problem) {
    if (problem.empty() || !said_.insert(problem).second) return;
    lines_.push_back(std::move(problem));
  }
  [[nodiscard]] const std::vector<std::string>& lines() const { return lines_; }

 private:
  std::unordered_set<std::string> said_;
  std::vector<std::string> lines_;
};

// Stacks, `known` for some of their rows, where other rows are tensors of their
// own as well: either could be meant.
void AddHalfUsedStacks(std::span<const TensorEntry> tensors,
                       std::span<const TensorDecl> declared,
                       const std::unordered_set<std::string>& known,
                       Problems& problems) {
  std::unordered_set<std::string> told;
  for (const TensorDecl& decl : declared) {
    if (!decl.elsewhere.has_value()) continue;
    const std::string& stack = decl.elsewhere->name;
    if (!known.contains(stack) || FindTensor(tensors, stack) == nullptr ||
        FindTensor(tensors, decl.name) == nullptr ||
        !told.insert(stack).second) {
      continue;
    }
    problems.Add(fmt::format("twice: {} {} and among the rows of {}", decl.name,
                             ToString(decl.shape), stack));
  }
}

std::string Summary(const std::vector<std::string>& problems) {
  const size_t listed = std::min(problems.size(), kMaxListed);
  std::string text = fmt::format("{} tensors are not as the decoder declares:",
                                 problems.size());
  for (size_t i = 0; i < listed; ++i) text += "\n  " + problems[i];
  if (listed < problems.size()) {
    text += fmt::format("\n  and {} more", problems.size() - listed);
  }
  return text;
}

}  // namespace

const TensorEntry* FindTensor(std::span<const TensorEntry> tensors,
                              const std::string& name) {
  const auto it =
      std::lower_bound(tensors.begin(), tensors.end(), name,
                       [](const TensorEntry& entry, const std::string& n) {
                         return entry.name < n;
                       });
  return it != tensors.end() && it->name == name ? &*it : nullptr;
}

FoundTensor FindDeclared(std::span<const TensorEntry> tensors,
                         const TensorDecl& decl) {
  FoundTensor found;
  found.expected = decl.shape;
  found.entry = FindTensor(tensors, decl.name);
  if (found.entry != nullptr) {
    const TensorEntry& entry = *found.entry;
    const bool one = entry.shape == Shape{} || entry.shape == Shape{1};
    found.fits = decl.any_one_element ? one : entry.shape == decl.shape;
    if (found.fits) found.rows = {entry.data, entry.dtype, decl.shape};
    return found;
  }
  if (!decl.elsewhere.has_value()) return found;
  const TensorRows& place = *decl.elsewhere;
  found.expected = place.shape;
  found.entry = FindTensor(tensors, place.name);
  if (found.entry == nullptr) return found;
  found.fits = found.entry->shape == place.shape;
  if (!found.fits) return found;
  const int64_t columns = decl.shape[1];
  const int64_t rows = place.shape.NumElements() / columns;
  const int64_t end = place.first + decl.shape[0];
  BATON_CHECK(place.shape[place.shape.rank() - 1] == columns && end <= rows);
  found.rows = ConstView(found.entry->data, found.entry->dtype, {rows, columns})
                   .Rows(place.first, end);
  return found;
}

Status CheckTensors(std::span<const TensorEntry> tensors,
                    std::span<const TensorDecl> declared) {
  Problems problems;
  std::unordered_set<std::string> known;
  const TensorEntry* sample = Sample(tensors, declared);
  for (const TensorDecl& decl : declared) {
    const FoundTensor found = FindDeclared(tensors, decl);
    known.insert(found.entry == nullptr ? decl.name : found.entry->name);
    std::string problem = ProblemOf(decl, found, sample);
    const TensorEntry* repeat = FindTensor(tensors, decl.repeated_as);
    if (repeat != nullptr) {
      known.insert(repeat->name);
      if (problem.empty()) problem = ProblemOfRepeat(*found.entry, *repeat);
    }
    // A stacked tensor is found once for each declared one that is in it.
    problems.Add(std::move(problem));
  }
  AddHalfUsedStacks(tensors, declared, known, problems);
  for (const TensorEntry& entry : tensors) {
    if (known.contains(entry.name) || IsIgnored(entry)) continue;
    problems.Add(fmt::format("unexpected: {} {} in {}", entry.name,
                             ToString(entry.shape), entry.file));
  }
  if (problems.lines().empty()) return OkStatus();
  return InvalidArgument("{}", Summary(problems.lines()));
}

}  // namespace baton
