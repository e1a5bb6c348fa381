// SPDX-License-Identifier: Apache-2.0
#include "runtime/weights/check.h"

#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace baton {
namespace {

constexpr size_t kMaxListed = 20;

// Tables that old exports carry, and a training-time head; no decoder reads
// them.
bool IsIgnored(const std::string& name) {
  return name.find(".rotary_emb.") != std::string::npos ||
         name.find("projector") != std::string::npos;
}

// The one type a checkpoint's matrices and norms must share: that of the first
// declared tensor that is there (an embedding, in every decoder's list).
const TensorEntry* Sample(std::span<const TensorEntry> tensors,
                          std::span<const TensorDecl> declared) {
  for (const TensorDecl& decl : declared) {
    if (decl.any_one_element) continue;
    const TensorEntry* entry = FindTensor(tensors, decl.name);
    if (entry != nullptr) return entry;
  }
  return nullptr;
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

bool ShapeFits(const TensorDecl& decl, const Shape& shape) {
  if (decl.any_one_element) return shape == Shape{} || shape == Shape{1};
  return shape == decl.shape;
}

Status CheckTensors(std::span<const TensorEntry> tensors,
                    std::span<const TensorDecl> declared) {
  std::vector<std::string> problems;
  std::unordered_set<std::string> known;
  const TensorEntry* sample = Sample(tensors, declared);
  for (const TensorDecl& decl : declared) {
    known.insert(decl.name);
    const TensorEntry* entry = FindTensor(tensors, decl.name);
    if (entry == nullptr) {
      if (decl.optional) continue;
      problems.push_back(
          fmt::format("missing: {} {}", decl.name, ToString(decl.shape)));
    } else if (!ShapeFits(decl, entry->shape)) {
      problems.push_back(fmt::format("misshapen: {} {}, expected {}", decl.name,
                                     ToString(entry->shape),
                                     ToString(decl.shape)));
    } else if (!decl.any_one_element && entry->dtype != sample->dtype) {
      problems.push_back(fmt::format("wrong type: {} {}, but {} is {}",
                                     decl.name, Name(entry->dtype),
                                     sample->name, Name(sample->dtype)));
    }
  }
  for (const TensorEntry& entry : tensors) {
    if (known.contains(entry.name) || IsIgnored(entry.name)) continue;
    problems.push_back(fmt::format("unexpected: {} {} in {}", entry.name,
                                   ToString(entry.shape), entry.file));
  }
  if (problems.empty()) return OkStatus();
  return InvalidArgument("{}", Summary(problems));
}

}  // namespace baton
