// SPDX-License-Identifier: Apache-2.0
// The safetensors format: 8 bytes of little-endian header length, a JSON
// header, then the data. A parser over bytes, with no file access: its input
// is untrusted and fuzzed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/tensor/dtype.h"
#include "runtime/tensor/shape.h"

namespace baton {

struct SafetensorsTensor {
  std::string name;
  DType dtype = DType::kBF16;
  Shape shape;
  std::span<const std::byte> data;  // inside the given file
};

// The tensors of a whole file, in the order of their data. `where` names the
// file in errors. The data is neither read nor aligned beyond what the file
// says.
// DataLoss: the bytes are damaged or lie: header length, JSON, names given
// twice, shapes that overflow, ranges outside the file, overlapping, with holes
// between or of another size than shape and dtype say; names the tensor.
// Unimplemented: a dtype other than F32 and BF16, or more than five dimensions.
[[nodiscard]] StatusOr<std::vector<SafetensorsTensor>> ParseSafetensors(
    std::span<const std::byte> file, const std::string& where);

// model.safetensors.index.json: tensor name to shard file name. A file name is
// a plain name that ends in ".safetensors". DataLoss: anything else.
[[nodiscard]] StatusOr<std::map<std::string, std::string>>
ParseSafetensorsIndex(std::string_view text, const std::string& where);

}  // namespace baton
