// SPDX-License-Identifier: Apache-2.0
// Views (borrowed memory with a shape) and tensors (owned memory).
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/tensor/device.h"
#include "runtime/tensor/dtype.h"
#include "runtime/tensor/shape.h"

namespace baton {

// Borrowed memory: dim 0 is strided by `row_stride` elements, the inner dims
// are contiguous. `Byte` is std::byte or const std::byte.
template <typename Byte>
class BasicView {
 public:
  BasicView() = default;
  BasicView(Byte* data, DType dtype, Shape shape)
      : data_(data), dtype_(dtype), shape_(shape) {
    row_stride_ = RowElements();
  }
  BasicView(Byte* data, DType dtype, Shape shape, int64_t row_stride)
      : data_(data), dtype_(dtype), shape_(shape), row_stride_(row_stride) {}
  // A mutable view is a const view.
  operator BasicView<const std::byte>() const {  // NOLINT
    return {data_, dtype_, shape_, row_stride_};
  }

  [[nodiscard]] Byte* data() const { return data_; }
  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] const Shape& shape() const { return shape_; }
  [[nodiscard]] int64_t dim(int i) const { return shape_[i]; }
  [[nodiscard]] int64_t row_stride() const { return row_stride_; }
  [[nodiscard]] int64_t bytes() const {
    return shape_.NumElements() * SizeOf(dtype_);
  }
  [[nodiscard]] bool contiguous() const {
    return row_stride_ == RowElements() || shape_[0] <= 1;
  }
  // Elements of one dim-0 slice.
  [[nodiscard]] int64_t RowElements() const {
    int64_t n = 1;
    for (int i = 1; i < shape_.rank(); ++i) n *= shape_[i];
    return n;
  }

  // Pointer to the start of dim-0 slice `row`. CHECK: T is the dtype.
  template <typename T>
  [[nodiscard]] auto* Row(int64_t row) const {
    using P = std::conditional_t<std::is_const_v<Byte>, const T, T>;
    BATON_CHECK(dtype_ == kDTypeOf<T>);
    return reinterpret_cast<P*>(data_) + row * row_stride_;
  }
  // dim-0 slices [begin, end).
  [[nodiscard]] BasicView Rows(int64_t begin, int64_t end) const {
    Shape shape{end - begin};
    for (int i = 1; i < shape_.rank(); ++i) shape.Append(shape_[i]);
    return {data_ + begin * row_stride_ * SizeOf(dtype_), dtype_, shape,
            row_stride_};
  }
  // Columns [begin, end) of a rank-2 view.
  [[nodiscard]] BasicView Columns(int64_t begin, int64_t end) const {
    BATON_CHECK(shape_.rank() == 2);
    return {data_ + begin * SizeOf(dtype_),
            dtype_,
            {shape_[0], end - begin},
            row_stride_};
  }
  // Splits the inner dim of a rank-2 view: [rows, heads, dim].
  [[nodiscard]] BasicView Heads(int64_t heads) const {
    BATON_CHECK(shape_.rank() == 2 && shape_[1] % heads == 0);
    return {data_, dtype_, {shape_[0], heads, shape_[1] / heads}, row_stride_};
  }

 private:
  Byte* data_ = nullptr;
  DType dtype_ = DType::kF32;
  Shape shape_;
  int64_t row_stride_ = 0;
};

using View = BasicView<std::byte>;
using ConstView = BasicView<const std::byte>;

// Owned contiguous memory. Move-only.
class Tensor {
 public:
  Tensor() = default;
  Tensor(Buffer buffer, DType dtype, Shape shape)
      : buffer_(std::move(buffer)), dtype_(dtype), shape_(shape) {
    BATON_CHECK(shape.NumElements() * SizeOf(dtype) <= buffer_.bytes());
  }
  // ResourceExhausted: no memory.
  [[nodiscard]] static StatusOr<Tensor> Allocate(Device& device, DType dtype,
                                                 Shape shape) {
    BATON_ASSIGN_OR_RETURN(
        Buffer buffer, device.Allocate(shape.NumElements() * SizeOf(dtype)));
    return Tensor(std::move(buffer), dtype, shape);
  }
  [[nodiscard]] static StatusOr<Tensor> AllocateHost(DType dtype, Shape shape) {
    BATON_ASSIGN_OR_RETURN(
        Buffer buffer, AllocateHostBuffer(shape.NumElements() * SizeOf(dtype)));
    return Tensor(std::move(buffer), dtype, shape);
  }

  [[nodiscard]] View view() const { return {buffer_.data(), dtype_, shape_}; }
  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] const Shape& shape() const { return shape_; }
  [[nodiscard]] int64_t bytes() const {
    return shape_.NumElements() * SizeOf(dtype_);
  }
  [[nodiscard]] DeviceKind kind() const { return buffer_.kind(); }
  [[nodiscard]] bool empty() const { return buffer_.data() == nullptr; }
  [[nodiscard]] Buffer ReleaseBuffer() && { return std::move(buffer_); }

 private:
  Buffer buffer_;
  DType dtype_ = DType::kF32;
  Shape shape_;
};

}  // namespace baton
