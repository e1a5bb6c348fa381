// SPDX-License-Identifier: Apache-2.0
#include "runtime/weights/safetensors.h"

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>
#include <utility>

#include "runtime/config/json.h"

namespace baton {
namespace {

using nlohmann::json;

constexpr int64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr size_t kMaxNameBytes = 512;
// What a repository has instead of a large file that was not fetched.
constexpr std::string_view kLfsPointer = "version https://git-lfs.";
constexpr int64_t kMaxInteger = std::numeric_limits<int64_t>::max();

// Types of the format that are no damage, but that nothing here can compute.
constexpr std::array<std::string_view, 22> kOtherTypes = {
    "BOOL",    "U8",      "I8",      "I16",         "U16",         "F16",
    "I32",     "U32",     "F64",     "I64",         "U64",         "C64",
    "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F6_E2M3",
    "F6_E3M2", "F4",      "F4_E2M1", "E8M0"};

// A span of the file with the tensor that claims it.
struct Claim {
  SafetensorsTensor tensor;
  int64_t begin = 0;  // from the start of the data
  int64_t end = 0;
};

StatusOr<DType> ParseType(const json& value, const std::string& what) {
  if (value.is_string()) {
    const auto& name = value.get_ref<const std::string&>();
    if (name == "BF16") return DType::kBF16;
    if (name == "F32") return DType::kF32;
    if (std::find(kOtherTypes.begin(), kOtherTypes.end(), name) !=
        kOtherTypes.end()) {
      return Unimplemented("{}: dtype {}, only F32 and BF16 can be read", what,
                           name);
    }
  }
  return DataLoss("{}: dtype is {}", what, Brief(value));
}

StatusOr<Shape> ParseShape(const json& value, const std::string& what) {
  if (!value.is_array()) return DataLoss("{}: shape is {}", what, Brief(value));
  if (value.size() > Shape::kMaxRank) {
    return Unimplemented("{}: {} dimensions, at most {} can be read", what,
                         value.size(), Shape::kMaxRank);
  }
  Shape shape;
  for (const json& size : value) {
    const StatusOr<int64_t> n = ToInteger(size, "size", 0, kMaxInteger);
    if (!n.ok()) return DataLoss("{}: shape is {}", what, Brief(value));
    shape.Append(*n);
  }
  return shape;
}

// Bytes of `shape`, or DataLoss where they do not fit 63 bits.
StatusOr<int64_t> ByteSize(const Shape& shape, DType dtype,
                           const std::string& what) {
  int64_t bytes = SizeOf(dtype);
  bool empty = false;
  bool overflow = false;
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape[i] == 0) {
      empty = true;
    } else {
      overflow |= __builtin_mul_overflow(bytes, shape[i], &bytes);
    }
  }
  if (overflow) {
    return DataLoss("{}: shape {} overflows", what, ToString(shape));
  }
  return empty ? 0 : bytes;
}

StatusOr<Claim> ParseEntry(const std::string& name, const json& entry,
                           std::span<const std::byte> data,
                           const std::string& what) {
  if (!entry.is_object() || entry.size() != 3 || !entry.contains("dtype") ||
      !entry.contains("shape") || !entry.contains("data_offsets")) {
    return DataLoss("{}: expected dtype, shape and data_offsets, and no more",
                    what);
  }
  Claim claim;
  claim.tensor.name = name;
  BATON_ASSIGN_OR_RETURN(claim.tensor.dtype,
                         ParseType(*entry.find("dtype"), what));
  BATON_ASSIGN_OR_RETURN(claim.tensor.shape,
                         ParseShape(*entry.find("shape"), what));
  BATON_ASSIGN_OR_RETURN(
      const int64_t bytes,
      ByteSize(claim.tensor.shape, claim.tensor.dtype, what));

  const json& offsets = *entry.find("data_offsets");
  if (!offsets.is_array() || offsets.size() != 2) {
    return DataLoss("{}: data_offsets is {}", what, Brief(offsets));
  }
  const auto size = static_cast<int64_t>(data.size());
  const StatusOr<int64_t> begin = ToInteger(offsets[0], "begin", 0, size);
  const StatusOr<int64_t> end = ToInteger(offsets[1], "end", 0, size);
  if (!begin.ok() || !end.ok() || *begin > *end) {
    return DataLoss("{}: data_offsets {} outside the file's {} bytes of data",
                    what, Brief(offsets), size);
  }
  if (*end - *begin != bytes) {
    return DataLoss("{}: {} bytes of data, {} {} needs {}", what, *end - *begin,
                    Name(claim.tensor.dtype), ToString(claim.tensor.shape),
                    bytes);
  }
  claim.begin = *begin;
  claim.end = *end;
  claim.tensor.data = data.subspan(*begin, *end - *begin);
  return claim;
}

// The header's text; everything after it is data.
StatusOr<std::string_view> HeaderText(std::span<const std::byte> file,
                                      const std::string& where) {
  if (file.size() < kLengthBytes) {
    return DataLoss("{}: {} bytes, too short for a safetensors file", where,
                    file.size());
  }
  uint64_t length = 0;
  for (int i = 0; i < kLengthBytes; ++i) {
    length |= std::to_integer<uint64_t>(file[i]) << (8 * i);
  }
  const std::string_view all(reinterpret_cast<const char*>(file.data()),
                             file.size());
  if (all.starts_with(kLfsPointer)) {
    return DataLoss(
        "{}: a Git LFS pointer instead of the weights: `git lfs pull` brings "
        "them",
        where);
  }
  if (length > kMaxHeaderBytes || length > file.size() - kLengthBytes) {
    return DataLoss("{}: header of {} bytes in a file of {}", where, length,
                    file.size());
  }
  return all.substr(kLengthBytes, length);
}

Status CheckMetadata(const json& value, const std::string& where) {
  bool text_only = value.is_object();
  for (const json& item : value) text_only &= item.is_string();
  if (text_only) return OkStatus();
  return DataLoss("{}: __metadata__ is not a map of texts", where);
}

// Sorts by place and refuses overlaps, holes and data nobody claims.
Status CheckCover(std::vector<Claim>& claims, int64_t size,
                  const std::string& where) {
  std::sort(claims.begin(), claims.end(), [](const Claim& a, const Claim& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  int64_t covered = 0;
  for (const Claim& claim : claims) {
    if (claim.begin < covered) {
      return DataLoss("{}: tensor {} overlaps the one before it by {} bytes",
                      where, claim.tensor.name, covered - claim.begin);
    }
    if (claim.begin > covered) {
      return DataLoss("{}: a hole of {} bytes before tensor {}", where,
                      claim.begin - covered, claim.tensor.name);
    }
    covered = claim.end;
  }
  if (covered == size) return OkStatus();
  return DataLoss("{}: {} bytes of data belong to no tensor", where,
                  size - covered);
}

bool IsPlainShardName(const std::string& name) {
  return name.size() <= kMaxNameBytes && name.ends_with(".safetensors") &&
         !name.starts_with('.') &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

Status AsDataLoss(const Status& status) {
  return DataLoss("{}", Message(status));
}

}  // namespace

StatusOr<std::vector<SafetensorsTensor>> ParseSafetensors(
    std::span<const std::byte> file, const std::string& where) {
  BATON_ASSIGN_OR_RETURN(const std::string_view text, HeaderText(file, where));
  const StatusOr<json> header = ParseJsonObject(
      text, where, {.max_bytes = kMaxHeaderBytes, .max_depth = 4});
  if (!header.ok()) return AsDataLoss(header.status());

  const std::span<const std::byte> data =
      file.subspan(kLengthBytes + text.size());
  std::vector<Claim> claims;
  for (const auto& item : header->items()) {
    if (item.key() == "__metadata__") {
      BATON_RETURN_IF_ERROR(CheckMetadata(item.value(), where));
      continue;
    }
    if (item.key().empty() || item.key().size() > kMaxNameBytes) {
      return DataLoss("{}: a tensor name of {} bytes", where,
                      item.key().size());
    }
    const std::string what = fmt::format("{}: tensor {}", where, item.key());
    BATON_ASSIGN_OR_RETURN(Claim claim,
                           ParseEntry(item.key(), item.value(), data, what));
    claims.push_back(std::move(claim));
  }
  BATON_RETURN_IF_ERROR(
      CheckCover(claims, static_cast<int64_t>(data.size()), where));
  std::vector<SafetensorsTensor> tensors;
  tensors.reserve(claims.size());
  for (Claim& claim : claims) tensors.push_back(std::move(claim.tensor));
  return tensors;
}

StatusOr<std::map<std::string, std::string>> ParseSafetensorsIndex(
    std::string_view text, const std::string& where) {
  const StatusOr<json> root =
      ParseJsonObject(text, where, {.max_bytes = kMaxHeaderBytes});
  if (!root.ok()) return AsDataLoss(root.status());
  const json* map = FindValue(*root, "weight_map");
  if (map == nullptr || !map->is_object() || map->empty()) {
    return DataLoss("{}: weight_map is missing or empty", where);
  }
  std::map<std::string, std::string> shards;
  for (const auto& item : map->items()) {
    const json& file = item.value();
    if (item.key().empty() || item.key().size() > kMaxNameBytes) {
      return DataLoss("{}: a tensor name of {} bytes", where,
                      item.key().size());
    }
    if (!file.is_string() ||
        !IsPlainShardName(file.get_ref<const std::string&>())) {
      return DataLoss(
          "{}: tensor {} is in {}, expected the name of a .safetensors file in "
          "the same folder",
          where, item.key(), Brief(file));
    }
    shards.emplace(item.key(), file.get<std::string>());
  }
  return shards;
}

}  // namespace baton
