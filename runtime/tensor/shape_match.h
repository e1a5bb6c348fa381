// SPDX-License-Identifier: Apache-2.0
// Shape checks by named sizes, at a kernel's door:
//   BATON_RETURN_IF_ERROR(ShapeMatch("rms_norm")
//       .Match("x", args.x, {"tokens", "hidden"})
//       .Match("weight", args.weight, {"hidden"})
//       .status());
// The first use of a name binds it; a later use must agree. A name that is a
// number ("16") must equal it.
#pragma once

#include <initializer_list>
#include <string_view>

#include "runtime/base/status.h"
#include "runtime/tensor/tensor.h"

namespace baton {

class ShapeMatch {
 public:
  explicit ShapeMatch(std::string_view what) : what_(what) {}
  ShapeMatch& Match(std::string_view name, ConstView view,
                    std::initializer_list<std::string_view> sizes);
  ShapeMatch& Require(bool condition, std::string_view text);
  ShapeMatch& IsType(std::string_view name, ConstView view, DType dtype);
  // Value bound to `name`; CHECKs that it is bound.
  [[nodiscard]] int64_t operator[](std::string_view name) const;
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  struct Binding {
    std::string_view name;
    int64_t value;
  };
  static constexpr int kMaxBindings = 12;

  std::string_view what_;
  Binding bindings_[kMaxBindings] = {};
  int count_ = 0;
  Status status_;
};

}  // namespace baton
