// SPDX-License-Identifier: Apache-2.0
#include "runtime/weights/tokenizer.h"

#include <array>
#include <string_view>
#include <utility>

#include "runtime/config/json.h"
#include "runtime/weights/file.h"
#include "runtime/weights/utf8.h"

namespace baton {
namespace {

using nlohmann::json;

constexpr int64_t kMaxBytes = 256 << 20;
constexpr int64_t kMaxId = (1 << 22) - 1;  // bounds what a lying id can cost
constexpr const char* kDefaultWhere = "tokenizer.json";

// GPT-2's byte alphabet: each byte has a printable character. Printable Latin-1
// stands for itself; the other 68 bytes take U+0100 onwards, in order. This is
// the way back, from character to byte.
constexpr int kAlphabetEnd = 0x144;

constexpr bool IsPrintable(int byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) ||
         (byte >= 0xae && byte <= 0xff);
}

constexpr std::array<int16_t, kAlphabetEnd> MakeAlphabet() {
  std::array<int16_t, kAlphabetEnd> bytes = {};
  for (int16_t& byte : bytes) byte = -1;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    bytes[IsPrintable(byte) ? byte : next++] = static_cast<int16_t>(byte);
  }
  return bytes;
}

constexpr std::array<int16_t, kAlphabetEnd> kAlphabet = MakeAlphabet();
static_assert(kAlphabet[0x120] == ' ' && kAlphabet[0x10a] == '\n' &&
              kAlphabet['A'] == 'A' && kAlphabet[0x143] == 0xad);

// The bytes that a token's text spells. Text with a character outside the
// alphabet (an added token may have one) stands for itself.
std::string Decode(const std::string& text) {
  std::string bytes;
  size_t at = 0;
  while (at < text.size()) {
    const Utf8Part part = NextUtf8(std::string_view(text).substr(at));
    if (part.kind != Utf8Part::Kind::kCharacter ||
        part.code_point >= kAlphabetEnd || kAlphabet[part.code_point] < 0) {
      return text;
    }
    bytes.push_back(static_cast<char>(kAlphabet[part.code_point]));
    at += part.length;
  }
  return bytes;
}

std::string TypeOf(const json& object) {
  const json* type = object.is_object() ? FindValue(object, "type") : nullptr;
  return type != nullptr && type->is_string() ? type->get<std::string>() : "";
}

// A decoder that is ByteLevel, or a sequence with ByteLevel in it.
bool IsByteLevel(const json& decoder) {
  const std::string type = TypeOf(decoder);
  if (type == "ByteLevel") return true;
  const json* parts =
      type == "Sequence" ? FindValue(decoder, "decoders") : nullptr;
  if (parts == nullptr || !parts->is_array()) return false;
  for (const json& part : *parts) {
    if (TypeOf(part) == "ByteLevel") return true;
  }
  return false;
}

// Collects id -> bytes; the same id may come twice with the same text. Texts
// must outlive the table.
class Table {
 public:
  explicit Table(const std::string& where) : where_(where) {}

  Status Add(const std::string& text, const json& id, std::string bytes) {
    BATON_ASSIGN_OR_RETURN(
        const int64_t index,
        ToInteger(id,
                  fmt::format("{}: the id of token {}", where_, Brief(text)), 0,
                  kMaxId));
    if (index >= static_cast<int64_t>(bytes_.size())) {
      bytes_.resize(index + 1);
      texts_.resize(index + 1);
    }
    if (texts_[index] != nullptr && *texts_[index] != text) {
      return InvalidArgument("{}: id {} is both {} and {}", where_, index,
                             Brief(*texts_[index]), Brief(text));
    }
    texts_[index] = &text;
    bytes_[index] = std::move(bytes);
    return OkStatus();
  }
  std::vector<std::string> Take() && { return std::move(bytes_); }

 private:
  const std::string& where_;
  std::vector<std::string> bytes_;
  std::vector<const std::string*> texts_;
};

Status AddVocabulary(const json& root, const std::string& where, Table& table) {
  const json* model = FindValue(root, "model");
  const json* vocab = model != nullptr && model->is_object()
                          ? FindValue(*model, "vocab")
                          : nullptr;
  if (vocab == nullptr) {
    return InvalidArgument("{}: model.vocab is missing", where);
  }
  if (!vocab->is_object()) {  // a list of scored pieces: SentencePiece's form
    return Unimplemented("{}: model.vocab is {}, only a map of tokens is read",
                         where, Brief(*vocab));
  }
  for (const auto& item : vocab->get_ref<const json::object_t&>()) {
    BATON_RETURN_IF_ERROR(
        table.Add(item.first, item.second, Decode(item.first)));
  }
  return OkStatus();
}

Status AddAddedTokens(const json& root, const std::string& where,
                      Table& table) {
  const json* added = FindValue(root, "added_tokens");
  if (added == nullptr) return OkStatus();
  if (!added->is_array()) {
    return InvalidArgument("{}: added_tokens is {}, expected a list", where,
                           Brief(*added));
  }
  for (const json& token : *added) {
    const json* id = token.is_object() ? FindValue(token, "id") : nullptr;
    const json* text =
        token.is_object() ? FindValue(token, "content") : nullptr;
    const json* special =
        token.is_object() ? FindValue(token, "special") : nullptr;
    if (id == nullptr || text == nullptr || !text->is_string() ||
        (special != nullptr && !special->is_boolean())) {
      return InvalidArgument(
          "{}: added_tokens has {}, expected id, content and special", where,
          Brief(token));
    }
    const bool silent = special != nullptr && special->get<bool>();
    const auto& content = text->get_ref<const std::string&>();
    BATON_RETURN_IF_ERROR(
        table.Add(content, *id, silent ? "" : Decode(content)));
  }
  return OkStatus();
}

StatusOr<std::vector<std::string>> ReadTable(const std::string& text,
                                             const std::string& where) {
  BATON_ASSIGN_OR_RETURN(
      const json root, ParseJsonObject(text, where, {.max_bytes = kMaxBytes}));
  const json* decoder = FindValue(root, "decoder");
  if (decoder == nullptr || !IsByteLevel(*decoder)) {
    return Unimplemented("{}: decoder is {}, only ByteLevel is read", where,
                         decoder == nullptr ? "missing" : Brief(*decoder));
  }
  Table table(where);
  BATON_RETURN_IF_ERROR(AddVocabulary(root, where, table));
  BATON_RETURN_IF_ERROR(AddAddedTokens(root, where, table));
  return std::move(table).Take();
}

}  // namespace

StatusOr<TokenTable> TokenTable::Open(const std::string& directory) {
  const std::string path = directory + "/tokenizer.json";
  BATON_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxBytes));
  TokenTable table;
  BATON_ASSIGN_OR_RETURN(table.bytes_, ReadTable(text, path));
  return table;
}

StatusOr<TokenTable> TokenTable::Parse(const std::string& json) {
  TokenTable table;
  BATON_ASSIGN_OR_RETURN(table.bytes_, ReadTable(json, kDefaultWhere));
  return table;
}

const std::string& TokenTable::Bytes(int32_t id) const {
  static const std::string kNothing;
  if (id < 0 || static_cast<size_t>(id) >= bytes_.size()) return kNothing;
  return bytes_[id];
}

std::string TextStream::Push(int32_t id) {
  pending_ += table_->Bytes(id);
  std::string out;
  size_t at = 0;
  while (at < pending_.size()) {
    const Utf8Part part = NextUtf8(std::string_view(pending_).substr(at));
    if (part.kind == Utf8Part::Kind::kUnfinished) break;
    if (part.kind == Utf8Part::Kind::kCharacter) {
      out.append(pending_, at, part.length);
    } else {
      out += kReplacementCharacter;
    }
    at += part.length;
  }
  pending_.erase(0, at);
  return out;
}

std::string TextStream::Finish() {
  // Push leaves at most the beginning of one character.
  const bool broken = !pending_.empty();
  pending_.clear();
  return broken ? std::string(kReplacementCharacter) : "";
}

}  // namespace baton
