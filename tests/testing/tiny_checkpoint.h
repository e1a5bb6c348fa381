// SPDX-License-Identifier: Apache-2.0
// Temporary folders, and safetensors bytes that a test spells out, well formed
// or not.
#pragma once

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/tensor/dtype.h"

namespace baton::testing {

// A folder of its own that goes away with the object. Move-only.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = ::testing::TempDir() + "/baton-XXXXXX";
    BATON_CHECK(::mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  TempFolder(TempFolder&& other) noexcept : path_(std::move(other.path_)) {
    other.path_.clear();
  }
  TempFolder& operator=(TempFolder&&) = delete;
  ~TempFolder() {
    if (!path_.empty()) std::filesystem::remove_all(path_);
  }

  [[nodiscard]] const std::string& path() const { return path_; }
  void Write(const std::string& name, std::string_view bytes) const {
    std::ofstream out(path_ + "/" + name, std::ios::binary);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    BATON_CHECK(out.good());
  }

 private:
  std::string path_;
};

[[nodiscard]] inline std::string ReadBytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  BATON_CHECK(in.good());
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// Header length, header, data. `length` tells a lie if given.
[[nodiscard]] inline std::string SafetensorsBytes(std::string_view header,
                                                  std::string_view data,
                                                  int64_t length = -1) {
  const uint64_t said = length < 0 ? header.size() : length;
  std::string out;
  for (int i = 0; i < 8; ++i) {
    out.push_back(static_cast<char>(said >> (8 * i) & 0xff));
  }
  out.append(header);
  return out.append(data);
}

// Values as the file stores them.
[[nodiscard]] inline std::string Bf16Bytes(std::span<const float> values) {
  std::string out;
  for (const float value : values) {
    const uint16_t bits = bf16(value).bits;
    out.push_back(static_cast<char>(bits & 0xff));
    out.push_back(static_cast<char>(bits >> 8));
  }
  return out;
}

// Builds one safetensors file tensor by tensor.
class SafetensorsBuilder {
 public:
  // `shape` as JSON ("[2,3]"); `data` in the file's own bytes.
  SafetensorsBuilder& Add(std::string_view name, std::string_view dtype,
                          std::string_view shape, std::string_view data) {
    header_ += header_.empty() ? "{" : ",";
    header_ += fmt::format(
        R"("{}":{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", name,
        dtype, shape, data_.size(), data_.size() + data.size());
    data_.append(data);
    return *this;
  }
  // Filled with ones.
  SafetensorsBuilder& AddBf16(std::string_view name,
                              const std::vector<int64_t>& sizes) {
    int64_t count = 1;
    for (const int64_t size : sizes) count *= size;
    return Add(name, "BF16", fmt::format("[{}]", fmt::join(sizes, ",")),
               Bf16Bytes(std::vector<float>(count, 1.0F)));
  }
  [[nodiscard]] std::string Bytes() const {
    std::string header = header_.empty() ? "{" : header_;
    header.push_back('}');
    header.append((8 - header.size() % 8) % 8, ' ');
    return SafetensorsBytes(header, data_);
  }

 private:
  std::string header_;
  std::string data_;
};

inline constexpr const char* kTinyConfig =
    R"({"architectures": ["TinyForCausalLM"], "eos_token_id": 3})";

// A folder with `kTinyConfig` and one file of weights.
[[nodiscard]] inline TempFolder TinyCheckpoint(
    const SafetensorsBuilder& weights) {
  TempFolder folder;
  folder.Write("config.json", kTinyConfig);
  folder.Write("model.safetensors", weights.Bytes());
  return folder;
}

}  // namespace baton::testing
