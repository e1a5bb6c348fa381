// SPDX-License-Identifier: Apache-2.0
// Where a stage's weights come from: a checkpoint directory or a generator.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/config/model_config.h"
#include "runtime/tensor/tensor.h"

namespace baton {

// Who holds a tensor of a checkpoint.
struct TensorOwner {
  enum class Kind { kEmbedding, kLayer, kFinal };  // kFinal: last norm and head
  Kind kind = Kind::kLayer;
  int layer = 0;        // physical, for kLayer
  bool routed = false;  // of an expert: read for the rows that chose it
  friend bool operator==(const TensorOwner&, const TensorOwner&) = default;
};

// Rows of a tensor whose dimensions but the last are all counted as rows, as
// those of [experts, out, in].
struct TensorRows {
  std::string name;
  Shape shape;        // of the tensor
  int64_t first = 0;  // row
};

// How a stage keeps a tensor that it has loaded.
enum class TensorForm : uint8_t {
  kPlain,       // as declared, in the compute dtype
  kPacked,      // a packed matrix (kernels/ops/matmul.h)
  kPackedNext,  // packed rows below those of the tensor declared before
  kTransposed,  // packed, columns as rows
  kFloats,      // f32 whatever the compute dtype; the file's type is free
};

// What each of a stage's ranks holds of a tensor.
struct TensorSplit {
  enum class Kind : uint8_t {
    kWhole,     // all of it
    kRows,      // an equal run of rows
    kSomeRows,  // the same; ranks share a run where there are too few units
    kQueryKeyValue,  // of rows of queries kRows, of keys' and values' kSomeRows
    kOneOf,          // all of it or nothing, where it is one of many tensors
    kColumns,        // an equal run of columns
  };
  Kind kind = Kind::kWhole;
  int64_t units = 1;  // heads, say: equal runs that are not cut themselves
  // kQueryKeyValue: KV heads. Under `units` heads' queries lie their keys, and
  // then their values, of as many rows each.
  int64_t kv_units = 0;
  int64_t unit = 0;  // kOneOf: which of the `units` tensors it is

  // [begin, end) of `all` rows or columns.
  struct Run {
    int64_t begin = 0;
    int64_t end = 0;
    [[nodiscard]] int64_t size() const { return end - begin; }
  };
  // Ascending, as a rank has them under each other; none: it has no row.
  [[nodiscard]] std::vector<Run> Rows(int64_t all, int rank, int ranks) const;
  [[nodiscard]] int64_t NumRows(int64_t all, int rank, int ranks) const;
  [[nodiscard]] Run Columns(int64_t all, int rank, int ranks) const;
};

// One tensor a decoder declares.
struct TensorDecl {
  std::string name;
  Shape shape;  // [out, in] for a linear
  TensorOwner owner;
  bool optional = false;         // may be missing from the file
  bool any_one_element = false;  // accepts [] and [1]
  TensorForm form = TensorForm::kPlain;
  TensorSplit split = {};  // of its rows, and columns of rank 2
  // Where a file without this name may have it: `shape` is rank 2 then.
  std::optional<TensorRows> elsewhere = std::nullopt;
  // A tensor that files may have too and that is not read, since it must repeat
  // this one bit for bit; empty: none.
  std::string repeated_as = {};
};

// A tensor of a checkpoint file; points into the mapping, where the file may
// have put it at any address. Read it through Rows, which aligns.
struct TensorEntry {
  std::string name;
  DType dtype;
  Shape shape;
  const std::byte* data = nullptr;
  std::string file;

  [[nodiscard]] std::span<const std::byte> bytes() const {
    return {data, static_cast<size_t>(shape.NumElements() * SizeOf(dtype))};
  }
};

// Rows of a tensor on the host: a view into a mapping, or of memory of its own.
struct HostRows {
  ConstView view;
  Tensor owned;
};

// Thread: any (const).
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  [[nodiscard]] virtual bool Has(const std::string& name) const = 0;
  // Rows [begin, end) of a declared tensor. NotFound: no such tensor.
  [[nodiscard]] virtual StatusOr<HostRows> Rows(const TensorDecl& decl,
                                                int64_t begin,
                                                int64_t end) const = 0;
  // The caller has copied what it needs of a tensor: its mapped pages need not
  // stay resident. It can still be read.
  virtual void Drop(const TensorDecl& decl) const {}
  // Of names, types and shapes, and of bytes from all over the tensors: differs
  // where weights do, but for a few values; equal however they are spread over
  // files. 0 where there is nothing to compare.
  [[nodiscard]] virtual uint64_t Fingerprint() const { return 0; }
  // Compares what there is with what a decoder declares. InvalidArgument: lists
  // every missing, unexpected, misshapen, wrongly typed or contradictory tensor
  // by name, up to 20. Ignored are `*.rotary_emb.*`, names with "projector",
  // `model.mtp*`, and a `*.bias` of zeros alone. All tensors but the
  // one-element ones and those kept as kFloats must have one type, F32 or BF16.
  [[nodiscard]] virtual Status Check(
      std::span<const TensorDecl> declared) const = 0;
};

// A Hugging Face directory: config.json, model.safetensors or shards with
// model.safetensors.index.json, mapped read-only.
class Checkpoint : public WeightSource {
 public:
  // NotFound: no directory, config or weights. DataLoss: a damaged or lying
  // safetensors file; the message names file and tensor.
  [[nodiscard]] static StatusOr<std::unique_ptr<Checkpoint>> Open(
      const std::string& directory);
  ~Checkpoint() override;

  [[nodiscard]] const std::string& directory() const;
  [[nodiscard]] const ModelConfig& config() const;
  // In name order.
  [[nodiscard]] std::span<const TensorEntry> tensors() const;
  // generation_config.json's eos ids, else config.json's.
  [[nodiscard]] std::vector<int32_t> EosIds() const;

  bool Has(const std::string& name) const override;
  StatusOr<HostRows> Rows(const TensorDecl& decl, int64_t begin,
                          int64_t end) const override;
  Status Check(std::span<const TensorDecl> declared) const override;
  void Drop(const TensorDecl& decl) const override;
  // Reads 2 MiB at the most.
  uint64_t Fingerprint() const override;

 private:
  struct State;
  explicit Checkpoint(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Reads only DIR/config.json. NotFound, InvalidArgument.
[[nodiscard]] StatusOr<ModelConfig> ReadModelConfig(
    const std::string& directory);

// bf16 weights from a counter-based generator keyed by (seed, name, element),
// scaled so that activations stay finite (norm weights near 1, linears by
// 1/sqrt(in)). For benchmarks: a config.json is all it needs.
[[nodiscard]] std::unique_ptr<WeightSource> NewRandomWeights(uint64_t seed);

}  // namespace baton
