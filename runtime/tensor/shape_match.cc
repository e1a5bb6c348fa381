// SPDX-License-Identifier: Apache-2.0
#include "runtime/tensor/shape_match.h"

#include <charconv>
#include <string>

namespace baton {

ShapeMatch& ShapeMatch::Match(std::string_view name, ConstView view,
                              std::initializer_list<std::string_view> sizes) {
  if (!status_.ok()) return *this;
  if (view.shape().rank() != static_cast<int>(sizes.size())) {
    status_ = InvalidArgument("{}: {} has shape {}, expected rank {}", what_,
                              name, ToString(view.shape()), sizes.size());
    return *this;
  }
  int i = 0;
  for (std::string_view size : sizes) {
    const int64_t have = view.dim(i++);
    int64_t want = -1;
    const char* end = size.data() + size.size();
    const auto parsed = std::from_chars(size.data(), end, want);
    const bool literal = parsed.ec == std::errc() && parsed.ptr == end;
    if (!literal) want = -1;
    for (int b = 0; !literal && b < count_; ++b) {
      if (bindings_[b].name == size) want = bindings_[b].value;
    }
    if (want < 0) {
      BATON_CHECK(count_ < kMaxBindings);
      bindings_[count_++] = {size, have};
    } else if (want != have) {
      status_ = InvalidArgument("{}: {} has shape {}, expected {}={} at dim {}",
                                what_, name, ToString(view.shape()), size, want,
                                i - 1);
      return *this;
    }
  }
  return *this;
}

ShapeMatch& ShapeMatch::Require(bool condition, std::string_view text) {
  if (status_.ok() && !condition) {
    status_ = InvalidArgument("{}: {}", what_, text);
  }
  return *this;
}

ShapeMatch& ShapeMatch::IsType(std::string_view name, ConstView view,
                               DType dtype) {
  if (status_.ok() && view.dtype() != dtype) {
    status_ = InvalidArgument("{}: {} is {}, expected {}", what_, name,
                              Name(view.dtype()), Name(dtype));
  }
  return *this;
}

int64_t ShapeMatch::operator[](std::string_view name) const {
  for (int b = 0; b < count_; ++b) {
    if (bindings_[b].name == name) return bindings_[b].value;
  }
  BATON_CHECK(false && "size name is not bound");
  return 0;
}

}  // namespace baton
