// SPDX-License-Identifier: Apache-2.0
// How layers get their weights. A layer's constructor names each tensor once;
// the same constructor declares them (for checks and planning) and loads them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/ops/matmul.h"
#include "kernels/registry.h"
#include "models/decoder.h"
#include "runtime/tensor/tensor.h"
#include "runtime/weights/weight_source.h"

namespace baton {

// A packed matrix and its memory.
struct PackedWeight {
  Buffer buffer;
  PackedMatrix matrix;
};

// Matrices of one shape, of experts or of heads, in one allocation, since a GPU
// hands out whole units of 2 MiB. The first allocates for `most`; one that the
// rank does not hold is left out.
struct PackedMatrices {
  int64_t most = 0;  // that the rank holds
  Buffer buffer = {};
  std::vector<PackedMatrix> matrices = {};
};

// How the ranks of a stage share a tensor.
namespace split {

// Each rank computes all outputs.
inline constexpr TensorSplit kWhole = {};
// Each computes those of its units: heads, or single outputs.
[[nodiscard]] constexpr TensorSplit Outputs(int64_t units) {
  return {TensorSplit::Kind::kRows, units};
}
// The same, of units that ranks share where there are too few.
[[nodiscard]] constexpr TensorSplit SharedOutputs(int64_t units) {
  return {TensorSplit::Kind::kSomeRows, units};
}
// Of heads' queries, and keys and values of KV heads, under each other: of each
// of the three its own.
[[nodiscard]] constexpr TensorSplit QueryKeyValue(int64_t heads,
                                                  int64_t kv_heads) {
  return {TensorSplit::Kind::kQueryKeyValue, heads, kv_heads};
}
// The matrix belongs to one unit, and to that one's rank.
[[nodiscard]] constexpr TensorSplit OneOf(int64_t units, int64_t unit) {
  return {.kind = TensorSplit::Kind::kOneOf, .units = units, .unit = unit};
}
// Each has its columns: those of a matrix are the inputs that it sums over.
[[nodiscard]] constexpr TensorSplit Inputs(int64_t units) {
  return {TensorSplit::Kind::kColumns, units};
}

}  // namespace split

// Rows of a fused matrix that come from one tensor of the checkpoint.
struct FusedRows {
  std::string_view name;  // without prefix and ".weight"
  int64_t rows = 0;
  TensorSplit split = {};
  std::optional<TensorRows> elsewhere = std::nullopt;
  std::string repeated_as = {};  // as TensorDecl's
};

// Declares or loads the tensors it is asked for, and keeps the first failure:
// constructors of layers cannot fail, whoever built them asks `status` once.
// Owner thread: the stage's. Outlives the scopes made from it.
class WeightLoader {
 public:
  // Declares: records names and shapes, loads nothing, finds no kernels.
  WeightLoader() = default;
  // Loads. `total`: elements to come, for the progress report.
  WeightLoader(const SliceOptions& options, int64_t total)
      : options_(&options), total_(total) {}

  [[nodiscard]] bool loads() const { return options_ != nullptr; }
  [[nodiscard]] int ranks() const {
    return options_ == nullptr || options_->tp == nullptr
               ? 1
               : options_->tp->size();
  }
  [[nodiscard]] const Status& status() const { return status_; }
  [[nodiscard]] const std::vector<TensorDecl>& declared() const {
    return declared_;
  }
  [[nodiscard]] int64_t bytes() const { return bytes_; }  // as allocated
  [[nodiscard]] int64_t elements() const { return elements_; }

 private:
  friend class WeightScope;
  [[nodiscard]] int rank() const {
    return ranks() == 1 ? 0 : options_->tp->rank();
  }
  using RowsSink = Status (*)(const WeightLoader& loader, ConstView rows,
                              int64_t first, void* to);

  Status ForRows(const TensorDecl& decl, RowsSink sink, void* to);
  // Of one run, whose rows come `first` rows after the rank's first.
  Status ForRun(const TensorDecl& decl, const TensorSplit::Run& run,
                int64_t first, RowsSink sink, void* to) const;
  StatusOr<Buffer> Allocate(int64_t bytes);
  void Keep(const Status& status) {
    if (status_.ok()) status_ = status;
  }

  const SliceOptions* options_ = nullptr;
  int64_t total_ = 0;
  Status status_;
  std::vector<TensorDecl> declared_;
  int64_t bytes_ = 0;
  int64_t elements_ = 0;
};

// A loader, a name prefix and an owner: where a layer finds its tensors.
class WeightScope {
 public:
  WeightScope(WeightLoader& loader, TensorOwner owner, std::string prefix)
      : loader_(&loader), owner_(owner), prefix_(std::move(prefix)) {}

  // The physical layer that the tensors belong to.
  [[nodiscard]] LayerIndex layer() const { return LayerIndex(owner_.layer); }
  // The scope of a submodule, "<prefix><name>.".
  [[nodiscard]] WeightScope In(std::string_view name) const;
  // Of one whose matrices some files have under `other`.
  [[nodiscard]] WeightScope In(std::string_view name,
                               std::string_view other) const;
  // Of an expert that rows may choose.
  [[nodiscard]] WeightScope Routed(std::string_view name) const {
    WeightScope scope = In(name);
    scope.owner_.routed = true;
    return scope;
  }
  [[nodiscard]] std::string FullName(std::string_view name) const;
  // Of the stage; 1 while declaring.
  [[nodiscard]] int ranks() const { return loader_->ranks(); }

  // "<name>.weight" [size], in the compute dtype.
  [[nodiscard]] Tensor Vector(std::string_view name, int64_t size) const;
  // "<name>.weight" [rows, columns], row by row, in the compute dtype; of the
  // columns a rank has its share.
  [[nodiscard]] Tensor Table(std::string_view name, int64_t rows,
                             int64_t columns) const;
  // Tensors "<part>.weight" [part rows, k] under each other, packed: of each
  // what the rank holds. Rows go from the mapping straight into the packed
  // memory.
  [[nodiscard]] PackedWeight Matrix(std::span<const FusedRows> parts,
                                    int64_t k) const;
  // The same, as one more of several.
  void AddMatrix(std::span<const FusedRows> parts, int64_t k,
                 PackedMatrices& to) const;
  // The matrix of `part` [part rows, k], packed with its columns as rows, as
  // one more of several: [k, part rows]. A rank holds all of it or nothing.
  void AddTransposed(const FusedRows& part, int64_t k,
                     PackedMatrices& to) const;
  // "<name>" [shape], of any type, on the host, of it what the rank holds: for
  // a layer to keep as a Constant of as many elements. Empty while declaring.
  [[nodiscard]] std::vector<float> Values(
      std::string_view name, const Shape& shape,
      const TensorSplit& split = split::kWhole) const;
  // Values that come from no tensor as they are, f32, in the memory of the
  // device.
  [[nodiscard]] Tensor Constant(std::span<const float> values) const {
    return Constant(values, {static_cast<int64_t>(values.size())});
  }
  [[nodiscard]] Tensor Constant(std::span<const float> values,
                                const Shape& shape) const;
  // One element, stored as [] or [1]; its name has no ".weight". Without a
  // fallback it must be there.
  [[nodiscard]] float Scalar(
      std::string_view name,
      std::optional<float> fallback = std::nullopt) const;

  // The kernel of the device and compute dtype; null while declaring.
  template <typename Op>
  [[nodiscard]] KernelFn<Op> Kernel() const {
    if (!loader_->loads()) return nullptr;
    const SliceOptions& options = *loader_->options_;
    StatusOr<KernelFn<Op>> kernel =
        options.kernels->Find<Op>(options.device->kind(), options.dtype);
    if (kernel.ok()) return *kernel;
    loader_->Keep(kernel.status());
    return nullptr;
  }

 private:
  [[nodiscard]] std::optional<TensorRows> Elsewhere(const FusedRows& part,
                                                    int64_t k) const;
  // Declares; the declaration, if there is something to load.
  const TensorDecl* Declare(TensorDecl decl) const;
  // Zeroed memory for one more matrix of `in`; null: a failure.
  [[nodiscard]] std::byte* NewPacked(const PackedMatrix& matrix,
                                     PackedMatrices& in) const;
  // One more matrix, whose memory is in `in`; the caller adds it there.
  [[nodiscard]] PackedMatrix Pack(std::span<const FusedRows> parts, int64_t k,
                                  PackedMatrices& in) const;

  WeightLoader* loader_;
  TensorOwner owner_;
  std::string prefix_;
  std::string other_prefix_;  // empty: there is none
};

}  // namespace baton
