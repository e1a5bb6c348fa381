// SPDX-License-Identifier: Apache-2.0
#include "models/layers/weights.h"

#include <cstring>
#include <utility>

namespace baton {
namespace {

constexpr int64_t kMatrixAlignment = 256;  // of packed ones

template <typename From, typename To>
void ConvertRow(const From* from, To* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    to[i] = static_cast<To>(static_cast<float>(from[i]));
  }
}

// [rows, columns] in `from`'s dtype to contiguous rows of `dtype`.
Status Convert(ConstView from, DType dtype, std::byte* to) {
  const int64_t columns = from.RowElements();
  for (int64_t r = 0; r < from.dim(0); ++r) {
    std::byte* row = to + r * columns * SizeOf(dtype);
    if (from.dtype() == DType::kBF16) {
      const bf16* in = from.Row<bf16>(r);
      if (dtype == DType::kBF16) {
        std::memcpy(row, in, static_cast<size_t>(columns) * sizeof(bf16));
      } else {
        ConvertRow(in, reinterpret_cast<float*>(row), columns);
      }
    } else if (from.dtype() == DType::kF32) {
      const float* in = from.Row<float>(r);
      if (dtype == DType::kBF16) {
        ConvertRow(in, reinterpret_cast<bf16*>(row), columns);
      } else {
        std::memcpy(row, in, static_cast<size_t>(columns) * sizeof(float));
      }
    } else {
      return InvalidArgument("weights of type {}", Name(from.dtype()));
    }
  }
  return OkStatus();
}

struct PlainTarget {
  View view;  // [rows, columns] or [size]
  Device* device;
  Stream* stream;
};

Status CopyPlain(const WeightLoader&, ConstView rows, int64_t first, void* to) {
  const PlainTarget& target = *static_cast<PlainTarget*>(to);
  const View place = target.view.Rows(first, first + rows.dim(0));
  if (target.device->kind() == DeviceKind::kCpu) {
    return Convert(rows, place.dtype(), place.data());
  }
  BATON_ASSIGN_OR_RETURN(Buffer piece,
                         target.device->AllocateHost(place.bytes()));
  BATON_RETURN_IF_ERROR(Convert(rows, place.dtype(), piece.data()));
  BATON_RETURN_IF_ERROR(target.device->Copy(place.data(), piece.data(),
                                            place.bytes(), *target.stream));
  return target.stream->Synchronize();
}

struct PackedTarget {
  std::byte* data;
  DType dtype;
  int64_t n, k;
  int leaves;
  int64_t first_row;  // of the tensor in the fused matrix
  KernelFn<PackMatrix> pack;
  Stream* stream;
};

Status PackRows(const WeightLoader&, ConstView rows, int64_t first, void* to) {
  const PackedTarget& target = *static_cast<PackedTarget*>(to);
  Tensor rounded;  // the kernel widens bf16, but does not round f32
  if (rows.dtype() != target.dtype && target.dtype == DType::kBF16) {
    BATON_ASSIGN_OR_RETURN(rounded,
                           Tensor::AllocateHost(DType::kBF16, rows.shape()));
    BATON_RETURN_IF_ERROR(Convert(rows, DType::kBF16, rounded.view().data()));
    rows = rounded.view();
  }
  return target.pack({.rows = rows,
                      .first_row = target.first_row + first,
                      .packed = target.data,
                      .dtype = target.dtype,
                      .n = target.n,
                      .k = target.k,
                      .leaves = target.leaves},
                     *target.stream);
}

struct TransposedTarget {
  View columns;  // [k, rows], host
};

template <typename T>
void CopyColumns(const T* rows, int64_t first, View columns) {
  const int64_t k = columns.dim(0);
  for (int64_t c = 0; c < k; ++c) columns.Row<T>(c)[first] = rows[c];
}

Status Transpose(const WeightLoader&, ConstView rows, int64_t first, void* to) {
  const View columns = static_cast<TransposedTarget*>(to)->columns;
  BATON_ASSIGN_OR_RETURN(const Tensor copy,
                         Tensor::AllocateHost(columns.dtype(), rows.shape()));
  BATON_RETURN_IF_ERROR(Convert(rows, columns.dtype(), copy.view().data()));
  for (int64_t r = 0; r < rows.dim(0); ++r) {
    if (columns.dtype() == DType::kBF16) {
      CopyColumns(copy.view().Row<bf16>(r), first + r, columns);
    } else {
      CopyColumns(copy.view().Row<float>(r), first + r, columns);
    }
  }
  return OkStatus();
}

Status Append(const WeightLoader&, ConstView rows, int64_t, void* to) {
  std::vector<float>& values = *static_cast<std::vector<float>*>(to);
  const size_t before = values.size();
  values.resize(before + static_cast<size_t>(rows.shape().NumElements()));
  return Convert(rows, DType::kF32,
                 reinterpret_cast<std::byte*>(values.data() + before));
}

}  // namespace

WeightScope WeightScope::In(std::string_view name) const {
  return {*loader_, owner_, fmt::format("{}{}.", prefix_, name)};
}

WeightScope WeightScope::In(std::string_view name,
                            std::string_view other) const {
  WeightScope scope = In(name);
  scope.other_prefix_ = fmt::format("{}{}.", prefix_, other);
  return scope;
}

std::string WeightScope::FullName(std::string_view name) const {
  return fmt::format("{}{}", prefix_, name);
}

// A matrix, where it is if not under its name.
std::optional<TensorRows> WeightScope::Elsewhere(const FusedRows& part,
                                                 int64_t k) const {
  if (part.elsewhere.has_value() || other_prefix_.empty()) {
    return part.elsewhere;
  }
  return TensorRows{fmt::format("{}{}.weight", other_prefix_, part.name),
                    {part.rows, k}};
}

const TensorDecl* WeightScope::Declare(TensorDecl decl) const {
  decl.owner = owner_;
  loader_->declared_.push_back(std::move(decl));
  const TensorDecl& declared = loader_->declared_.back();
  if (loader_->loads()) {
    return loader_->status_.ok() ? &declared : nullptr;
  }
  loader_->elements_ += declared.shape.NumElements();
  return nullptr;
}

Tensor WeightScope::Vector(std::string_view name, int64_t size) const {
  const TensorDecl* decl = Declare(
      {.name = fmt::format("{}{}.weight", prefix_, name), .shape = {size}});
  if (decl == nullptr) return {};
  const SliceOptions& options = *loader_->options_;
  StatusOr<Buffer> buffer = loader_->Allocate(size * SizeOf(options.dtype));
  if (!buffer.ok()) {
    loader_->Keep(buffer.status());
    return {};
  }
  Tensor vector(*std::move(buffer), options.dtype, decl->shape);
  PlainTarget target{vector.view(), options.device, options.stream};
  loader_->Keep(loader_->ForRows(*decl, &CopyPlain, &target));
  return vector;
}

Tensor WeightScope::Table(std::string_view name, int64_t rows,
                          int64_t columns) const {
  const TensorDecl* decl =
      Declare({.name = fmt::format("{}{}.weight", prefix_, name),
               .shape = {rows, columns},
               .split = split::Inputs(columns)});
  if (decl == nullptr) return {};
  const SliceOptions& options = *loader_->options_;
  const Shape held = {
      rows,
      decl->split.Columns(columns, loader_->rank(), loader_->ranks()).size()};
  StatusOr<Buffer> buffer =
      loader_->Allocate(held.NumElements() * SizeOf(options.dtype));
  if (!buffer.ok()) {
    loader_->Keep(buffer.status());
    return {};
  }
  Tensor table(*std::move(buffer), options.dtype, held);
  PlainTarget target{table.view(), options.device, options.stream};
  loader_->Keep(loader_->ForRows(*decl, &CopyPlain, &target));
  return table;
}

std::byte* WeightScope::NewPacked(const PackedMatrix& matrix,
                                  PackedMatrices& in) const {
  const SliceOptions& options = *loader_->options_;
  const int64_t bytes = PackedBytesOn(options.device->kind(), matrix.n,
                                      matrix.k, matrix.leaves, options.dtype);
  const int64_t stride = PadTo(bytes, kMatrixAlignment);
  const auto index = static_cast<int64_t>(in.matrices.size());
  BATON_CHECK(index < in.most);
  if (index == 0) {
    StatusOr<Buffer> buffer = loader_->Allocate((in.most - 1) * stride + bytes);
    if (!buffer.ok()) {
      loader_->Keep(buffer.status());
      return nullptr;
    }
    in.buffer = *std::move(buffer);
  }
  std::byte* data = in.buffer.data() + index * stride;
  loader_->Keep(options.device->Clear(data, bytes, *options.stream));
  return loader_->status_.ok() ? data : nullptr;
}

PackedMatrix WeightScope::Pack(std::span<const FusedRows> parts, int64_t k,
                               PackedMatrices& in) const {
  const int ranks = loader_->ranks();
  const auto rows_of = [&](const FusedRows& part) {
    return part.split.NumRows(part.rows, loader_->rank(), ranks);
  };
  // Parts lie under each other, so that they have the same columns.
  const int64_t held = parts[0].split.Columns(k, loader_->rank(), ranks).size();
  const bool shared =
      parts[0].split.kind == TensorSplit::Kind::kColumns && HasCudaHalves(k);
  PackedMatrix matrix = {.k = held,
                         .leaves = LeavesHeld(k, held),
                         .halves = shared ? static_cast<int>(2 * held / k) : 0};
  for (const FusedRows& part : parts) matrix.n += rows_of(part);

  KernelFn<PackMatrix> pack = Kernel<PackMatrix>();
  std::byte* data = nullptr;
  int64_t first_row = 0;
  TensorForm form = TensorForm::kPacked;
  for (const FusedRows& part : parts) {
    const TensorDecl* decl =
        Declare({.name = fmt::format("{}{}.weight", prefix_, part.name),
                 .shape = {part.rows, k},
                 .form = std::exchange(form, TensorForm::kPackedNext),
                 .split = part.split,
                 .elsewhere = Elsewhere(part, k),
                 .repeated_as = part.repeated_as});
    if (decl == nullptr) continue;
    const SliceOptions& options = *loader_->options_;
    if (first_row == 0 && matrix.n > 0) {
      matrix.dtype = options.dtype;
      data = NewPacked(matrix, in);
      matrix.data = data;
    }
    if (!loader_->status_.ok()) return matrix;
    PackedTarget target{data,          options.dtype, matrix.n, held,
                        matrix.leaves, first_row,     pack,     options.stream};
    loader_->Keep(loader_->ForRows(*decl, &PackRows, &target));
    first_row += rows_of(part);
  }
  return matrix;
}

PackedWeight WeightScope::Matrix(std::span<const FusedRows> parts,
                                 int64_t k) const {
  PackedMatrices alone = {.most = 1};
  PackedWeight weight;
  weight.matrix = Pack(parts, k, alone);
  weight.buffer = std::move(alone.buffer);
  return weight;
}

void WeightScope::AddMatrix(std::span<const FusedRows> parts, int64_t k,
                            PackedMatrices& to) const {
  const PackedMatrix matrix = Pack(parts, k, to);
  if (matrix.n > 0) to.matrices.push_back(matrix);
}

void WeightScope::AddTransposed(const FusedRows& part, int64_t k,
                                PackedMatrices& to) const {
  KernelFn<PackMatrix> pack = Kernel<PackMatrix>();
  const TensorDecl* decl =
      Declare({.name = fmt::format("{}{}.weight", prefix_, part.name),
               .shape = {part.rows, k},
               .form = TensorForm::kTransposed,
               .split = part.split,
               .elsewhere = Elsewhere(part, k)});
  if (decl == nullptr) return;
  if (part.split.NumRows(part.rows, loader_->rank(), loader_->ranks()) == 0) {
    loader_->Keep(loader_->ForRows(*decl, &Transpose, nullptr));
    return;
  }
  const SliceOptions& options = *loader_->options_;
  PackedMatrix matrix = {.dtype = options.dtype,
                         .n = k,
                         .k = part.rows,
                         .leaves = MatmulLeaves(part.rows)};
  std::byte* data = NewPacked(matrix, to);
  StatusOr<Tensor> columns =
      Tensor::AllocateHost(options.dtype, {k, part.rows});
  if (!columns.ok()) loader_->Keep(columns.status());
  if (!loader_->status_.ok()) return;
  TransposedTarget target{columns->view()};
  loader_->Keep(loader_->ForRows(*decl, &Transpose, &target));
  if (!loader_->status_.ok()) return;
  loader_->Keep(pack({.rows = columns->view(),
                      .first_row = 0,
                      .packed = data,
                      .dtype = options.dtype,
                      .n = k,
                      .k = part.rows,
                      .leaves = matrix.leaves},
                     *options.stream));
  matrix.data = data;
  to.matrices.push_back(matrix);
}

std::vector<float> WeightScope::Values(std::string_view name,
                                       const Shape& shape,
                                       const TensorSplit& split) const {
  std::vector<float> values;
  const TensorDecl* decl = Declare({.name = FullName(name),
                                    .shape = shape,
                                    .form = TensorForm::kFloats,
                                    .split = split});
  if (decl == nullptr) return values;
  loader_->Keep(loader_->ForRows(*decl, &Append, &values));
  if (!loader_->status_.ok()) return {};
  loader_->bytes_ += static_cast<int64_t>(values.size() * sizeof(float));
  return values;
}

Tensor WeightScope::Constant(std::span<const float> values,
                             const Shape& shape) const {
  if (!loader_->loads() || !loader_->status_.ok()) return {};
  const SliceOptions& options = *loader_->options_;
  StatusOr<Tensor> constant =
      Tensor::Allocate(*options.device, DType::kF32, shape);
  if (!constant.ok()) {
    loader_->Keep(constant.status());
    return {};
  }
  BATON_CHECK(constant->bytes() ==
              static_cast<int64_t>(values.size() * sizeof(float)));
  loader_->Keep(
      options.device->Copy(constant->view().data(),
                           reinterpret_cast<const std::byte*>(values.data()),
                           constant->bytes(), *options.stream));
  loader_->Keep(options.stream->Synchronize());
  return *std::move(constant);
}

float WeightScope::Scalar(std::string_view name,
                          std::optional<float> fallback) const {
  const TensorDecl* decl = Declare({.name = fmt::format("{}{}", prefix_, name),
                                    .shape = {1},
                                    .optional = fallback.has_value(),
                                    .any_one_element = true});
  if (decl == nullptr) return fallback.value_or(0);
  const SliceOptions& options = *loader_->options_;
  if (fallback.has_value() && !options.weights->Has(decl->name)) {
    return *fallback;
  }
  float value = 0;
  StatusOr<HostRows> rows = options.weights->Rows(*decl, 0, 1);
  if (!rows.ok()) {
    loader_->Keep(rows.status());
  } else if (rows->view.shape().NumElements() != 1) {
    loader_->Keep(InvalidArgument("{}: shape {}, expected one element",
                                  decl->name, ToString(rows->view.shape())));
  } else {
    const ConstView one(rows->view.data(), rows->view.dtype(), {1});
    loader_->Keep(
        Convert(one, DType::kF32, reinterpret_cast<std::byte*>(&value)));
    loader_->elements_ += 1;
  }
  return value;
}

}  // namespace baton
