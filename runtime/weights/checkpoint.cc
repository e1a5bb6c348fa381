// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "runtime/base/fnv.h"
#include "runtime/config/json.h"
#include "runtime/weights/check.h"
#include "runtime/weights/file.h"
#include "runtime/weights/safetensors.h"
#include "runtime/weights/weight_source.h"

namespace baton {
namespace {

constexpr int64_t kMaxConfigBytes = 4 << 20;
constexpr int64_t kMaxIndexBytes = 100 << 20;
constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

// Empty if there is no generation_config.json, or no ids in it.
StatusOr<std::vector<int32_t>> GenerationEosIds(const std::string& directory) {
  const std::string path = directory + "/generation_config.json";
  if (!PathExists(path)) return std::vector<int32_t>();
  BATON_ASSIGN_OR_RETURN(const std::string text,
                         ReadFile(path, kMaxConfigBytes));
  BATON_ASSIGN_OR_RETURN(const nlohmann::json root,
                         ParseJsonObject(text, path));
  return IdsUnder(root, "eos_token_id", path);
}

// A row range of a tensor that the file stores off its alignment; safetensors
// headers are padded by habit, not by rule.
StatusOr<HostRows> CopyRows(ConstView rows) {
  HostRows out;
  BATON_ASSIGN_OR_RETURN(out.owned,
                         Tensor::AllocateHost(rows.dtype(), rows.shape()));
  if (rows.bytes() > 0) {
    std::memcpy(out.owned.view().data(), rows.data(), rows.bytes());
  }
  out.view = out.owned.view();
  return out;
}

}  // namespace

struct Checkpoint::State {
  std::string directory;
  ModelConfig config;
  std::vector<int32_t> eos_ids;
  std::vector<MappedFile> files;
  std::vector<TensorEntry> tensors;  // in name order

  // Maps one file and appends its tensors.
  Status AddFile(const std::string& name) {
    const std::string path = directory + "/" + name;
    BATON_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
    BATON_ASSIGN_OR_RETURN(std::vector<SafetensorsTensor> parsed,
                           ParseSafetensors(file.bytes(), path));
    files.push_back(std::move(file));
    for (SafetensorsTensor& tensor : parsed) {
      tensors.push_back({.name = std::move(tensor.name),
                         .dtype = tensor.dtype,
                         .shape = tensor.shape,
                         .data = tensor.data.data(),
                         .file = name});
    }
    return OkStatus();
  }

  // Maps the shards of the index; index and shards must tell the same story.
  Status AddShards() {
    const std::string path = directory + "/" + kIndexFile;
    BATON_ASSIGN_OR_RETURN(const std::string text,
                           ReadFile(path, kMaxIndexBytes));
    BATON_ASSIGN_OR_RETURN(const auto index, ParseSafetensorsIndex(text, path));
    std::map<std::string, int64_t> names;  // shard to tensors listed in it
    for (const auto& entry : index) ++names[entry.second];
    for (const auto& shard : names) BATON_RETURN_IF_ERROR(AddFile(shard.first));
    for (const TensorEntry& tensor : tensors) {
      const auto listed = index.find(tensor.name);
      if (listed == index.end()) {
        return DataLoss("{}: tensor {} of {} is not listed", path, tensor.name,
                        tensor.file);
      }
      if (listed->second != tensor.file) {
        return DataLoss("{}: tensor {} is listed in {} but is in {}", path,
                        tensor.name, listed->second, tensor.file);
      }
      --names[tensor.file];
    }
    for (const auto& entry : index) {
      if (names[entry.second] == 0) continue;
      const bool found = std::any_of(
          tensors.begin(), tensors.end(),
          [&](const TensorEntry& t) { return t.name == entry.first; });
      if (!found) {
        return DataLoss("{}: tensor {} is listed in {} but is not there", path,
                        entry.first, entry.second);
      }
    }
    return OkStatus();
  }
};

Checkpoint::Checkpoint(std::unique_ptr<State> state)
    : state_(std::move(state)) {}
Checkpoint::~Checkpoint() = default;

StatusOr<ModelConfig> ReadModelConfig(const std::string& directory) {
  if (!PathExists(directory)) {
    return NotFound("{}: no such directory", directory);
  }
  const std::string path = directory + "/config.json";
  BATON_ASSIGN_OR_RETURN(const std::string text,
                         ReadFile(path, kMaxConfigBytes));
  return ModelConfig::Parse(text, path);
}

StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(
    const std::string& directory) {
  BATON_ASSIGN_OR_RETURN(ModelConfig config, ReadModelConfig(directory));
  BATON_ASSIGN_OR_RETURN(std::vector<int32_t> eos_ids,
                         GenerationEosIds(directory));
  if (eos_ids.empty()) {
    BATON_ASSIGN_OR_RETURN(eos_ids, config.Ids("eos_token_id"));
  }
  auto state = std::make_unique<State>(
      State{directory, std::move(config), std::move(eos_ids), {}, {}});
  if (PathExists(directory + "/" + kSingleFile)) {
    BATON_RETURN_IF_ERROR(state->AddFile(kSingleFile));
  } else if (PathExists(directory + "/" + kIndexFile)) {
    BATON_RETURN_IF_ERROR(state->AddShards());
  } else {
    return NotFound("{}: neither {} nor {}", directory, kSingleFile,
                    kIndexFile);
  }
  std::sort(state->tensors.begin(), state->tensors.end(),
            [](const TensorEntry& a, const TensorEntry& b) {
              return a.name < b.name;
            });
  return std::unique_ptr<Checkpoint>(new Checkpoint(std::move(state)));
}

const std::string& Checkpoint::directory() const { return state_->directory; }
const ModelConfig& Checkpoint::config() const { return state_->config; }
std::vector<int32_t> Checkpoint::EosIds() const { return state_->eos_ids; }
std::span<const TensorEntry> Checkpoint::tensors() const {
  return state_->tensors;
}

bool Checkpoint::Has(const std::string& name) const {
  return FindTensor(state_->tensors, name) != nullptr;
}

StatusOr<HostRows> Checkpoint::Rows(const TensorDecl& decl, int64_t begin,
                                    int64_t end) const {
  const FoundTensor found = FindDeclared(state_->tensors, decl);
  if (found.entry == nullptr) {
    return NotFound("{}: no tensor {}", state_->directory, decl.name);
  }
  if (!found.fits) {
    return InvalidArgument("{}: tensor {} is {}, expected {}",
                           state_->directory, found.entry->name,
                           ToString(found.entry->shape),
                           ToString(found.expected));
  }
  if (begin < 0 || begin > end || end > found.rows.dim(0)) {
    return InvalidArgument("{}: rows [{},{}) of tensor {} {}",
                           state_->directory, begin, end, decl.name,
                           ToString(found.rows.shape()));
  }
  const ConstView rows = found.rows.Rows(begin, end);
  const auto address = reinterpret_cast<uintptr_t>(rows.data());
  if (address % SizeOf(rows.dtype()) != 0) return CopyRows(rows);
  HostRows out;
  out.view = rows;
  return out;
}

Status Checkpoint::Check(std::span<const TensorDecl> declared) const {
  return Annotate(CheckTensors(state_->tensors, declared), state_->directory);
}

uint64_t Checkpoint::Fingerprint() const {
  constexpr size_t kSamples = 512;
  constexpr size_t kSampleBytes = 4096;
  Fnv1a<uint64_t> hash;
  size_t total = 0;
  for (const TensorEntry& t : state_->tensors) {
    hash.Add(
        fmt::format("{} {} {};", t.name, Name(t.dtype), ToString(t.shape)));
    total += t.bytes().size();
  }
  // Samples begin every `step` bytes of all tensors in a row, and end with
  // their tensor.
  const size_t step = std::max(kSampleBytes, (total + kSamples - 1) / kSamples);
  size_t at = 0;  // of the next sample, from the tensor on
  for (const TensorEntry& t : state_->tensors) {
    const auto bytes = t.bytes();
    for (; at < bytes.size(); at += step) {
      const auto sample =
          bytes.subspan(at, std::min(kSampleBytes, bytes.size() - at));
      hash.Add({reinterpret_cast<const char*>(sample.data()), sample.size()});
    }
    at -= bytes.size();
  }
  return hash.value();
}

void Checkpoint::Drop(const TensorDecl& decl) const {
  const ConstView rows = FindDeclared(state_->tensors, decl).rows;
  if (rows.data() == nullptr) return;
  DropMappedPages({rows.data(), static_cast<size_t>(rows.bytes())});
}

}  // namespace baton
