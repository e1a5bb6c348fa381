// SPDX-License-Identifier: Apache-2.0
// Weight sources for tests.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "runtime/weights/weight_source.h"

namespace baton::testing {

// Another source, watched and edited. Thread: any, as for every source; what it
// has noted is read once nobody loads any more.
class EditedWeights : public WeightSource {
 public:
  // Changes a whole tensor's elements before its rows are handed out.
  using Edit = std::function<void(const std::string&, std::vector<float>&)>;
  explicit EditedWeights(const WeightSource* source, Edit edit = nullptr)
      : source_(source), edit_(std::move(edit)) {}

  // Names that were asked for, and that are not needed any more.
  mutable std::set<std::string> asked, dropped;
  std::set<std::string> hidden;  // names it denies having

  bool Has(const std::string& name) const override {
    return !hidden.count(name) && source_->Has(name);
  }
  StatusOr<HostRows> Rows(const TensorDecl& decl, int64_t begin,
                          int64_t end) const override {
    Note(decl.name, asked);
    if (hidden.count(decl.name)) return NotFound("no tensor {}", decl.name);
    if (edit_ == nullptr) return source_->Rows(decl, begin, end);
    BATON_ASSIGN_OR_RETURN(HostRows rows, source_->Rows(decl, begin, end));
    std::vector<float> values;
    for (int64_t i = 0; i < rows.view.shape().NumElements(); ++i) {
      const std::byte* data = rows.view.data();
      values.push_back(
          rows.view.dtype() == DType::kF32
              ? reinterpret_cast<const float*>(data)[i]
              : static_cast<float>(reinterpret_cast<const bf16*>(data)[i]));
    }
    edit_(decl.name, values);
    HostRows edited;
    BATON_ASSIGN_OR_RETURN(
        edited.owned, Tensor::AllocateHost(DType::kF32, rows.view.shape()));
    std::copy(values.begin(), values.end(),
              reinterpret_cast<float*>(edited.owned.view().data()));
    edited.view = edited.owned.view();
    return edited;
  }
  void Drop(const TensorDecl& decl) const override {
    Note(decl.name, dropped);
    source_->Drop(decl);
  }
  Status Check(std::span<const TensorDecl> declared) const override {
    return source_->Check(declared);
  }

 private:
  void Note(const std::string& name, std::set<std::string>& names) const {
    absl::MutexLock lock(&mutex_);
    names.insert(name);
  }

  const WeightSource* source_;
  Edit edit_;
  mutable absl::Mutex mutex_;  // ranks load at the same time
};

// Every element of every tensor is one value.
class ConstantWeights : public WeightSource {
 public:
  explicit ConstantWeights(float value) : value_(value) {}
  bool Has(const std::string& name) const override { return true; }
  StatusOr<HostRows> Rows(const TensorDecl& decl, int64_t begin,
                          int64_t end) const override {
    Shape shape{end - begin};
    for (int i = 1; i < decl.shape.rank(); ++i) shape.Append(decl.shape[i]);
    HostRows rows;
    BATON_ASSIGN_OR_RETURN(rows.owned,
                           Tensor::AllocateHost(DType::kF32, shape));
    float* data = reinterpret_cast<float*>(rows.owned.view().data());
    std::fill(data, data + shape.NumElements(), value_);
    rows.view = rows.owned.view();
    return rows;
  }
  void Drop(const TensorDecl& decl) const override {}
  Status Check(std::span<const TensorDecl> declared) const override {
    return OkStatus();
  }

 private:
  float value_;
};

}  // namespace baton::testing
